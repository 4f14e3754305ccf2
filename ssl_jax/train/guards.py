"""Watches a run for non-finite steps and unreadable images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import base, listing
from ssl_jax.runtime import distributed


class NonFinite:
    """Ends a run after `limit` consecutive steps with a non-finite loss or gradient (0 = never)."""

    def __init__(self, limit: int):
        self._limit, self._row = limit, 0

    def check(self, done: int, metrics: Mapping[str, Any]) -> None:
        """Raises InputError if step `done` reached the limit."""
        if bool(metrics["finite"]):
            self._row = 0
            return
        self._row += 1
        if distributed.is_first():
            print(
                f"  warning: skipped step {done}, whose loss or gradient is not finite"
                f" ({int(metrics['nonfinite'])} skipped so far)",
                flush=True,
            )
        if self._limit and self._row >= self._limit:
            raise InputError(
                f"{self._row} consecutive steps up to step {done} had a non-finite loss or"
                " gradient: check the images for NaN, lower optim.lr, or raise max_nonfinite; the"
                " last checkpoint is intact"
            )


class Unreadable:
    """Lists records with an unreadable image, which the next readable one replaces, in
    unreadable.txt: name, tab, reason.
    """

    def __init__(self, workdir: Path, records: base.Source):
        self._path, self._records = workdir / "unreadable.txt", records
        text = self._path.read_text("utf-8") if self._path.exists() else ""
        self._named = {line.split("\t")[0] for line in text.splitlines()}

    def note(self, batch: Mapping[str, Any]) -> None:
        """Adds the unreadable records of a batch."""
        for index in np.asarray(batch["index"])[np.asarray(batch["replaced"])].tolist():
            name = _in_line(self._records.name(index))
            if name not in self._named:
                self._named.add(name)
                reason = _in_line(base.why_unreadable(self._records, index))
                self._path.parent.mkdir(parents=True, exist_ok=True)
                # One short write per line: several processes append to the same file.
                with open(self._path, "a", encoding="utf-8") as f:
                    f.write(f"{name}\t{reason}\n")
                print(
                    f"  warning: cannot read {name} ({reason}); using the next readable image"
                    f" instead (all such images: {self._path})",
                    flush=True,
                )


def _in_line(text):
    """Escapes text for a tab-separated column; file names may hold any bytes."""
    return listing.readable(text).replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
