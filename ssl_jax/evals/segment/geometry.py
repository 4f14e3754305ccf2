"""Resizes, crops and pads an image uint8 [H, W, 3] with its mask uint8 [H, W]."""

from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image

from ssl_jax.features import windows
from ssl_jax.losses.segmentation import IGNORE

# ImageNet's mean colour, 0 after normalisation; mmsegmentation pads with it.
PADDING = (124, 116, 104)


def fitted(height: int, width: int, short: int, long: int, factor: float = 1.0) -> tuple[int, int]:
    """(height, width) of an image resized to a shorter side of `factor * short` pixels, or less if
    its longer side would exceed `factor * long`, with mmcv's rounding. short=0: the image's own;
    long=0: no limit."""
    ratio = short / min(height, width) if short else 1.0
    if long:
        ratio = min(ratio, long / max(height, width))
    ratio *= factor
    return max(1, int(height * ratio + 0.5)), max(1, int(width * ratio + 0.5))


def resize(image: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Resizes to (height, width) bilinearly without antialiasing, as mmsegmentation (OpenCV)."""
    if image.shape[:2] == tuple(size):
        return image
    return cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_LINEAR)


def resize_mask(mask: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Resizes to (height, width) by nearest neighbour."""
    if mask.shape == tuple(size):
        return mask
    return cv2.resize(mask, (size[1], size[0]), interpolation=cv2.INTER_NEAREST)


def resample(
    image: np.ndarray,
    mask: np.ndarray,
    size: tuple[int, int],
    box: tuple[float, float, float, float] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Resizes a box (left, top, right, bottom) or the whole to (height, width), the image by
    antialiased bicubic interpolation, the mask by nearest neighbour (Pillow)."""
    kinds = Image.Resampling.BICUBIC, Image.Resampling.NEAREST
    image, mask = (
        np.asarray(Image.fromarray(array).resize(size[::-1], kind, box=box))
        for array, kind in zip((image, mask), kinds)
    )
    return image, mask


def centre(array: np.ndarray, side: int) -> np.ndarray:
    """The central square of [H, W, ...]. Raises InputError if the array is smaller."""
    return windows.cut(array, windows.window(array.shape, side, 1))


def pad(image: np.ndarray, mask: np.ndarray, size: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Pads to at least (height, width) at the right and bottom, with the mean colour and 255."""
    below, right = (max(0, new - old) for new, old in zip(size, mask.shape))
    if not below and not right:
        return image, mask
    height, width = mask.shape
    padded = np.empty((height + below, width + right, 3), np.uint8)
    padded[:] = PADDING
    padded[:height, :width] = image
    return padded, np.pad(mask, ((0, below), (0, right)), constant_values=IGNORE)
