"""The watchdog: where a process hangs, and that a compilation is none; who leaves last; which
process fails, and how.
"""

import errno
import socket
import subprocess
import sys
import time

import jax
import pytest

from ssl_jax.config import InputError, Unavailable
from ssl_jax.runtime import distributed, stop
from ssl_jax.runtime.watchdog import Watchdog


def watched(seconds, tmp_path, limit=0.2, **phase):
    """The lines that a watchdog writes of a phase that takes so long."""
    with open(tmp_path / "said.txt", "w+") as stream:  # faulthandler writes to a file alone
        watchdog = Watchdog(limit, stream)
        watchdog.phase("making pictures", **phase)
        time.sleep(seconds)
        watchdog.close()
        time.sleep(0.1)
        stream.seek(0)
        return stream.read().splitlines()


def test_a_hanging_process_says_where(tmp_path):
    said = watched(0.5, tmp_path)
    assert "process 0 of 1" in said[0] and "making pictures" in said[0]
    assert any("test_distributed.py" in line for line in said)  # the threads' places


def test_a_compilation_goes_on(tmp_path):
    said = watched(0.9, tmp_path, compiling=True)
    assert 1 <= len(said) <= 3  # after 0.2, 0.4 and 0.8 seconds
    assert all("making pictures" in line for line in said)


@pytest.mark.parametrize("seconds, limit", [(0.0, 0.2), (0.1, 0)])
def test_a_phase_in_time_and_no_limit_say_nothing(seconds, limit, tmp_path):
    assert watched(seconds, tmp_path, limit) == []


@pytest.fixture
def left(monkeypatch):
    """What the second of two processes waits and ends with; `jax.process_index` may be changed."""
    done = []

    def leave(code):
        done.append(code)
        raise SystemExit

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(distributed.time, "sleep", done.append)
    monkeypatch.setattr(distributed.os, "_exit", leave)
    return done


@pytest.mark.parametrize("index", [0, 1])
def test_the_first_process_told_to_stop_leaves_after_the_others(index, left, monkeypatch):
    """Were it gone before them, they would be aborted while they end."""
    monkeypatch.setattr(jax, "process_index", lambda: index)
    with stop.listening() as signals, pytest.raises(SystemExit), distributed.together():
        patience = signals.patience
        raise stop.Interrupted
    waited, code = left
    assert code == stop.EXIT_PREEMPTED
    if index == 0:
        assert waited == patience > stop.PATIENCE
    else:
        assert waited == 0 and patience == stop.PATIENCE


@pytest.mark.parametrize(
    "error, code",
    [
        (OSError(errno.EROFS, "Read-only file system", "runs/a"), 2),
        (OSError(errno.ESTALE, "Stale file handle"), 1),
        (InputError("data.dir is\nnot there"), 2),
        (Unavailable("no route to host"), 1),
        (ValueError("no fault of the user"), 1),
    ],
    ids=["disk", "shared disk", "input", "service", "fault"],
)
def test_a_process_that_fails_ends_at_once_and_says_why(error, code, left, capfd):
    with pytest.raises(SystemExit), distributed.together():
        raise error
    told = capfd.readouterr().err
    assert left == [code] and "process 1 of 2" in told
    fault = type(error) is ValueError
    assert ("Traceback" in told) == fault
    assert fault or told.count("\n") == 1


@pytest.mark.parametrize("place", ["taken", "localhost:99999", "no-such-machine.invalid:1234"])
def test_an_address_where_nobody_can_listen_is_refused_at_once(place):
    with socket.create_server(("", 0)) as server:
        place = f"localhost:{server.getsockname()[1]}" if place == "taken" else place
        with pytest.raises(InputError, match="coordinator"):
            distributed.connect(place, 2, 0)


def test_a_module_that_used_jax_too_early_is_told():
    """Not that there is no cluster."""
    assert jax.devices()
    with pytest.raises(InputError, match="--import"):
        distributed.connect()


def test_a_cluster_that_does_not_answer_is_one_line(monkeypatch):
    def initialize(*args, **kwargs):
        raise RuntimeError("Getting metadata failed\nfor 6 tries")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(Unavailable, match="metadata failed for 6 tries"):
        distributed.connect()


@pytest.mark.slow
def test_a_coordinator_that_never_answers_ends_the_process():
    with socket.create_server(("", 0)) as server:  # takes connections, and says nothing
        code = (
            "from ssl_jax.runtime import distributed; distributed._TOGETHER = 2;"
            f" distributed.connect('localhost:{server.getsockname()[1]}', 2, 1)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
