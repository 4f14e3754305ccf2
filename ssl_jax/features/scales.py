"""Features of an image at several scales, as in DINO's evaluation of retrieval."""

from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
from PIL import Image

from ssl_jax.features import derived, windows
from ssl_jax.features.feed import View


def shrunk(image: np.ndarray, side: int) -> np.ndarray:
    """Shrinks an image, uint8 [H, W, 3], by Lanczos resampling to fit side x side pixels. Returns
    it unchanged if it fits or side is 0."""
    if not side or max(image.shape[:2]) <= side:
        return image
    small = Image.fromarray(image)
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return np.asarray(small)


def scaled(image: np.ndarray, scale: float, patch: int) -> np.ndarray:
    """Scales an image, float32 [H, W, 3] (bilinear, without antialiasing, as in DINO), and crops
    rows at the bottom and columns at the right that do not fill a patch."""
    size = [int(side * scale) for side in image.shape[:2]]
    if scale != 1:
        size = [max(side, 1) for side in size]
        image = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR)
    height, width = windows.floored((size[0], size[1]), patch)
    return image[:height, :width]


def encoded(
    network: Any,
    source: Any,
    records: np.ndarray,
    show: Callable[[int, Any], View],
    *,
    scales: Sequence[float],
    patch: int,
    **how: Any,
) -> tuple[list, np.ndarray]:
    """(`View.what` of each image, sums [n, d] float32 of its vectors over the scales).

    show: (row, record) -> View of the image to be scaled, [H, W, 3] uint8 or float in [0, 1] of any
    size. how: arguments of `derived.encoded`.
    """

    def cut(row, record):
        what, image = show(row, record)
        pixels = windows.unit(image)
        for scale in scales:
            yield View((row, what), scaled(pixels, scale, patch))

    about: dict[int, Any] = {}
    sums: dict[int, np.ndarray] = {}
    for (row, what), vector in derived.encoded(network, source, records, cut, **how):
        about[row] = what
        sums[row] = sums[row] + vector if row in sums else vector
    rows = sorted(sums)
    return [about[row] for row in rows], np.array([sums[row] for row in rows], np.float32)
