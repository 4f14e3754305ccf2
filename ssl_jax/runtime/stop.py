"""Handles SIGTERM, SIGINT, SIGUSR1 and SIGHUP (the terminal was closed), and prints the run's
reaction at once.

A run is idle while it has nothing unsaved (start-up, compiling the first step, the final report):
a signal then ends it immediately. While it is busy, the loop finishes the step, saves and stops.
A second SIGINT stops at once; the last checkpoint remains.
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

EXIT_PREEMPTED = 75  # EX_TEMPFAIL: nothing is lost; the same command resumes
EXIT_AT_ONCE = 130  # the shells' code for an end by SIGINT

SIGNALS: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup sets it
    SIGNALS += (signal.SIGHUP,)
PATIENCE = 3.0  # seconds in which an idle process must end by itself, before it is killed
_SOON = 0.2  # seconds in which the main thread sees a signal, unless it is inside a library
_END = b"\0"  # ends the watching thread; no signal has this number


class Interrupted(BaseException):
    """A signal ended the current work; nothing unsaved is lost."""


class Stop:
    """Decides whether and how a run stops.

    All processes must stop at the same step. A process that got a signal therefore marks its rows
    of the next batch. The metrics of that step, which every process reads at the same point of the
    loop, carry the mark to all, without further communication.

    whole: whether the process exists for this run alone, so that it may be killed.
    """

    def __init__(self, whole: bool):
        self.received = self.agreed = False
        self.patience = PATIENCE
        # Called before another thread ends the process, for example to restore the terminal.
        self.leaving: list[Callable[[], None]] = []
        self._whole, self._idle, self._raised, self._over = whole, True, False, False
        self._skipping = ""  # answer to a signal during interruptible work
        self._answer = ""
        self._decided = threading.Event()

    def idle(self) -> None:
        """Marks that nothing is unsaved: from here on a signal, even an earlier one, raises
        Interrupted."""
        self._idle = True
        if self.received and not self._raised:
            self._raise()

    def busy(self) -> None:
        """From here on, a signal only sets `received`."""
        self._idle = False

    def finish(self) -> None:
        """After a signal, ends the finished process within `patience` seconds, even if Python
        still waits for hanging threads, for example of a reader."""
        if self._whole and self.received and not self._over:
            self._over = True
            self._end_later()

    def run_interruptible(self, work: Callable[[], None], answer: str) -> None:
        """Runs `work`, such as an evaluation, and abandons it at a signal, even an earlier one.
        `agreed` is then set, so that the loop saves and stops; `answer` announces this. Only for
        runs of a single process."""
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
        """Adds to a batch whether this process received a signal."""
        import numpy as np  # here, so that signals are handled before anything large is imported

        return {**batch, "stop": np.full(len(batch["index"]), self.received)}

    def read_mark(self, metrics: dict) -> None:
        self.agreed |= bool(metrics.pop("stop"))

    def handle(self, number: int, frame: types.FrameType | None) -> None:
        """Handles a signal in the main thread, possibly late: only between Python bytecodes."""
        again = self.received and number == signal.SIGINT
        if not self.received:
            self.received, self._answer = True, self._what_happens(number)
            self._decided.set()
        if again and not self._whole:
            raise KeyboardInterrupt
        if self._idle and not self._raised and not _forgotten(frame):
            self._raise()

    def _raise(self):
        self._raised = True  # only once, so that clean-up code is not interrupted again
        raise Interrupted

    def watch(self, reading: int) -> None:
        """Answers signals whose numbers arrive through a pipe; runs in a thread, so that the answer
        also appears while the main thread compiles."""
        announced = False
        while (data := os.read(reading, 1)) and data != _END:
            number = data[0]
            if number not in SIGNALS:
                continue
            if not announced:
                announced = True
                # The main thread decides first, unless it is inside a library.
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
        hint = "; press Ctrl-C again to stop at once" if number == signal.SIGINT else ""
        return (self._skipping or "saving a checkpoint after this step") + hint

    def _end_later(self):
        ending = threading.Timer(self.patience, self._end_idle)
        ending.daemon = True
        ending.start()

    def _end_idle(self):
        # The main thread is still inside a library, for example compiling.
        if self._ends() or self._over:
            self._end(EXIT_PREEMPTED)

    def _end(self, code):
        """Ends the process without clean-up; a run survives this at any moment."""
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
    """Yields a Stop that receives the signals; a nested block yields the outer one.

    whole: see Stop; after the block, signals end the process with EXIT_PREEMPTED. Outside the main
    thread, Python delivers no signals to the Stop.
    """
    global _current
    main = threading.current_thread() is threading.main_thread()
    if _current is not None:
        if main:  # again: JAX replaces the SIGTERM handler when processes connect
            _handled_by(_current)
        yield _current
        return
    if whole:
        atexit.register(_ignore_signals)
    stop = Stop(whole)
    if not main:
        yield stop
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    watching = threading.Thread(target=stop.watch, args=(reading,), daemon=True)
    watching.start()
    previous = _handled_by(stop)
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _current = stop
    try:
        yield stop
    finally:
        _current = None
        stop.finish()
        stop.busy()
        signal.set_wakeup_fd(woken)
        for number, handler in previous.items():
            signal.signal(number, _leave if whole else handler)
        os.write(writing, _END)
        watching.join(PATIENCE)  # a thread writing to stdout while Python exits makes it abort
        os.close(writing)
        os.close(reading)


def end(code: int) -> None:
    """Ends the process without clean-up, from any thread."""
    if _current is not None:
        _current._end(code)
    os._exit(code)


def take_back() -> None:
    """Gives the signals back to Python's handlers. JAX's service for several processes takes
    SIGTERM, which would then go unnoticed until training starts. Only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if handler is not None:
            signal.signal(number, handler)


def leave_last() -> float:
    """Delays the end of the coordinating process until after the others. Returns the seconds by
    which it must wait."""
    if _current is not None:
        _current.patience = 1.5 * PATIENCE
    return 1.5 * PATIENCE


def _handled_by(stop):
    """Sets the handlers and returns the previous ones."""
    return {number: signal.signal(number, stop.handle) for number in SIGNALS}


def _forgotten(frame: types.FrameType | None) -> bool:
    """Whether Python would only print an exception raised in this frame, as during garbage
    collection. `Stop.watch` then ends the process a little later."""
    callbacks = [getattr(function, "__code__", None) for function in gc.callbacks]
    while frame is not None:
        if frame.f_code in callbacks or frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def _leave(number: int, frame: object) -> None:
    os._exit(EXIT_PREEMPTED)


def _ignore_signals() -> None:
    """Ignores signals during interpreter shutdown, when the default handler would kill it."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
