"""The source of an evaluation: what cannot be read is named, and little of it is left out."""

import threading
from typing import Any

from ssl_jax.config import InputError
from ssl_jax.data import base
from ssl_jax.data.decode import Unreadable

_SHARE = 0.01  # of the records may be unreadable, as in training


class Telling(base.Source):
    """Another source, which tells of each record that cannot be read, once.

    `s[i]` raises decode.Unreadable as the other's does, for the evaluation to leave the record out;
    with more than one in a hundred it raises InputError, as scores of what is left are not those of
    the set.

    examples: how many records an evaluation reads; 0 = all.
    """

    def __init__(self, source: Any, examples: int = 0, known: dict[int, str] | None = None):
        self._source, self._lock = source, threading.Lock()
        self._examples = min(examples or len(source), len(source))
        self._known = {} if known is None else known  # {record: reason}
        self._take_facts(source)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, i: int) -> dict[str, Any]:
        try:
            return self._source[i]
        except Unreadable as error:
            self._tell(int(i), error.reason)
            raise

    def name(self, i: int) -> str:
        return self._source.name(i)

    def shape(self, i: int) -> tuple[int, int]:
        """(H, W) of image i, without decoding it where the source can do so."""
        return base.shape(self._source, i)

    @property
    def unresized(self) -> Any:
        """See `Prepared.unresized`; tells as well."""
        inner = getattr(self._source, "unresized", self._source)
        return self if inner is self._source else Telling(inner, self._examples, self._known)

    def _tell(self, i, reason):
        with self._lock:  # threads read ahead
            if i in self._known:
                return
            self._known[i] = reason
            if len(self._known) > _SHARE * self._examples:
                raise InputError(
                    f"{len(self._known)} of {self._examples} images to evaluate cannot be used:"
                    f" {base.named_unreadable(self, self._known)}; repair them or move them away"
                )
            print(f"  warning: without {self.name(i)}, which cannot be used ({reason})", flush=True)

    def __repr__(self) -> str:
        return repr(self._source)
