"""Reports where a process hangs."""

import faulthandler
import sys
import threading
import time
from typing import TextIO

import jax


class Watchdog:
    """Reports where a process hangs, for example in a collective that another one never joined.

        watchdog = Watchdog(seconds=600)
        watchdog.phase("step 12")        # begins a new phase

    When a phase lasts longer than `seconds`, its name, the process and the stack of each thread go
    to `stream` (default: stderr), and again after each doubling of that time. For a compilation no
    stacks are printed. 0 seconds switch the watchdog off.
    """

    def __init__(self, seconds: float, stream: TextIO | None = None):
        self._seconds, self._stream = seconds, stream or sys.stderr
        self._name, self._since, self._compiling = "start", time.monotonic(), False
        self._ended = threading.Event()
        if seconds:
            threading.Thread(target=self._watch, daemon=True).start()

    def phase(self, name: str, *, compiling: bool = False) -> None:
        self._name, self._since, self._compiling = name, time.monotonic(), compiling

    def close(self) -> None:
        self._ended.set()

    def _watch(self) -> None:
        warned, limit = 0.0, self._seconds
        while not self._ended.wait(min(1.0, self._seconds / 4)):
            since, silent = self._since, time.monotonic() - self._since
            if since != warned:
                limit = self._seconds
            if silent > limit:
                warned, limit = since, 2 * limit
                compiling = self._compiling
                message = (
                    f"still {self._name} after {silent:.0f} s; large networks take many minutes"
                    if compiling
                    else f"no progress for {silent:.0f} s in: {self._name}"
                )
                where = f"process {jax.process_index()} of {jax.process_count()}"
                print(f"{where}: {message}", file=self._stream, flush=True)
                if not compiling:
                    faulthandler.dump_traceback(file=self._stream)
