"""Estimates the time to the end of training."""

import collections
from typing import Any

from ssl_jax.train import log

_WINDOW = 500  # latest steps whose speed predicts that of the next ones
_MEASURED = 8  # latest evaluations (or saves) whose mean time predicts that of the next ones


class Eta:
    """Estimates the time to the end of training from measured steps, evaluations and saves.

    `str` also names the parts without an estimate: evaluations before the first measurement, and
    the final report.
    """

    def __init__(self, config: Any):
        self._total = config.run.total_steps
        evaluating = config.evals.every_steps if config.evals.tasks else 0
        self._every = {"evaluation": evaluating, "save": config.checkpoint.every_steps}
        self._report = " + report" if config.evals.tasks else ""
        self._took: dict[str, list[float]] = {name: [] for name in self._every}
        self._last, self._count = dict.fromkeys(self._every, 0), dict.fromkeys(self._every, 0)
        self._steps: collections.deque = collections.deque(maxlen=_WINDOW + 1)

    def begin(self, at: int) -> None:
        """Sets the last finished step."""
        self._last = dict.fromkeys(self._every, at)

    def step(self, done: int, training: float) -> None:
        """Records that step `done` finished after `training` seconds of training."""
        self._steps.append((done, training))

    def evaluated(self, at: int, seconds: float) -> None:
        """Records the duration of the evaluation at step `at`."""
        self._note("evaluation", at, seconds)

    def saved(self, at: int, seconds: float) -> None:
        """Records the duration of the save at step `at`."""
        self._note("save", at, seconds)

    def _note(self, kind, at, seconds):
        # The first measurement includes warm-up (opening files); the second one replaces it.
        self._count[kind] += 1
        earlier = self._took[kind] if self._count[kind] != 2 else []
        self._took[kind], self._last[kind] = [*earlier, seconds][-_MEASURED:], at

    def left(self) -> tuple[float, int] | None:
        """Returns (seconds, number of evaluations not included), or None before two finished
        steps."""
        if len(self._steps) < 2:
            return None
        (first, began), (done, now) = self._steps[0], self._steps[-1]
        seconds, unknown = (self._total - done) * (now - began) / (done - first), 0
        for kind, every in self._every.items():
            # The run ends with a save; its last evaluation is part of the report.
            due = (self._total - 1) // every + (kind == "save") if every else 0
            count = due - self._last[kind] // every if every else 0
            took = self._took[kind]
            if took:
                seconds += count * sum(took) / len(took)
            elif kind == "evaluation":
                unknown = count
        return seconds, unknown

    def __str__(self) -> str:
        remaining = self.left()
        if remaining is None:
            return "?"
        seconds, unknown = remaining
        more = f" + {unknown} evaluation{'s' if unknown > 1 else ''}" if unknown else ""
        return log.clock(seconds) + more + self._report
