"""Crops images for an evaluation and converts their pixels to floats."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data.lookup import pixels


class Window(NamedTuple):
    """A part of an image, in pixels."""

    top: int
    left: int
    height: int
    width: int

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        return self.height, self.width


def unit(image: np.ndarray) -> np.ndarray:
    """Pixels as float32 in [0, 1]: uint8 divided by 255, floats as they are."""
    image = np.asarray(image)
    return image.astype(np.float32) / np.float32(255 if image.dtype == np.uint8 else 1)


def central(shape: tuple[int, ...], size: tuple[int, int]) -> Window:
    """The window of `size` in the middle of an image of `shape` (height, width, ...)."""
    height, width = size
    return Window((shape[0] - height) // 2, (shape[1] - width) // 2, height, width)


def window(shape: tuple[int, ...], crop: int, multiple: int, name: str = "") -> Window:
    """The central window of an image of `shape` (height, width, ...) that an evaluation uses.

    crop: side of a square; 0 = the whole image. multiple: both sides are rounded down to a multiple
    of it. name: of the image, for messages. Raises InputError for an image that is too small.
    """
    if crop > min(shape[:2]):
        raise InputError(
            f"the evaluation crop is {crop} pixels but"
            f" {name or 'the images'} {'has' if name else 'are'} {pixels(shape)}; "
            "use a larger `size` or a smaller crop"
        )
    size = (crop, crop) if crop else (shape[0], shape[1])
    return central(shape, floored(size, multiple, name))


def floored(size: tuple[int, int], patch: int, name: str = "") -> tuple[int, int]:
    """(height, width) rounded down to multiples of the patch. Raises InputError, which has the
    image's name, if a side becomes 0."""
    height, width = (side // patch * patch for side in size)
    if not height or not width:
        raise InputError(
            f"images of {pixels(size)} pixels are smaller than one patch of {patch}"
            f" pixels{f' ({name})' if name else ''}"
        )
    return height, width


def cut(array: np.ndarray, part: Window) -> np.ndarray:
    """Crops an array [H, W, ...] to the window."""
    rows, columns = (
        slice(part.top, part.top + part.height),
        slice(part.left, part.left + part.width),
    )
    return np.asarray(array)[rows, columns]


def filled(batch: np.ndarray, size: int) -> np.ndarray:
    """Pads a batch to `size` with copies of its last image. The features of the others do not
    change, as each image is encoded independently."""
    return np.pad(batch, [(0, size - len(batch)), *[(0, 0)] * (batch.ndim - 1)], mode="edge")


def images_of(
    source: Any, indices: Iterable[int], *, crop: int = 0, multiple: int = 1
) -> np.ndarray:
    """Images [n, H, W, 3] float32 in [0, 1] of records for figures, cropped as in `extract`; if
    their sizes differ, all are cropped to the smallest height and width.
    """
    records = ((source[int(i)], source.name(int(i))) for i in indices)
    return stacked([cut_record(*pair, crop=crop, multiple=multiple) for pair in records])


def cut_record(record: Any, name: str, *, crop: int = 0, multiple: int = 1) -> np.ndarray:
    """Image [H, W, 3] float32 in [0, 1] of a record with that name; see `images_of`."""
    image = record["image"]
    return unit(cut(image, window(image.shape, crop, multiple, name)))


def stacked(images: Sequence[np.ndarray]) -> np.ndarray:
    """Stacks images [H, W, 3] to [n, H, W, 3], cropped to the smallest height and width."""
    heights, widths = zip(*(image.shape[:2] for image in images))
    least = min(heights), min(widths)
    return np.stack([cut(image, central(image.shape, least)) for image in images])
