"""One run at a time in a run directory."""

import contextlib
import fcntl
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ssl_jax.config import InputError, read_json

FILE = "lock.json"
# What it holds; whether its process holds it by flock, too.
_EXAMPLES = {"host": "", "boot": "", "process": 0, "flock": False}
_BEAT = 10.0  # seconds from one sign of life to the next
_DEAD = 90.0  # seconds without one after which a process of another machine is taken for gone


class Lock:
    """The lock of the run directory `workdir`, which must exist: a file with host and process id.
    Reading a run needs none.

    A lock that a killed process left is taken over. On one machine, the process holds the file by
    `flock`, which ends with it. Between machines, whose file systems need not share such locks, the
    file shows a sign of life every few seconds, and is taken over after 90 seconds without one, as
    a requeued job does. Ages are differences of times of the directory's own disk, so that clocks
    may differ.

    say: gets a line when another process's lock is waited for or taken over. dead, beat: seconds
    without a sign of life, and between two of them.
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
        """Raises InputError if another process trains there."""
        while not self._created():
            self._remove_of_a_dead_process()
        threading.Thread(target=self._show_life, daemon=True).start()
        return self

    def _created(self) -> bool:
        self._creating = True  # before: a signal may come at once
        try:
            file = self._file.enter_context(self.path.open("x"))
        except FileExistsError:
            self._creating = False
            return False
        os.register_at_fork(after_in_child=file.close)  # else a child would hold it on
        with contextlib.suppress(OSError):  # a file system without such locks: ages decide
            fcntl.flock(file, fcntl.LOCK_EX)
            self._mine["flock"] = True
        file.write(json.dumps(self._mine))  # last: nobody tries to lock a file that is empty
        file.flush()
        return True

    def _remove_of_a_dead_process(self) -> None:
        """Removes the lock of a process that is gone. Raises InputError if it is not."""
        other, beat = _read(self.path), self._beat()
        if beat is None:
            return  # it has just ended
        who = f"process {other.get('process')} on {other.get('host')}"
        refused = InputError(
            f"{who} is training in {self.path.parent}; wait for it, stop it, or use another"
            " --workdir"
        )
        here = all(other.get(name) == self._mine[name] for name in ("host", "boot"))
        live = None
        if here and other.get("flock"):
            live = _is_held(self.path)
        elif here and not _exists(other.get("process")):
            live = False
        if live:
            raise refused
        if live is None and (left := self._dead - self._age(beat)) > 0:
            self._say(
                f"{who} was just training here; this run starts in {left:.0f} s if it is gone"
            )
            until = time.monotonic() + left
            while time.monotonic() < until:
                time.sleep(min(1.0, self._dead / 20))
                if self._beat() is None:
                    return
                if self._beat() != beat:
                    raise refused
        self.path.unlink(missing_ok=True)
        self._say(f"{who} is gone and left its run unfinished; taking the run over")

    def _beat(self) -> int | None:
        """The time of the newest sign of life, by the disk's clock; None without a lock."""
        try:
            return self.path.stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def _age(self, beat: int) -> float:
        """Seconds since a sign of life, by the disk's clock."""
        with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=f".{FILE}.") as now:
            return max(0.0, (os.fstat(now.fileno()).st_mtime_ns - beat) / 1e9)

    def _show_life(self) -> None:
        while not self._ended.wait(self._interval):
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def release(self) -> None:
        """Lets the next run begin; a second call does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        with self._file, contextlib.suppress(OSError):
            # Empty: a signal came while it was being written.
            if self._creating and _read(self.path) in (self._mine, {}):
                self.path.unlink()


def _is_held(path: Path) -> bool | None:
    """Whether a process of this machine holds the file; None where the file system cannot say."""
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
    """Whether this machine has a process of that number."""
    try:
        os.kill(process or 0, 0)
    except ProcessLookupError:
        return False
    except OSError:  # one of somebody else
        return True
    return True


def _read(path: Path) -> dict:
    try:
        return read_json(path, _EXAMPLES)
    except InputError:
        return {}
