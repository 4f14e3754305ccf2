"""Crops test images for segmentation: whole, into sliding windows, or to their centre."""

import itertools
from typing import NamedTuple

import numpy as np

from ssl_jax.data import decode
from ssl_jax.evals.segment.settings import PYRAMIDS, Settings
from ssl_jax.features import windows
from ssl_jax.scores.windows import starts
from ssl_jax.views import masked


class Windows(NamedTuple):
    """Windows of a test image: pixels uint8 [n, h, w, 3] and corners (y, x) in the resized image of
    `size`. The logits of this image are resampled to the mask."""

    pixels: np.ndarray
    corners: list[tuple[int, int]]
    size: tuple[int, int]


def cut(
    image: np.ndarray, mask: np.ndarray, settings: Settings, patch: int
) -> tuple[Windows, np.ndarray, np.ndarray]:
    """(windows of a test image, image for pictures, mask for the score).

    A whole image is resized to the next multiple of the patch, or of two patches if a pyramid
    halves the grid (mmsegmentation's AlignResize to 32 pixels).
    """
    side, (height, width) = settings.side, mask.shape
    if settings.test == "center":
        # The shorter side becomes `short`, by antialiased bicubic interpolation.
        height, width = (max(side, n) for n in masked.fitted(height, width, settings.short, 0))
        image, mask = (
            centre(decode.resize(array, (height, width)), side) for array in (image, mask)
        )
        return Windows(image[None], [(0, 0)], (side, side)), image, mask
    size = masked.fitted(height, width, settings.short, settings.long)
    if settings.test == "whole":
        unit = 2 * patch if settings.head in PYRAMIDS else patch
        size = -(-size[0] // unit) * unit, -(-size[1] // unit) * unit
        return Windows(masked.resize(image, size)[None], [(0, 0)], size), image, mask
    pixels = masked.resize(image, size)
    padded, _ = masked.pad(pixels, np.zeros(size, np.uint8), (side, side))
    stride = settings.stride or max(1, side * 2 // 3)
    rows, columns = (starts(length, side, stride) for length in size)
    corners = list(itertools.product(rows, columns))
    cuts = np.stack([padded[y : y + side, x : x + side] for y, x in corners])
    return Windows(cuts, corners, size), image, mask


def centre(array: np.ndarray, side: int) -> np.ndarray:
    """The central square of [H, W, ...]. Raises InputError if the array is smaller."""
    return windows.cut(array, windows.window(array.shape, side, 1))
