"""The lock of a run folder: whose it is, when it is taken over, and that it does not outlast its
run; test_disturbed.py kills a run that holds one.
"""

import errno
import fcntl
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
from ssl_jax.runtime import lock
from ssl_jax.runtime.lock import FILE, Lock

ELSEWHERE = {"host": "node7", "boot": "b", "process": 12}
TAKE = """
import os, pathlib, sys
from ssl_jax.runtime.lock import Lock
Lock(pathlib.Path(sys.argv[1])).take()
os._exit(1)
"""


def written(tmp_path, **others):
    """A lock file as another process left it."""
    (tmp_path / FILE).write_text(json.dumps(Lock(tmp_path)._mine | others))
    return tmp_path / FILE


def taken(tmp_path, within=5, **options):
    """What a lock says that is taken in time, and is released again."""
    said, began = [], time.monotonic()
    Lock(tmp_path, said.append, **options).take().release()
    assert time.monotonic() - began < within
    assert not (tmp_path / FILE).exists()
    return said


def test_one_at_a_time_and_gone_at_the_end(tmp_path):
    first = Lock(tmp_path).take()
    with pytest.raises(InputError, match=f"process {os.getpid()} on .*{tmp_path}"):
        Lock(tmp_path).take()
    first.release()
    assert list(tmp_path.iterdir()) == []
    second = Lock(tmp_path).take()
    first.release()  # again: not the other's
    assert (tmp_path / FILE).exists()
    second.release()


def test_a_process_of_this_machine_that_is_gone(tmp_path):
    subprocess.run([sys.executable, "-c", TAKE, tmp_path], check=False)
    other = json.loads((tmp_path / FILE).read_text())["process"]
    (line,) = taken(tmp_path)
    assert line.startswith(f"process {other} on ")
    # This process's number, but another one, before a restart for example.
    written(tmp_path, flock=True)
    assert len(taken(tmp_path)) == 1
    written(tmp_path, process=other)  # of a version that held none by flock
    assert len(taken(tmp_path)) == 1


def test_one_that_was_not_locked_shows_its_life_by_its_age(tmp_path):
    """An earlier version's, and one whose disk had no locks for a moment."""
    written(tmp_path)
    assert len(taken(tmp_path, within=10, dead=0.5)) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_hold_it_on(tmp_path):
    """It outlives the run: what a set of the user's own may leave."""
    fork = """
import time
running = pathlib.Path(sys.argv[1]) / "running"
if not os.fork():
    running.touch()
    time.sleep(15)
while not running.exists():
    time.sleep(.01)
os._exit(1)
"""
    subprocess.run(
        [sys.executable, "-c", TAKE.replace("os._exit(1)\n", fork), tmp_path],
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert len(taken(tmp_path)) == 1


def test_a_disk_without_such_locks_leaves_it_to_signs_of_life(tmp_path, monkeypatch):
    def unsupported(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", unsupported)
    living = Lock(tmp_path, beat=0.02).take()
    with pytest.raises(InputError, match=f"process {os.getpid()} on "):
        Lock(tmp_path, dead=10).take()
    living.release()
    written(tmp_path)
    assert len(taken(tmp_path, within=10, dead=0.5)) == 2


@pytest.mark.parametrize("content", [json.dumps(ELSEWHERE), "", "[]", '{"host"'])
def test_one_of_another_machine_is_waited_for_until_it_must_be_gone(content, tmp_path):
    (tmp_path / FILE).write_text(content)
    began = time.monotonic()
    said = taken(tmp_path, within=10, dead=0.5)
    assert time.monotonic() - began > 0.3 and len(said) == 2


def test_one_of_another_machine_that_lives_refuses_and_an_old_one_does_not(tmp_path):
    path = written(tmp_path, **ELSEWHERE)
    threading.Timer(0.3, lambda: os.utime(path)).start()
    with pytest.raises(InputError, match="process 12 on node7"):
        Lock(tmp_path, dead=20).take()
    threading.Timer(0.3, path.unlink).start()  # it ends: no reason to wait longer
    taken(tmp_path, within=50, dead=100)
    os.utime(written(tmp_path, **ELSEWHERE), (time.time() - 1000,) * 2)
    (line,) = taken(tmp_path, within=10, dead=100)
    assert line.startswith("process 12 on node7 ")


@pytest.mark.parametrize("dropped", [True, False])
def test_a_disk_that_holds_the_lock_of_another_machine(dropped, tmp_path):
    """A crashed one's until its server notices, a suspended one's for ever."""
    path = written(tmp_path, **ELSEWHERE, flock=True)
    os.utime(path, (time.time() - 1000,) * 2)
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if dropped:
            threading.Timer(0.3, file.close).start()
            assert taken(tmp_path, within=10, dead=2)
        else:
            with pytest.raises(InputError, match="process 12 on node7"):
                Lock(tmp_path, dead=0.2).take()


def test_it_shows_signs_of_life(tmp_path):
    held = Lock(tmp_path, beat=0.02).take()
    first, until = (tmp_path / FILE).stat().st_mtime_ns, time.monotonic() + 10
    while (tmp_path / FILE).stat().st_mtime_ns == first:
        assert time.monotonic() < until
        time.sleep(0.01)
    held.release()


SUSPENDED = TAKE.replace("take()", "take(); import time; time.sleep(20)").replace(
    "[1])", "[1]), beat=.02"
)


def test_one_that_was_taken_over_by_another_machine_ends_without_touching_anything(tmp_path):
    """It was suspended, and both would write to the run."""
    process = subprocess.Popen([sys.executable, "-c", SUSPENDED, tmp_path], stderr=subprocess.PIPE)
    until = time.monotonic() + 20
    while not lock._read(tmp_path / FILE):
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    (tmp_path / FILE).unlink()
    path = written(tmp_path, **ELSEWHERE)
    os.utime(path, (1000, 1000))
    process.send_signal(signal.SIGCONT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 1 and b"process 12 on node7" in err
    assert path.stat().st_mtime == 1000


def test_another_machine_asks_for_the_flock_of_a_disk_that_shares_them(tmp_path):
    held = Lock(tmp_path).take()
    os.utime(tmp_path / FILE, (1000, 1000))
    other = Lock(tmp_path)
    other._mine["host"] = "node7"
    with pytest.raises(InputError, match=f"process {os.getpid()} on "):
        other.take()
    held.release()


def test_a_run_in_a_folder_in_use_is_refused_before_anything_is_written(tmp_path, capsys):
    held = Lock(tmp_path).take()
    arguments = ["ssl-jax", "train", "--config=tests/tiny_run.py:mae", f"--workdir={tmp_path}"]
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert f"training in {tmp_path}" in err and err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [FILE]
    held.release()
