"""Weights from elsewhere under our paths, and the report of what became of them."""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple


class Weights(NamedTuple):
    """A tree of weights from elsewhere, under our paths.

    source: the file or folder, for messages.
    title: whose weights, for messages.
    arrays: {path: array}.
    names: {path: what the source calls it}.
    left: names in the source that have no path.
    model: what a config's `model` section must say for these weights to mean here what they meant
      there.
    note: what nobody can check, for the report.
    norm_eps: of their LayerNorms, which a config may change; None: unknown, or in `model`.
    """

    source: str
    title: str
    arrays: dict[str, Any]
    names: dict[str, str]
    left: tuple[str, ...]
    model: dict[str, Any]
    note: str = ""
    norm_eps: float | None = None


class Source(NamedTuple):
    """All that is in one place.

    family: key of tables.FAMILIES; "" for our own checkpoints.
    method: ours that the weights belong to; "" if to none in particular.
    trees: by part, "student" or "teacher", or "" where nothing says which.
    """

    family: str
    method: str
    trees: dict[str, Weights]

    def tree(self, part: str) -> Weights:
        """The tree of that part, or else the one there is."""
        return next(self.trees[key] for key in (part, "", *self.trees) if key in self.trees)


class Report(NamedTuple):
    """What became of every tensor. str() is the text for a log.

    matched: {our path: name in the source}.
    left: names in the source that went nowhere.
    missing: our paths that keep their values.
    notes: what was changed beyond transposition, and what to look after.
    """

    source: str
    title: str
    matched: dict[str, str]
    left: tuple[str, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.source}: {self.title}; loaded {len(self.matched)} of"
            f" {len(self.matched) + len(self.missing)} parameters"
        ]
        lines += [f"  newly initialised: {brief(self.missing)}"] if self.missing else []
        lines += [f"  not used: {brief(self.left)}"] if self.left else []
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def brief(names: Iterable[str], most: int = 12) -> str:
    """Names on one line: those that differ in numbers only are one ("blocks/*/norm1/scale x 12"),
    and of many only the first.
    """
    counts: dict[str, int] = {}
    for name in names:
        key = re.sub(r"(?<![^/.])\d+(?![^/.])", "*", name)
        counts[key] = counts.get(key, 0) + 1
    texts = [f"{key} x {count}" if count > 1 else key for key, count in counts.items()]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")
