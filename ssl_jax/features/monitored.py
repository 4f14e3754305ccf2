"""The records of an evaluation or an embedding: which are drawn, which cannot be read, and that
these are few."""

import threading
from typing import Any

import numpy as np

from ssl_jax.data import base
from ssl_jax.data.decode import Unreadable
from ssl_jax.features.feed import feed
from ssl_jax.views import loader

SHARE = loader.defaults()["max_unreadable"].default
_FEW = 1000  # records that are read before anything is compiled


def sample_records(source: Any, count: int, seed: int) -> np.ndarray:
    """`subset` of the records of a source, without those that have no label where others do."""
    rows = np.setdiff1d(np.arange(len(source)), base.adopt(source).unlabelled)
    return rows[subset(len(rows), count, seed)]


def subset(length: int, count: int, seed: int) -> np.ndarray:
    """`count` of `length` records, drawn without replacement, ascending; all if count is 0 or not
    smaller.
    """
    if count <= 0 or count >= length:
        return np.arange(length)
    rng = np.random.Generator(np.random.Philox(key=seed))
    return np.sort(rng.choice(length, count, replace=False))


class Monitored(base.Wrapper):
    """Another source, which warns of each record that cannot be read, once.

    `s[i]` raises decode.Unreadable as the other's does, for a feed to leave the record out; with
    more than a share of them it raises InputError, as scores of what is left are not those of the
    set.

    examples: how many records an evaluation reads; 0 = all. share: of them that may be unreadable,
    as in training (data.max_unreadable). reasons: {record: why it cannot be read} so far.
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
        self._examples = min(examples or len(self), len(self) - len(self.unlabelled))

    def __getitem__(self, i: int) -> dict[str, Any]:
        try:
            return self._source[i]
        except Unreadable as error:
            self._warn(int(i), error.reason)
            raise

    def look(self, seed: int = 0) -> None:
        """Reads the examples that are drawn from the seed in advance, if they are few, so that bad
        ones are refused before anything is compiled. Many are named on the way."""
        if self._examples <= _FEW:
            records = sample_records(self, self._examples, seed)
            for _ in feed(self, records, lambda row, record: (), max(1, len(records))):
                pass

    def readable(self) -> int:
        """How many of the examples could be read so far."""
        return self._examples - len(self._reasons)

    @property
    def unresized(self) -> base.Source:
        """See `Source.unresized`; names bad records as well."""
        inner = self._source.unresized
        if inner is self._source:
            return self
        return Monitored(inner, self._examples, self._reasons, self._share)

    def _warn(self, i, reason):
        with self._lock:  # threads read ahead
            if i in self._reasons:
                return
            self._reasons[i] = reason
            loader.check_share(self, self._reasons, self._share, self._examples)
            print(f"  warning: skipped {self.name(i)} ({reason})", flush=True)
