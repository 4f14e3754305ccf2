"""Shows the progress of a run: one live line on a terminal, else plain lines for a log file. Its
clock counts only training, without compilation, evaluation and saving.
"""

import contextlib
import functools
import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
from rich.console import Console as Terminal
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ssl_jax.runtime import distributed, progress
from ssl_jax.runtime.watchdog import Watchdog
from ssl_jax.train import log, step
from ssl_jax.train.eta import Eta

_BAR = 24  # characters
_LIVE = 4  # refreshes of the live line per second
_JOIN = 5  # seconds to wait for the end of the thread
_SLOW = 5  # seconds after which the live line names the current step


class Took:
    """Duration of a phase in seconds, and the part of it that was compilation."""

    seconds = compiling = 0.0


class Console:
    """Shows the state of a run and measures its speed. Process 0 prints; every process has a
    watchdog.

        with Console(run) as console:
            console.begin(at)
            with console.phase("evaluating at step 50"): ...

    After `log.every_seconds` without a line, it prints the current activity.
    """

    def __init__(self, run: Any):
        self._run, config = run, run.config
        self._total, self._batch = config.run.total_steps, config.optim.batch_size
        self._every = config.log.every_seconds
        self._devices = run.mesh.devices.flatten()
        self._first = distributed.is_first()
        self._eta = Eta(config)
        self._lock = threading.RLock()
        self._doing, self._detail = "starting", ""  # "" = training
        self._opened = time.perf_counter()
        self._doing_since = self._spoken = self._began = self._opened
        self._apart = 0.0  # seconds since the beginning spent outside training
        self._paused: float | None = None  # time at which training was paused
        self._at = 0  # the last finished step, and its scalars
        self._metrics: dict = {}
        self._shown: dict | None = None  # the last row, and the clock's values at it
        self._row, self._row_training, self._waited, self._row_waited = 0, 0.0, 0.0, 0.0
        self._ended = threading.Event()
        self._live: Live | None = None
        self._speaker: threading.Thread | None = None

    def __enter__(self) -> "Console":
        self._watchdog = Watchdog(self._run.config.log.silent_seconds)
        if not self._first:
            return self
        terminal = Terminal()
        if terminal.is_terminal and not terminal.is_dumb_terminal:
            self._live = Live(
                console=terminal,
                get_renderable=self._line,
                refresh_per_second=_LIVE,
                transient=True,
            )
            self._live.start()
        elif self._every:
            self._speaker = threading.Thread(target=self._speak_up, daemon=True)
            self._speaker.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._watchdog.close()
        if self._speaker is not None:
            # Python aborts if a thread writes to stdout during interpreter shutdown.
            self._speaker.join(_JOIN)
        self.restore()

    def restore(self) -> None:
        """Removes the live line from the terminal."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        if self._first:
            with self._lock:
                self._spoken = time.perf_counter()
                if self._live is None:
                    print(f"{text}\n", end="", flush=True)  # in one write: signals print lines too
                else:  # verbatim: rich would break paths at the edge and interpret [brackets]
                    plain: dict = dict(markup=False, highlight=False, emoji=False)
                    self._live.console.print(text, soft_wrap=True, **plain)

    def close(self, workdir: Path, scored: bool) -> None:
        """Prints the last lines of a run: the place of its results and the next commands."""
        is_below = workdir.is_relative_to(Path.cwd())
        path = shlex.quote(str(workdir.relative_to(Path.cwd()) if is_below else workdir))
        contents = "results.txt, pictures/ and checkpoints/" if scored else "checkpoints/"
        took = log.clock(time.perf_counter() - self._opened)
        self.say(f"finished in {took}; {path} holds {contents}")
        score = f"ssl-jax eval {path}" + ("" if scored else " --add=knn")
        self.say(f"next: {score}   ssl-jax report {path}")

    # --- current activity

    @contextlib.contextmanager
    def phase(self, name: str, *, compiling: bool = False) -> Iterator[Took]:
        """Shows the block as `name`, with its reports to `progress`, and excludes its time from
        training."""
        took, compiled = Took(), _compiler.seconds
        began = time.perf_counter()
        paused, self._paused = self._paused, began if self._paused is None else self._paused
        outer = self._doing
        self._doing, self._doing_since = name, began
        self._watchdog.phase(name, compiling=compiling)
        try:
            with progress.shown_by(self._detailed):
                yield took
        finally:
            now = time.perf_counter()
            took.seconds, took.compiling = now - began, _compiler.seconds - compiled
            self._paused = paused
            if paused is None:
                self._apart += now - began
            self._doing, self._doing_since = outer, now
            self._detail = ""
            self._watchdog.phase("the next step")

    def _detailed(self, text):
        self._detail = text
        self._watchdog.phase(f"{self._doing}: {text}")

    def now(self, name: str) -> None:
        """Tells the watchdog the next part of a step."""
        self._watchdog.phase(name)

    def begin(self, at: int) -> None:
        """Starts the clock of training, after step `at`."""
        self._doing = ""
        self._began = self._doing_since = time.perf_counter()
        self._apart = 0.0
        self._at = self._row = at
        self._eta.begin(at)

    def waiting(self, fetch: Callable[[], Any]) -> Any:
        """Runs `fetch` and counts its time as waiting for input."""
        began = time.perf_counter()
        result = fetch()
        self._waited += time.perf_counter() - began
        return result

    def finished(self, done: int, metrics: dict) -> None:
        """Records that step `done` is finished. metrics: its scalars, on the device."""
        self._at, self._metrics = done, metrics
        self._doing_since = time.perf_counter()
        self._eta.step(done, self.training())

    def evaluated(self, at: int, took: Took) -> None:
        """Records the time of an evaluation during training."""
        self._eta.evaluated(at, took.seconds - took.compiling)

    def saved(self, at: int, took: Took) -> None:
        """Records the time that saving a checkpoint took from training."""
        self._eta.saved(at, took.seconds)

    # --- numbers

    def training(self) -> float:
        """Seconds of training since `begin`."""
        now = time.perf_counter()
        paused = 0.0 if self._paused is None else now - self._paused
        return now - self._began - self._apart - paused

    def timing(self, done: int) -> dict:
        """Clock columns since the last row, which count training alone; only `seconds` is all time
        since `begin`."""
        columns = self._speed(done)
        self._row, self._row_training, self._row_waited = done, self.training(), self._waited
        return columns

    def _speed(self, done):
        seconds = max(self.training() - self._row_training, 1e-9)
        rate = self._batch * (done - self._row) / seconds
        return {
            "images_per_second": rate,
            "data_wait": (self._waited - self._row_waited) / seconds,
            "mfu": self._mfu(rate),
            "memory_mib": log.memory_mib(),
            "seconds": time.perf_counter() - self._began,
        }

    def _mfu(self, rate):
        """Model FLOPs utilisation; None if the devices' peak is unknown."""
        peak = log.peak_flops(self._devices)
        return None if peak is None else rate * self._flops / peak

    @functools.cached_property
    def _flops(self) -> float:
        return step.flops_per_image(self._run.config, self._run.abstract)

    # --- lines

    def show(self, row: dict, remarks: Iterable[str] = ()) -> None:
        """Prints the line of a row of metrics, and remarks below it."""
        self._shown = row
        self.say(log.progress_line(row, self._total, str(self._eta)))
        for text in remarks:
            self.say(f"  {text}")

    def _text(self) -> str:
        """The current activity in one line."""
        since = log.clock(time.perf_counter() - self._doing_since)
        if self._doing:
            detail = f": {self._detail}" if self._detail else ""
            return f"{self._doing}{detail} ... {since}"
        if not self._metrics:
            return f"step {self._at + 1}/{self._total} ... {since}"
        row = self._shown
        if self._at > self._row or row is None:
            values = {name: self._metrics[name] for name in ("loss", "lr")}
            row = {"step": self._at, **log.scalars(values), **self._speed(self._at)}
        text = log.progress_line(row, self._total, str(self._eta))
        slow = time.perf_counter() - self._doing_since > _SLOW
        return f"{text}  (step {self._at + 1} ... {since})" if slow else text

    def _speak_up(self):
        """Prints the current activity after a long silence; runs in a thread."""
        while not self._ended.wait(min(1.0, self._every / 4)):
            if time.perf_counter() - self._spoken >= self._every:
                self.say(self._text())

    def _line(self):
        grid = Table.grid(padding=(0, 1))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        bar = ProgressBar(self._total, self._at, width=_BAR)
        grid.add_row(bar, Text(" ".join(self._text().split()), no_wrap=True, overflow="ellipsis"))
        return grid


class _Compiler:
    """Sums the seconds that XLA compiles in this process."""

    _EVENTS = (
        "/jax/core/compile/jaxpr_to_mlir_module_duration",
        "/jax/core/compile/backend_compile_duration",
    )

    def __init__(self):
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, duration_secs: float, **details: Any) -> None:
        if event in self._EVENTS:
            self.seconds += duration_secs


_compiler = _Compiler()
