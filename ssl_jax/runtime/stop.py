"""Handles SIGTERM, SIGINT and SIGUSR1, and prints at once what the run will do.

A run is idle while nothing of it is unsaved (start-up, compiling the first step, the final report):
then a signal ends it there. While it is busy, a signal waits for the loop, which saves after the
step and stops. A second SIGINT stops at once; the last checkpoint stays.
"""

import atexit
import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator

EXIT_PREEMPTED = 75  # EX_TEMPFAIL: nothing is lost; the same command continues
EXIT_AT_ONCE = 130  # as shells call an end by SIGINT

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
PATIENCE = 3.0  # seconds that an idle process has to end by itself, before it is ended
_SOON = 0.2  # in which it sees the signal itself, unless it is in a library
_END = b"\0"  # no signal has this number


class Interrupted(BaseException):
    """A signal ended what was being done; nothing that had to be saved is lost."""


class Stop:
    """Says whether to stop, and how.

    All processes must stop at the same step, and one process must not change its mind on the way.
    So a process that got a signal marks its part of the next batch, and the metrics of that step,
    which every process reads at the same point of the loop, carry it to all: none waits for an
    answer.

    whole: whether the process has nothing to do but this run, so that it may be ended.
    """

    def __init__(self, whole: bool):
        self.received = self.agreed = False
        self.patience = PATIENCE
        # Called before the process is ended from outside the main thread: to restore a terminal.
        self.leaving: list[Callable[[], None]] = []
        self._whole, self._idle, self._raised, self._over = whole, True, False, False
        self._skipping = ""  # what is left out when a signal comes
        self._answer = ""
        self._decided = threading.Event()

    def idle(self) -> None:
        """Notes that nothing is unsaved from here on: a signal raises Interrupted, also one that
        came before."""
        self._idle = True
        if self.received and not self._raised:
            self._raise()

    def busy(self) -> None:
        """Lets a signal only set `received` from here on."""
        self._idle = False

    def finish(self) -> None:
        """Ends the process after a signal within `patience`, as nothing is left to do, whatever
        else it waits for, as Python does for the threads of a reader that hangs."""
        if self._whole and self.received and not self._over:
            self._over = True
            self._end_later()

    def run_interruptible(self, work: Callable[[], None], answer: str) -> None:
        """Runs `work`, such as an evaluation, and leaves it when a signal comes or came; then
        `agreed` is set, for the loop to save the step and stop, as `answer` says. For one process:
        several must stay together."""
        self._skipping, self._idle = answer, True
        try:
            if self.received:
                self._raise()
            work()
        except Interrupted:
            self.agreed = True
        finally:
            self._idle, self._raised, self._skipping = False, False, ""

    def mark(self, batch: dict) -> dict:
        """Adds this process's mark to a batch."""
        import numpy as np  # here, so that signals are handled before anything large is imported

        return {**batch, "stop": np.full(len(batch["index"]), self.received)}

    def read_mark(self, metrics: dict) -> None:
        self.agreed |= bool(metrics.pop("stop"))

    def handle(self, number: int, frame: types.FrameType | None) -> None:
        """Handles a signal, in the main thread: between two lines of Python, so perhaps late."""
        again = self.received and number == signal.SIGINT
        if not self.received:
            self.received, self._answer = True, self._what_happens(number)
            self._decided.set()
        if again and not self._whole:
            raise KeyboardInterrupt
        if self._idle and not self._raised and not _forgotten(frame):
            self._raise()

    def _raise(self):
        self._raised = True  # once: not again in what cleans up behind it
        raise Interrupted

    def watch(self, reading: int) -> None:
        """Answers signals whose numbers come through a pipe: in a thread, so that the answer also
        comes while the main thread compiles."""
        announced = False
        while (data := os.read(reading, 1)) and data != _END:
            number = data[0]
            if number not in _SIGNALS:
                continue
            if not announced:
                announced = True
                # The main thread knows what it will do, unless it is deep in a library.
                decided = self._decided.wait(_SOON)
                answer = self._answer if decided else self._what_happens(number)
                print(f"{signal.Signals(number).name}: {answer}", flush=True)
                if self._whole and self._ends():
                    self._end_later()
            elif number == signal.SIGINT and self._whole:
                print(
                    "stopped at once; run the same command again to resume from the last"
                    f" checkpoint (exit code {EXIT_AT_ONCE})",
                    flush=True,
                )
                self._end(EXIT_AT_ONCE)

    def _ends(self):
        return self._idle and not self._skipping

    def _what_happens(self, number):
        if self._ends():
            return (
                "stopping now; nothing is lost, run the same command again to resume (exit code"
                f" {EXIT_PREEMPTED})"
            )
        again = "; press Ctrl-C again to stop at once" if number == signal.SIGINT else ""
        return (self._skipping or "saving a checkpoint after this step") + again

    def _end_later(self):
        ending = threading.Timer(self.patience, self._end_idle)
        ending.daemon = True
        ending.start()

    def _end_idle(self):
        # The main thread is still deep in a library, compiling for example.
        if self._ends() or self._over:
            self._end(EXIT_PREEMPTED)

    def _end(self, code):
        """Ends the process as a kill would, which a run survives at any moment."""
        for restore in self.leaving:
            with contextlib.suppress(Exception):
                restore()
        for child in multiprocessing.active_children():
            child.kill()
        sys.stdout.flush()
        os._exit(code)


_current: Stop | None = None


@contextlib.contextmanager
def listening(*, whole: bool = False) -> Iterator[Stop]:
    """Signals go to the Stop that is yielded; within another such block to that of the other.

    whole: see Stop; after the block, signals end the process with EXIT_PREEMPTED. Outside the main
    thread, where Python has no signals, no Stop gets one.
    """
    global _current
    if _current is not None:
        _handled_by(_current)  # again: JAX takes SIGTERM for itself when processes connect
        yield _current
        return
    if whole:
        atexit.register(_ignore_signals)
    stop = Stop(whole)
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    watching = threading.Thread(target=stop.watch, args=(reading,), daemon=True)
    watching.start()
    before = _handled_by(stop)
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _current = stop
    try:
        yield stop
    finally:
        _current = None
        stop.finish()
        stop.busy()
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, _leave if whole else handler)
        os.write(writing, _END)
        watching.join(PATIENCE)  # a thread that writes to stdout while Python ends makes it abort
        os.close(writing)
        os.close(reading)


def leave_last() -> float:
    """Lets this process, which the others cannot do without, end after them. Returns the seconds
    that it leaves them."""
    if _current is not None:
        _current.patience = 1.5 * PATIENCE
    return 1.5 * PATIENCE


def _handled_by(stop):
    """Sets the handlers; returns those before."""
    return {number: signal.signal(number, stop.handle) for number in _SIGNALS}


def _forgotten(frame: types.FrameType | None) -> bool:
    """Whether Python would print and forget an exception raised there: where it collects garbage.
    Then the process is ended a little later, see `Stop.watch`."""
    callbacks = [getattr(function, "__code__", None) for function in gc.callbacks]
    while frame is not None:
        if frame.f_code in callbacks or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _leave(number: int, frame: object) -> None:
    os._exit(EXIT_PREEMPTED)


def _ignore_signals() -> None:
    """Ignores signals in the last moments of the process, when Python would let one kill it."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
