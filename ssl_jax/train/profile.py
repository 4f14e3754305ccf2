"""A trace of a few training steps, and which operations they spend their time on."""

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
    """Which steps are traced: so many from step `first` on."""

    first: int
    number: int


def parse(text: str) -> Steps:
    """The steps of "STEP:COUNT". Raises InputError."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or not int(match[1]) or not int(match[2]):
        raise InputError(
            f'--profile is "{text}"; give the first step and how many, such as --profile=20:5'
            " (the first steps also compile)"
        )
    return Steps(int(match[1]), int(match[2]))


class Cost(NamedTuple):
    """The time that the operations of one line of code took in all traced steps.

    where: line of this package, or what JAX calls the operation. name: XLA's, of the costliest of
    them. times: how often they ran on all devices. seconds: without the operations that they call.
    """

    where: str
    name: str
    times: int
    seconds: float


class Profiler:
    """Traces some steps of a run into a folder; None: no steps."""

    def __init__(self, steps: Steps | None, folder: Path):
        self._steps, self._folder = steps, folder
        self._began: int | None = None
        self._last: Any = None

    def close(self) -> None:
        """Ends a trace whose last step never came."""
        if self._steps and self._began is not None:
            jax.profiler.stop_trace()

    def before(self, step: int) -> None:
        """To be called before a step is started; begins the trace at the first traced step."""
        if self._steps and self._began is None and step >= self._steps.first:
            jax.block_until_ready(self._last)  # steps before it may still be at work
            jax.profiler.start_trace(str(self._folder))
            self._began = step

    def after(self, step: int, result: Any, text: Callable[[], str | None]) -> str | None:
        """To be called when a step was started; writes the trace after the last one.

        result: arrays of the step's. text: gives the compiled step as text.

        Returns what people should read when it is written, else None.
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
    """The operations of a trace by line of code, the costliest first.

    file: .xplane.pb, as jax.profiler writes it. lines: {operation: line} of the program.
    """
    of_kernel = {_kernel(name): name for name in lines}
    durations: dict[str, list[float]] = defaultdict(list)
    for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
        for line in plane.lines:
            # A TPU has a line for operations alone, a GPU one for each stream; elsewhere they say
            # of themselves what they are.
            all_are = line.name == "XLA Ops" or line.name.startswith("Stream")
            events = []
            for event in line.events:
                operation = dict(event.stats).get("hlo_op", "")
                if all_are and operation not in lines:  # a kernel of a CUDA graph
                    operation = of_kernel.get(event.name, event.name)
                if operation:
                    events.append((event.start_ns, event.duration_ns, operation))
            for name, seconds in _exclusive_times(events):
                durations[name].append(seconds)
    by_line: dict[str, Cost] = {}
    for name, times in sorted(durations.items(), key=lambda item: -sum(item[1])):
        where = lines.get(name) or name
        line = by_line.setdefault(where, Cost(where, name, 0, 0.0))
        by_line[where] = Cost(where, line.name, line.times + len(times), line.seconds + sum(times))
    return sorted(by_line.values(), key=lambda cost: -cost.seconds)


def _kernel(operation: str) -> str:
    """XLA's name for the kernel of an operation on a GPU."""
    return re.sub(r"\W", "_", operation)


def _exclusive_times(events):
    """(name, seconds) of events of one line, without the events inside them: a loop does not count
    for what it runs."""
    inside: list[list] = []  # [end, name, exclusive nanoseconds], the innermost last
    for start, duration, name in sorted(events, key=lambda event: (event[0], -event[1])):
        while inside and inside[-1][0] <= start:
            _, done, nanoseconds = inside.pop()
            yield done, nanoseconds / 1e9
        if inside:
            inside[-1][2] -= duration
        inside.append([start + duration, name, duration])
    for _, done, nanoseconds in inside:
        yield done, nanoseconds / 1e9


def table(costs: list[Cost], steps: int, folder: Path) -> str:
    """The costliest lines as a table."""
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
