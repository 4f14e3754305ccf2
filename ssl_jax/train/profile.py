"""Traces a few training steps and lists their most expensive operations."""

import math
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from ssl_jax.config import InputError
from ssl_jax.train import program

_SHOWN = 10


class Steps(NamedTuple):
    """The steps to trace: `number` steps from step `first` on."""

    first: int
    number: int


def parse(text: str) -> Steps:
    """Parses "STEP:COUNT". Raises InputError."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or not int(match[1]) or not int(match[2]):
        raise InputError(
            f'--profile is "{text}"; give the first step and how many, such as --profile=20:5'
            " (the first steps also compile)"
        )
    return Steps(int(match[1]), int(match[2]))


class Cost(NamedTuple):
    """Time of the operations from one line of code in all traced steps.

    where: line of this package, or JAX's op name. name: XLA's name of the costliest operation.
    times: number of runs on all devices. seconds: without the operations that they call.
    """

    where: str
    name: str
    times: int
    seconds: float


class Profiler:
    """Traces steps of a run into a folder; with steps=None it does nothing."""

    def __init__(self, steps: Steps | None, folder: Path):
        self._steps, self._folder = steps, folder
        self._began: int | None = None
        self._last: Any = None

    def close(self) -> None:
        """Ends a trace whose last step was not reached."""
        if self._steps and self._began is not None:
            jax.profiler.stop_trace()

    def before(self, step: int) -> None:
        """Call it before starting a step; it begins the trace at the first traced step."""
        if self._steps and self._began is None and step >= self._steps.first:
            jax.block_until_ready(self._last)  # earlier steps may still be running
            jax.profiler.start_trace(str(self._folder))
            self._began = step

    def after(self, step: int, result: Any, text: Callable[[], str | None]) -> str | None:
        """Call it after starting a step; it writes the trace after the last traced step.

        result: arrays of the step. text: returns the compiled step as text.

        Returns the table for the console once the trace is written, else None.
        """
        self._last = result if self._steps and self._began is None else None
        if not self._steps or self._began is None or step + 1 < self._began + self._steps.number:
            return None
        jax.block_until_ready(result)
        jax.profiler.stop_trace()
        steps, self._steps = step + 1 - self._began, None
        file = max(self._folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
        return table(costs(file, program.where(text() or "")), steps, self._folder)


def costs(file: Path, lines: dict[str, str]) -> list[Cost]:
    """Costs of a trace by line of code, the highest first.

    file: the .xplane.pb of jax.profiler. lines: {operation: line} of the program.
    """
    of_kernel = {_kernel(name): name for name in lines}
    durations: dict[str, list[float]] = defaultdict(list)
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            # A TPU has a separate line for operations, a GPU one for each stream; elsewhere the
            # events of operations have the statistic "hlo_op".
            all_are = line.name == "XLA Ops" or line.name.startswith("Stream")
            events = []
            for event in line.events:
                operation = dict(event.stats).get("hlo_op", "")
                if all_are and operation not in lines:  # a kernel of a CUDA graph
                    operation = of_kernel.get(event.name, event.name)
                if operation:
                    events.append((event.start_ns, event.duration_ns, operation))
            for name, seconds in exclusive_times(events):
                durations[name].append(seconds)
    by_line: dict[str, Cost] = {}
    for name, times in sorted(durations.items(), key=lambda item: -sum(item[1])):
        where = lines.get(name) or name
        line = by_line.setdefault(where, Cost(where, name, 0, 0.0))
        by_line[where] = Cost(where, line.name, line.times + len(times), line.seconds + sum(times))
    return sorted(by_line.values(), key=lambda cost: -cost.seconds)


def _kernel(operation: str) -> str:
    """XLA's name for an operation's GPU kernel."""
    return re.sub(r"\W", "_", operation)


def exclusive_times(events: list[tuple[float, float, str]]) -> list[tuple[str, float]]:
    """(name, seconds) of each event of one line: every moment counts for the event that began last,
    so that the time of a loop excludes its body and that of a kernel the one beside it.

    events: (start, duration, name), in nanoseconds.
    """
    events = sorted(events, key=lambda event: (event[0], -event[1]))
    own, now = [0.0] * len(events), 0.0
    running: list[int] = []
    for number, (start, _, _) in enumerate([*events, (math.inf, 0.0, "")]):
        while running and now < start:
            began, duration, _ = events[running[-1]]
            until = min(start, began + duration)
            own[running[-1]] += max(0.0, until - now)
            now = max(now, until)
            if began + duration <= now:
                running.pop()
        now = start
        running.append(number)
    return [(name, spent / 1e9) for (_, _, name), spent in zip(events, own, strict=True)]


def table(costs: list[Cost], steps: int, folder: Path) -> str:
    """The costliest lines of code as a table."""
    total = sum(cost.seconds for cost in costs) or 1.0
    rows = [
        f"  {100 * cost.seconds / total:5.1f} %  {1e3 * cost.seconds / steps:9.3f} ms"
        f"  {cost.times / steps:8.0f} x  {cost.name:<24}  {cost.where}"
        for cost in costs[:_SHOWN]
    ]
    head = (
        f"profile of {steps} steps in {folder} (xprof and Perfetto open it):"
        f" {1e3 * total / steps:.1f} ms a step on all devices and threads together"
    )
    title = f"{'share':>9}{'time a step':>14}{'operations':>12}  {'the costliest':<24}  line"
    return "\n".join([head, title, *rows])
