"""The lock of a run folder: whose it is, when it is taken over, and that it does not outlast its
run.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from ssl_jax import cli
from ssl_jax.config import InputError
from ssl_jax.train import lock
from ssl_jax.train.lock import FILE, Lock
from tests import compiling

ELSEWHERE = {"host": "node7", "boot": "b", "process": 12, "started": "3"}


@pytest.fixture
def said():
    return []


def written(tmp_path, **others):
    """A lock file as another process left it."""
    (tmp_path / FILE).write_text(json.dumps(lock._myself() | others))
    return tmp_path / FILE


def test_one_at_a_time_and_gone_at_the_end(tmp_path, said):
    first = Lock(tmp_path, said.append).take()
    with pytest.raises(InputError, match=f"process {os.getpid()} on .* trains in {tmp_path}; wait"):
        Lock(tmp_path, said.append).take()
    first.release()
    assert list(tmp_path.iterdir()) == [] and said == []
    second = Lock(tmp_path, said.append).take()
    first.release()  # again: not the other's
    assert (tmp_path / FILE).exists()
    second.release()


def test_a_process_of_this_machine_that_is_gone(tmp_path, said):
    program = "import os, pathlib, sys; from ssl_jax.train.lock import Lock"
    program += "; Lock(pathlib.Path(sys.argv[1])).take(); os._exit(1)"
    subprocess.run([sys.executable, "-c", program, tmp_path], check=False)
    other = json.loads((tmp_path / FILE).read_text())["process"]
    began = time.monotonic()
    Lock(tmp_path, said.append).take().release()
    assert time.monotonic() - began < 5
    (line,) = said
    assert line.startswith(f"process {other} on ") and "is gone without having ended" in line


def test_a_number_of_a_process_that_is_used_again(tmp_path, said):
    written(tmp_path, started="1")  # this process's number, but another one
    Lock(tmp_path, said.append).take().release()
    assert "is gone" in said[0]


@pytest.mark.parametrize("content", [json.dumps(ELSEWHERE), "", "[]", '{"host"'])
def test_one_of_another_machine_is_waited_for_until_it_must_be_gone(content, tmp_path, said):
    (tmp_path / FILE).write_text(content)
    began = time.monotonic()
    Lock(tmp_path, said.append, dead=0.5).take().release()
    assert 0.3 < time.monotonic() - began < 10
    assert "if it is gone, this run begins in" in said[0] and "is gone" in said[1]


def test_an_old_one_of_another_machine_is_taken_over_at_once(tmp_path, said):
    path = written(tmp_path, **ELSEWHERE)
    os.utime(path, (time.time() - 1000,) * 2)
    began = time.monotonic()
    Lock(tmp_path, said.append, dead=100).take().release()
    assert time.monotonic() - began < 10
    assert said == ["process 12 on node7 is gone without having ended its run, which goes on here"]


def test_one_of_another_machine_that_lives_refuses(tmp_path, said):
    path = written(tmp_path, **ELSEWHERE)
    threading.Timer(0.3, lambda: os.utime(path)).start()
    with pytest.raises(InputError, match="process 12 on node7 trains in"):
        Lock(tmp_path, said.append, dead=20).take()
    path.unlink()
    written(tmp_path, **ELSEWHERE)
    threading.Timer(0.3, path.unlink).start()  # it ends: no reason to wait longer
    Lock(tmp_path, said.append, dead=100).take().release()


def test_it_shows_signs_of_life(tmp_path, said):
    held = Lock(tmp_path, said.append, beat=0.02).take()
    first = (tmp_path / FILE).stat().st_mtime_ns
    until = time.monotonic() + 10
    while (tmp_path / FILE).stat().st_mtime_ns == first and time.monotonic() < until:
        time.sleep(0.01)
    assert (tmp_path / FILE).stat().st_mtime_ns > first
    held.release()


def test_a_run_in_a_folder_in_use_is_refused_before_anything_is_written(tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    held = Lock(run).take()
    arguments = ["ssl-jax", "train", "--config=tests/tiny_run.py:mae", f"--workdir={run}"]
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert f"trains in {run}; wait for it" in err and err.count("\n") == 1
    assert [p.name for p in run.iterdir()] == [FILE]
    held.release()


@pytest.mark.slow
def test_killed_it_begins_again_and_reading_is_possible_meanwhile(tmp_path, capsys):
    run = tmp_path / "run"
    command = [sys.executable, "-m", "ssl_jax", "train", "--config=tests/tiny_run.py:mae"]
    command += [f"--workdir={run}", "--config.optim.epochs=500.0"]
    process = subprocess.Popen(command, env=compiling.environment())
    until = time.monotonic() + 200
    while not (run / "checkpoints" / "2").is_dir() and time.monotonic() < until:
        time.sleep(0.05)
    assert cli.main(["ssl-jax", "eval", str(run), "--task=rank"]) == 0
    assert cli.main(["ssl-jax", *command[3:]]) == 2
    assert f"process {process.pid} on" in capsys.readouterr().err
    process.send_signal(signal.SIGKILL)
    process.wait()
    again = subprocess.Popen([*command], env=compiling.environment(), stdout=-1, text=True)
    for line in again.stdout:
        if "is gone without having ended its run" in line:
            again.send_signal(signal.SIGTERM)
    assert again.wait() == 75 and not (run / FILE).exists()
