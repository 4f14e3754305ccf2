"""What a run looks out for: steps that are not finite, images that cannot be read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import listing


class NonFinite:
    """Counts steps in a row whose loss or gradient was not finite; gives up after `limit`
    of them.
    """

    def __init__(self, limit: int):
        self._limit, self._row = limit, 0

    def check(self, done: int, metrics: Mapping[str, Any]) -> None:
        """Raises InputError when step `done` was one too many."""
        if bool(metrics["finite"]):
            self._row = 0
            return
        self._row += 1
        print(
            f"  warning: step {done} had a non-finite loss or gradient and was left out"
            f" ({int(metrics['nonfinite'])} so far)",
            flush=True,
        )
        if self._limit and self._row >= self._limit:
            raise InputError(
                f"{self._row} steps in a row (the last: {done}) had a non-finite loss or gradient:"
                " look at the images (NaN?), lower optim.lr, or raise max_nonfinite; the last"
                " checkpoint is intact"
            )


class Unreadable:
    """Lists records whose image could not be read (the next readable one took their place) in
    unreadable.txt.
    """

    def __init__(self, workdir: Path, records: Any):
        self._path, self._records = workdir / "unreadable.txt", records
        known = self._path.read_text("utf-8") if self._path.exists() else ""
        self._known = set(known.splitlines())

    def note(self, batch: Mapping[str, Any]) -> None:
        """Adds those of a batch."""
        for index in np.asarray(batch["index"])[np.asarray(batch["replaced"])]:
            name = listing.readable(self._records.name(int(index)))
            if name not in self._known:
                self._known.add(name)
                # A short line at once: processes append to one file without mixing theirs.
                with open(self._path, "a", encoding="utf-8") as f:
                    f.write(name + "\n")
                print(
                    f"  warning: cannot read {name}; the next readable image takes its place (list:"
                    f" {self._path})",
                    flush=True,
                )
