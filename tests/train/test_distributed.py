"""The watchdog: where a process hangs, and that a compilation is none; who leaves last."""

import errno
import io
import os
import time

import jax
import pytest

from ssl_jax.config import InputError
from ssl_jax.train import distributed, log, stop


def watched(seconds, tmp_path, **phase):
    with open(tmp_path / "said.txt", "w+") as stream:  # faulthandler writes to a file alone
        watchdog = distributed.Watchdog(0.2, stream)
        watchdog.phase("compiling the step", **phase)
        time.sleep(seconds)
        watchdog.close()
        time.sleep(0.1)
        stream.seek(0)
        return stream.read()


def test_a_hanging_process_says_where(tmp_path):
    said = watched(0.5, tmp_path)
    assert "process 0 of 1: nothing happened for 0 s in: compiling the step" in said
    assert "test_distributed.py" in said  # the threads' places


def test_a_compilation_goes_on(tmp_path):
    said = watched(0.9, tmp_path, compiling=True)
    assert "process 0 of 1: still compiling the step after" in said
    assert "nothing happened" not in said and "test_distributed" not in said
    assert 1 <= said.count(os.linesep) <= 3  # after 0.2, 0.4 and 0.8 seconds


def test_a_phase_in_time_and_no_limit_say_nothing(tmp_path):
    assert watched(0.0, tmp_path) == ""
    stream = io.StringIO()
    watchdog = distributed.Watchdog(0, stream)
    watchdog.phase("step 1")
    time.sleep(0.1)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("index", [0, 1])
def test_the_first_process_told_to_stop_leaves_after_the_others(index, monkeypatch):
    """Were it gone before them, they would be aborted while they end."""
    done = []

    def leave(code):
        done.append(code)
        raise SystemExit

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: index)
    monkeypatch.setattr(distributed.time, "sleep", done.append)
    monkeypatch.setattr(distributed.os, "_exit", leave)
    with stop.listening() as asked, pytest.raises(SystemExit), distributed.together():
        others = asked.patience
        raise stop.Interrupted
    waited, code = done
    assert code == stop.EXIT_PREEMPTED
    if index == 0:
        assert waited == others > stop.PATIENCE
    else:
        assert waited == 0 and others == stop.PATIENCE


@pytest.mark.parametrize(
    "error, code, said",
    [
        (OSError(errno.EROFS, "Read-only file system", "runs/a"), 2, "Read-only file system"),
        (InputError("data.dir is\nnot there"), 2, "process 1 of 2: data.dir is not there\n"),
        (ValueError("no fault of the user"), 1, "Traceback"),
    ],
    ids=["disk", "input", "fault"],
)
def test_a_process_that_fails_ends_at_once_and_says_why(error, code, said, monkeypatch, capfd):
    codes = []

    def leave(code):
        codes.append(code)
        raise SystemExit

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(distributed.os, "_exit", leave)
    with pytest.raises(SystemExit), distributed.together():
        raise error
    told = capfd.readouterr().err
    assert codes == [code] and said in told
    assert ("Traceback" in told) == (code == 1)


def test_two_commits_of_one_version_are_told_apart(monkeypatch, tmp_path):
    (tmp_path / "train").mkdir()
    monkeypatch.setattr(log, "__file__", str(tmp_path / "train" / "log.py"))
    (tmp_path / "a.py").write_text("x = 1\n")
    first = log.code()
    assert first == log.code() and len(first) == 12
    (tmp_path / "a.py").write_text("x = 2\n")
    second = log.code()
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, log.code()}) == 3
