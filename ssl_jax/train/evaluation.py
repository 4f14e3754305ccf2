"""The interface of the training loop to evaluations; `report.evaluation` implements it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

Scores = Mapping[str, float]


class Evaluation(Protocol):
    """Scores a network during a run and at its end.

    `params` is the teacher's tree if there is a teacher; `constants` are the method's.
    """

    @property
    def tasks(self) -> Sequence[str]:
        """Names of the evaluations; may be empty."""

    def open(self) -> None:
        """Opens the data sets. Raises InputError if one cannot be opened."""

    def __call__(self, params: Any, constants: Any = None, *, draw_next: bool = False) -> Scores:
        """Computes all scores of these weights. draw_next: whether `draw` follows."""

    def compare(self, params: Any, constants: Any = None) -> Mapping[str, Scores]:
        """Computes {row: scores}, see `evals.registry.ROWS`."""

    def draw(self, params: Any, constants: Any, folder: Path, tables: Path) -> Sequence[Path]:
        """Draws the pictures of these weights into `folder` and returns their paths."""

    def publish(
        self, results: Mapping[str, Scores], params: Any, constants: Any, folder: Path
    ) -> Sequence[Path]:
        """Prints a comparison, writes it to the run directory and returns the pictures' paths."""
