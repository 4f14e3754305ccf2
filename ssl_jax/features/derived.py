"""Features of images that are cropped, scaled or resized from records."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.features import feed, tokens
from ssl_jax.features.network import on_all_devices
from ssl_jax.runtime import distributed


def encoded(
    network: Any,
    source: Any,
    records: Sequence[int] | np.ndarray,
    cut: Callable[[int, Any], Iterable[feed.View]],
    *,
    kind: str = tokens.DENSE,
    layers: int = 1,
    batch_size: int,
) -> Iterator[tuple[Any, np.ndarray]]:
    """Encodes views of the records on all devices of the process; yields (`View.what`, features)
    of each view. Raises InputError for features that are not finite.

    cut: (row, record) -> views, see `feed.feed`. kind, layers: see `Network.read`.
    """
    network = on_all_devices(network)
    batches = feed.by_shape(feed.feed(source, records, cut, batch_size), batch_size)
    kinds = {kind: kind}
    for views, features in feed.encoded(lambda x: network.read(x, kinds, layers), batches):
        if not np.isfinite(features[kind]).all():
            raise InputError(f"features of images of {source} are not finite")
        yield from zip((view.what for view in views), features[kind])


class Needed:
    """A source that raises InputError, beginning with `why`, for records that cannot be read."""

    def __init__(self, source: Any, why: str):
        self._source, self._why = source, why

    def __getitem__(self, i: int) -> Any:
        try:
            return self._source[i]
        except Unreadable as error:
            raise InputError(f"{self._why}: {error}") from error


def gather_rows(columns: Sequence[np.ndarray], shared: bool) -> list[np.ndarray]:
    """Gathers the rows of all processes if they share the work. A process without rows takes their
    shape from the others."""
    if not shared:
        return list(columns)
    gathered = distributed.gather_json([(len(rows), rows.shape[1:]) for rows in columns])
    shapes = [next((s for count, s in entries if count), ()) for entries in zip(*gathered)]
    return [
        distributed.gather_rows(rows.reshape(len(rows), *shape))
        for rows, shape in zip(columns, shapes)
    ]
