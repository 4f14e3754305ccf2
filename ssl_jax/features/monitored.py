"""The records of an evaluation or an embedding: draws them, warns of unreadable ones and refuses
too many of these."""

import threading
from typing import Any

import numpy as np

from ssl_jax.data import base
from ssl_jax.data.decode import Unreadable
from ssl_jax.features.feed import feed
from ssl_jax.views import loader

SHARE = loader.defaults()["max_unreadable"].default
_FEW = 1000  # at most so many records are read before anything is compiled


def sample_records(source: Any, count: int, seed: int, masked: bool = False) -> np.ndarray:
    """A `subset` of the records of a source. Records without a label are left out if others have
    one; masked: so are those without a mask."""
    source = base.adopt(source)
    rows = np.setdiff1d(np.arange(len(source)), source.unlabelled)
    rows = np.setdiff1d(rows, source.unmasked) if masked else rows
    return rows[subset(len(rows), count, seed)]


def subset(length: int, count: int, seed: int) -> np.ndarray:
    """Draws `count` of `length` records without replacement, in ascending order; all of them if
    count is 0 or at least `length`.
    """
    if count <= 0 or count >= length:
        return np.arange(length)
    rng = np.random.Generator(np.random.Philox(key=seed))
    return np.sort(rng.choice(length, count, replace=False))


class Monitored(base.Wrapper):
    """Wraps a source and warns once of each record that cannot be read.

    `s[i]` raises decode.Unreadable, so that a feed leaves the record out. It raises InputError once
    more than `share` of the examples are unreadable, because scores of the others would not be
    scores of the set.

    examples: number of records that are read; 0 = all. share: largest unreadable part of them, as
    in training (data.max_unreadable). reasons: {record: why it cannot be read} so far.
    """

    def __init__(
        self,
        source: Any,
        examples: int = 0,
        reasons: dict[int, str] | None = None,
        share: float = SHARE,
    ):
        super().__init__(source)
        self._lock, self._share = threading.Lock(), share
        self._reasons = {} if reasons is None else reasons
        self._examples = min(examples or len(self), len(self))

    def __getitem__(self, i: int) -> dict[str, Any]:
        try:
            return self._source[i]
        except Unreadable as error:
            self._warn(int(i), error.reason)
            raise

    def look(self, seed: int = 0) -> None:
        """Reads the examples drawn with the seed in advance if there are at most 1000, so that
        unreadable ones are refused before anything is compiled."""
        if self._examples <= _FEW:
            records = sample_records(self, self._examples, seed)
            for _ in feed(self, records, lambda row, record: (), max(1, len(records))):
                pass

    def readable(self) -> int:
        """Number of examples without those found unreadable so far."""
        return self._examples - len(self._reasons)

    @property
    def unresized(self) -> base.Source:
        """See `Source.unresized`; warns of unreadable records too."""
        inner = self._source.unresized
        if inner is self._source:
            return self
        return Monitored(inner, self._examples, self._reasons, self._share)

    def _warn(self, i, reason):
        with self._lock:  # called by the feed's threads
            if i in self._reasons:
                return
            self._reasons[i] = reason
            loader.check_share(self, self._reasons, self._share, self._examples)
            print(f"  warning: skipped {self.name(i)} ({reason})", flush=True)
