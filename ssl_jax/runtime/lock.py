"""Locks a run directory, so that one run at a time writes to it."""

import contextlib
import fcntl
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ssl_jax.config import InputError, Unavailable, read_json
from ssl_jax.runtime import stop

FILE = "lock.json"
# Fields of the file with a value of each type; flock: whether the process also holds an flock.
_EXAMPLES = {"host": "", "boot": "", "process": 0, "flock": False}
_BEAT = 10.0  # seconds between two heartbeats
_DEAD = 90.0  # seconds without a heartbeat after which another machine's process counts as gone


class Lock:
    """The lock of an existing run directory `workdir`: a file with host and process id. Readers
    need no lock.

    The lock of a killed process is taken over. On one machine, the process also holds an `flock`
    on the file, which ends with the process. Between machines, whose file systems may not share
    such locks, the process touches the file every few seconds (a heartbeat), and others take the
    lock over after 90 seconds without one. If the disk still shows an flock then, they wait for
    another 180 seconds until it is gone. Ages are differences of file times on the directory's own
    disk, so the machines' clocks may differ. A process that was suspended for so long, and finds
    that another one has taken its lock over, ends at once with exit code 1.

    Args:
      say: called with a line when another process's lock is awaited or taken over.
      dead: seconds without a heartbeat after which a lock is taken over. beat: heartbeat period.
    """

    def __init__(
        self,
        workdir: Path,
        say: Callable[[str], None] = print,
        *,
        dead: float = _DEAD,
        beat: float = _BEAT,
    ):
        self.path, self._say, self._dead, self._interval = workdir / FILE, say, dead, beat
        boot = Path("/proc/sys/kernel/random/boot_id")
        machine = boot.read_text().strip() if boot.exists() else ""
        self._mine = {"host": socket.gethostname(), "boot": machine, "process": os.getpid()}
        self._file = contextlib.ExitStack()
        self._creating, self._ended = False, threading.Event()

    def take(self) -> "Lock":
        """Acquires the lock. Raises InputError if another process is training in the directory."""
        while not self._created():
            self._remove_of_a_dead_process()
        threading.Thread(target=self._show_life, daemon=True).start()
        return self

    def _created(self) -> bool:
        self._creating = True  # set first: a signal may arrive right after the file is created
        try:
            file = self._file.enter_context(self.path.open("x"))
        except FileExistsError:
            self._creating = False
            return False
        os.register_at_fork(after_in_child=file.close)  # else a child would keep the flock
        with contextlib.suppress(OSError):  # without flock support, heartbeats decide
            fcntl.flock(file, fcntl.LOCK_EX)
            self._mine["flock"] = True
        file.write(json.dumps(self._mine))  # last: others do not try to flock an empty file
        file.flush()
        return True

    def _remove_of_a_dead_process(self) -> None:
        """Removes the lock of a dead process. Raises InputError if the process is alive."""
        other, beat = _read(self.path), self._beat()
        if beat is None:
            return  # the other process has just released its lock
        who = f"process {other.get('process')} on {other.get('host')}"
        refused = InputError(
            f"{who} is training in {self.path.parent}; wait for it, stop it, or use another"
            " --workdir"
        )
        same_machine = all(other.get(name) == self._mine[name] for name in ("host", "boot"))
        live = None  # not known: not all disks tell of an flock of another machine
        if same_machine and other.get("flock"):
            live = is_held(self.path)
        elif same_machine and not _exists(other.get("process")):
            live = False
        if live:
            raise refused
        if live is None and (remaining := self._dead - self._age(beat)) > 0:
            self._say(
                f"{who} locked this directory moments ago; this run starts in {remaining:.0f} s"
                " unless that process shows a sign of life"
            )
            self._wait(remaining, lambda: self._beat() == beat)
        if live is None and self._beat() == beat and other.get("flock") and is_held(self.path):
            # A disk's server keeps the flock of a crashed machine for a while.
            most = 2 * self._dead
            self._say(
                f"{who} shows no sign of life, but the disk still holds its lock; this run waits"
                f" for that, at most {most:.0f} s"
            )
            if self._wait(most, lambda: self._beat() == beat and bool(is_held(self.path))):
                raise Unavailable(
                    f"{who} shows no sign of life, but the disk holds its lock of"
                    f" {self.path.parent}; it may be suspended: end it, or use another --workdir"
                )
        if (now := self._beat()) != beat:
            if now is not None and _read(self.path) == other:
                raise refused
            return  # released, or another process's by now
        self.path.unlink(missing_ok=True)
        self._say(f"{who} is gone and left its run unfinished; taking the run over")

    def _wait(self, seconds: float, going_on: Callable[[], bool]) -> bool:
        """Waits for so long, but not longer than `going_on`; whether that went on to the end."""
        until = time.monotonic() + seconds
        while going_on():
            if time.monotonic() >= until:
                return True
            time.sleep(min(1.0, self._dead / 20))
        return False

    def _beat(self) -> int | None:
        """Time of the newest heartbeat by the disk's clock, in ns; None without a lock file."""
        try:
            return self.path.stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def _age(self, beat: int) -> float:
        """Seconds since a heartbeat, by the disk's clock."""
        with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=f".{FILE}.") as now:
            return max(0.0, (os.fstat(now.fileno()).st_mtime_ns - beat) / 1e9)

    def _show_life(self) -> None:
        while not self._ended.wait(self._interval):
            if not (now := _read(self.path)) or now == self._mine:
                with contextlib.suppress(OSError):
                    os.utime(self.path)
            elif not self._ended.is_set():
                print(
                    f"ssl-jax: process {now.get('process')} on {now.get('host')} has taken over"
                    f" {self.path.parent}; this process ends without saving",
                    file=sys.stderr,
                    flush=True,
                )
                stop.end(1)

    def release(self) -> None:
        """Releases the lock; a second call does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        with self._file, contextlib.suppress(OSError):
            # The file is empty if a signal interrupted its writing.
            if self._creating and _read(self.path) in (self._mine, {}):
                self.path.unlink()


def is_held(path: Path) -> bool | None:
    """Whether a process of this machine holds an flock on the file; None if the file system has no
    flock."""
    try:
        with path.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return False


def _exists(process: int | None) -> bool:
    """Whether a process with this id runs on this machine."""
    try:
        os.kill(process or 0, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def _read(path: Path) -> dict:
    try:
        return read_json(path, _EXAMPLES)
    except InputError:
        return {}
