"""The source of an evaluation or an embedding: what cannot be read is named, and little of it is
left out."""

import contextlib
import threading
from typing import Any

from ssl_jax.data import base
from ssl_jax.data.decode import Unreadable
from ssl_jax.features.ahead import ahead
from ssl_jax.features.extract import drawn
from ssl_jax.views import loader

SHARE = loader.defaults()["max_unreadable"].default
_FEW = 1000  # records, which are read before anything is compiled


class Telling(base.Wrapper):
    """Another source, which tells of each record that cannot be read, once.

    `s[i]` raises decode.Unreadable as the other's does, for the evaluation to leave the record out;
    with more than a share of them it raises InputError, as scores of what is left are not those of
    the set.

    examples: how many records an evaluation reads; 0 = all. share: of them that may be unreadable,
    as in training (data.max_unreadable).
    """

    def __init__(
        self,
        source: Any,
        examples: int = 0,
        known: dict[int, str] | None = None,
        share: float = SHARE,
    ):
        super().__init__(source)
        self._lock, self._share = threading.Lock(), share
        self._known = {} if known is None else known  # {record: reason}
        self._examples = min(examples or len(self), len(self) - len(self.unlabelled))

    def __getitem__(self, i: int) -> dict[str, Any]:
        try:
            return self._source[i]
        except Unreadable as error:
            self._tell(int(i), error.reason)
            raise

    def look(self, seed: int = 0) -> None:
        """Reads the examples that are drawn from the seed in advance, if they are few: what they
        are refused for is said before anything is compiled. Many are told of on the way."""

        def read(i):
            with contextlib.suppress(Unreadable):
                self[int(i)]

        if self._examples <= _FEW:
            list(ahead(read, [drawn(self, self._examples, seed)], 0))

    def readable(self) -> int:
        """How many of the examples could be read so far."""
        return self._examples - len(self._known)

    @property
    def unresized(self) -> base.Source:
        """See `Source.unresized`; tells as well."""
        inner = self._source.unresized
        if inner is self._source:
            return self
        return Telling(inner, self._examples, self._known, self._share)

    def _tell(self, i, reason):
        with self._lock:  # threads read ahead
            if i in self._known:
                return
            self._known[i] = reason
            loader.check_share(self, self._known, self._share, self._examples)
            print(f"  warning: skipped {self.name(i)} ({reason})", flush=True)
