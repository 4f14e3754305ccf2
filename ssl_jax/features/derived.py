"""Features of images that are made from records: cut out, scaled, or resized."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ssl_jax.features import native, tokens
from ssl_jax.features.extract import on_all_devices
from ssl_jax.runtime import distributed


def encoded(
    network: Any,
    images: Iterable[tuple[Any, np.ndarray]],
    *,
    kind: str = tokens.DENSE,
    layers: int = 1,
    batch_size: int,
) -> Iterator[tuple[Any, np.ndarray]]:
    """Features of a stream of images by a network on all devices of the process, see
    `native.encoded`. kind, layers: see `tokens.reader`."""
    read = tokens.reader(on_all_devices(network), kind, layers)
    return native.encoded(read, images, batch_size=batch_size)


def share(indices: np.ndarray, shared: bool) -> np.ndarray:
    """The part of this process where all share the work, else everything."""
    return distributed.share(indices) if shared else indices


def joined(columns: Sequence[np.ndarray], shared: bool) -> list[np.ndarray]:
    """Rows of all processes where they share the work. A process without rows cannot know their
    shape: it is that of the others."""
    if not shared:
        return list(columns)
    every = distributed.told([(len(rows), rows.shape[1:]) for rows in columns])
    shapes = [next((s for count, s in entries if count), ()) for entries in zip(*every)]
    return [
        distributed.joined(rows.reshape(len(rows), *shape)) for rows, shape in zip(columns, shapes)
    ]
