"""Features of images that differ in size: those of one shape are encoded together."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ssl_jax.config import InputError


def unit(image: np.ndarray) -> np.ndarray:
    """Pixels as float32 in [0, 1]: uint8 divided by 255, floats as they are."""
    image = np.asarray(image)
    return image.astype(np.float32) / np.float32(255 if image.dtype == np.uint8 else 1)


def floored(size: tuple[int, int], patch: int) -> tuple[int, int]:
    """(height, width) reduced to multiples of the patch. Raises InputError where nothing is
    left."""
    height, width = (side // patch * patch for side in size)
    if not height or not width:
        raise InputError(
            f"images of {size[0]}x{size[1]} pixels are smaller than one patch of {patch} pixels"
        )
    return height, width


def encoded(
    read: Callable[[np.ndarray], Any], images: Iterable[tuple[Any, np.ndarray]], *, batch_size: int
) -> Iterator[tuple[Any, np.ndarray]]:
    """Features of a stream of images, in batches of one shape each.

    The last batch of a shape is filled up with its last image, to a power of two if the shape is
    rare, so that few programs are compiled. Images wait until there are `batch_size` of their
    shape, so with several shapes the order changes; with one it does not.

    Args:
      read: images [B, H, W, 3] -> features [B, ...], see `tokens.reader`.
      images: (what it is, [H, W, 3] float32 in [0, 1]) of each, sides multiples of the patch.

    Yields:
      (what it is, its features on the host).
    """
    pending: tuple[list, Any] = ([], ())
    for group, full in _groups(images, batch_size):
        batch = np.stack([image for _, image in group])
        missing = full - len(batch)
        if missing:
            batch = np.concatenate([batch, np.repeat(batch[-1:], missing, axis=0)])
        started = [what for what, _ in group], read(batch)
        # The device works on this batch while the host is busy with the one before and the next.
        yield from zip(pending[0], np.asarray(pending[1]))
        pending = started
    yield from zip(pending[0], np.asarray(pending[1]))


def _groups(images, size):
    """(images of one shape, to how many they are filled up)."""
    waiting, often = {}, set()
    for item in images:
        shape = item[1].shape
        waiting.setdefault(shape, []).append(item)
        if len(waiting[shape]) == size:
            often.add(shape)
            yield waiting.pop(shape), size
    for shape, group in waiting.items():
        yield group, size if shape in often else min(size, 1 << (len(group) - 1).bit_length())
