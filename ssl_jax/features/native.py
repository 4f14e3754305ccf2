"""Features of a stream of images that differ in size; see `feed.by_shape`."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ssl_jax.features.feed import Batch, View, by_shape
from ssl_jax.features.feed import encoded as encoded_batches


def encoded(
    read: Callable[[np.ndarray], Any], images: Iterable[tuple[Any, np.ndarray]], *, batch_size: int
) -> Iterator[tuple[Any, np.ndarray]]:
    """(what it is, its features on the host) of each image, see `feed.View`."""
    batches = (Batch([View(*item)], 1, []) for item in images)
    for views, features in encoded_batches(read, by_shape(batches, batch_size)):
        yield from zip((view.what for view in views), features)
