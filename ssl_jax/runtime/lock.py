"""One run at a time in a run folder."""

import contextlib
import json
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ssl_jax.config import InputError, read_json

FILE = "lock.json"
_EXAMPLES = {"host": "", "boot": "", "process": 0, "started": "", "lock": ""}  # what it holds
_BEAT = 10.0  # seconds from one sign of life to the next
_DEAD = 90.0  # seconds without one after which a process of another machine is taken for gone


class Lock:
    """Of the run folder `workdir`, which must exist: a file with host and process id that shows a
    sign of life every few seconds. Reading a run needs none.

    A lock that a killed process left is taken over: on the same machine at once, as the process can
    be looked for; from another machine, as a requeued job does, after 90 seconds without a sign of
    life. Ages are differences of times of the folder's own disk, so that clocks may differ.

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
        self.path, self._say, self._dead = workdir / FILE, say, dead
        self._beats, self._mine, self._made = beat, _myself(), False
        self._ended = threading.Event()

    def take(self) -> "Lock":
        """Raises InputError if another process trains there."""
        while not self._created():
            self._wait_for_the_other()
        threading.Thread(target=self._live, daemon=True).start()
        return self

    def _created(self):
        """Whether the file could be made; not where there is one."""
        try:
            self._made = True  # before: a signal may come at once
            with self.path.open("x") as file:
                json.dump(self._mine, file)
        except FileExistsError:
            self._made = False
        return self._made

    def _wait_for_the_other(self):
        """Takes the lock of a process that is gone out of the way. Raises InputError if it is
        not."""
        other, beat = _read(self.path), self._beat()
        if beat is None:
            return  # it has just ended
        who = f"process {other.get('process')} on {other.get('host')}"
        refused = InputError(
            f"{who} is training in {self.path.parent}; wait for it, stop it, or use another"
            " --workdir"
        )
        if _here(other, self._mine):
            if _alive(other):
                raise refused
        elif (left := self._dead - self._age()) > 0:
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

    def _beat(self):
        """The time of the newest sign of life, by the disk's clock; None without a lock."""
        try:
            return self.path.stat().st_mtime_ns
        except FileNotFoundError:
            return None

    def _age(self):
        """Seconds since then, by the same clock."""
        with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=f".{FILE}.") as now:
            made = os.fstat(now.fileno()).st_mtime
        with contextlib.suppress(FileNotFoundError):
            return max(0.0, made - self.path.stat().st_mtime)
        return 0.0

    def _live(self):
        while not self._ended.wait(self._beats):
            with contextlib.suppress(OSError):
                os.utime(self.path)

    def release(self) -> None:
        """The next run may begin; again does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        with contextlib.suppress(OSError):
            # Empty: a signal came while it was being written.
            if self._made and _read(self.path) in (self._mine, {}):
                self.path.unlink()


def _myself() -> dict:
    return {
        "host": socket.gethostname(),
        "boot": _text(Path("/proc/sys/kernel/random/boot_id")),
        "process": os.getpid(),
        "started": _started(os.getpid()),
        "lock": secrets.token_hex(8),  # of several in one process
    }


def _read(path):
    try:
        return read_json(path, _EXAMPLES)
    except InputError:
        return {}


def _here(other, mine):
    """Whether it was written on this machine since it was switched on."""
    return (other.get("host"), other.get("boot")) == (mine["host"], mine["boot"])


def _alive(other):
    """Whether the process of a lock of this machine still is one."""
    try:
        os.kill(other["process"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is another user's
    # Numbers of processes are used again: the same process began at the same time.
    return other.get("started") == _started(other["process"])


def _started(process):
    """When a process began, in ticks since the machine was switched on; "" where unknown."""
    fields = _text(Path(f"/proc/{process}/stat")).rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""


def _text(path):
    try:
        return path.read_text().strip()
    except OSError:
        return ""
