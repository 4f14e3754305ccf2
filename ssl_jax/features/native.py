"""Features of images that differ in size: those of one shape are encoded together."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ssl_jax.features import windows

_WAITING = 8  # batches of images that wait for others of their shape


def encoded(
    read: Callable[[np.ndarray], Any], images: Iterable[tuple[Any, np.ndarray]], *, batch_size: int
) -> Iterator[tuple[Any, np.ndarray]]:
    """Features of a stream of images, in batches of one shape each.

    The last batch of a shape is filled up with its last image, to a power of two if the shape is
    rare, so that few programs are compiled. Images wait until there are `batch_size` of their
    shape, or eight batches of all shapes, so with several shapes the order changes; with one it
    does not.

    Args:
      read: images [B, H, W, 3] -> features [B, ...], see `tokens.reader`.
      images: (what it is, [H, W, 3] float32 in [0, 1]) of each, sides multiples of the patch.

    Yields:
      (what it is, its features on the host).
    """
    pending: tuple[list, Any] = ([], ())
    for group, full in _groups(images, batch_size):
        batch = windows.filled(np.stack([image for _, image in group]), full)
        started = [what for what, _ in group], read(batch)
        # The device works on this batch while the host is busy with the one before and the next.
        yield from zip(pending[0], np.asarray(pending[1]))
        pending = started
    yield from zip(pending[0], np.asarray(pending[1]))


def _groups(images, size):
    """(images of one shape, to how many they are filled up)."""
    waiting, often = {}, set()

    def filled(shape):
        group = waiting.pop(shape)
        return group, size if shape in often else min(size, 1 << (len(group) - 1).bit_length())

    for item in images:
        shape = item[1].shape
        waiting.setdefault(shape, []).append(item)
        if len(waiting[shape]) == size:
            often.add(shape)
            yield filled(shape)
        elif sum(map(len, waiting.values())) >= _WAITING * size:  # memory is limited
            yield filled(max(waiting, key=lambda other: len(waiting[other])))
    for shape in list(waiting):
        yield filled(shape)
