"""Random crops of an image and its mask in step, on the host: mmsegmentation's training pipeline,
and crops of random area and aspect ratio.

Images are uint8 [H, W, 3], masks uint8 [H, W] with 255 = ignore.
"""

from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from ssl_jax.config import InputError
from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.views import boxes

KINDS = ("scale_crop", "resized_crop")
# ImageNet's mean colour, which is 0 once an image is normalised: what mmsegmentation pads with.
PADDING = (124, 116, 104)
_ATTEMPTS = 10  # to find a crop that one class does not fill


class Recipe(NamedTuple):
    """How a training crop is drawn.

    kind: of KINDS. side: of the crop, pixels.
    short, long: "scale_crop": before the random scale, an image's shorter side is brought to
      `short` if its longer one stays at most `long`; 0 = as stored, no bound.
    ratio: "scale_crop": bounds of the random scale. scale: "resized_crop": bounds of the crop's
      share of the image.
    largest_class: no class fills a larger share of a crop, as far as ten attempts allow.
    photometric: brightness, contrast, saturation and hue change.
    """

    kind: str
    side: int
    short: int = 0
    long: int = 0
    ratio: tuple[float, float] = (0.5, 2.0)
    scale: tuple[float, float] = (0.25, 1.0)
    largest_class: float = 0.75
    photometric: bool = True


def draw(
    rng: np.random.Generator, image: np.ndarray, mask: np.ndarray, recipe: Recipe
) -> tuple[np.ndarray, np.ndarray]:
    """A training crop: image uint8 [side, side, 3] and mask uint8 [side, side], padded at the right
    and bottom where the image is too small."""
    make = _scaled if recipe.kind == "scale_crop" else _resized
    image, mask = make(rng, image, mask, recipe)
    if rng.random() < 0.5:
        image, mask = image[:, ::-1], mask[:, ::-1]
    if recipe.photometric:
        image = distort(rng, np.ascontiguousarray(image))
    return pad(image, mask, (recipe.side, recipe.side))


def fitted(height: int, width: int, short: int, long: int, factor: float = 1.0) -> tuple[int, int]:
    """(height, width) of an image once its shorter side is `factor * short` pixels, or less where
    its longer side would exceed `factor * long`; mmcv's rounding. 0: as it is; no bound."""
    ratio = short / min(height, width) if short else 1.0
    if long:
        ratio = min(ratio, long / max(height, width))
    ratio *= factor
    return max(1, int(height * ratio + 0.5)), max(1, int(width * ratio + 0.5))


def resize(image: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """To (height, width), bilinear without antialiasing as in mmsegmentation (OpenCV)."""
    if image.shape[:2] == tuple(size):
        return image
    return cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_LINEAR)


def resize_mask(mask: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """To (height, width) by the nearest label."""
    if mask.shape == tuple(size):
        return mask
    return cv2.resize(mask, (size[1], size[0]), interpolation=cv2.INTER_NEAREST)


def centre(array: np.ndarray, side: int) -> np.ndarray:
    """The central square of [H, W, ...]. Raises InputError where it does not fit."""
    height, width = array.shape[:2]
    if side > min(height, width):
        raise InputError(
            f"the evaluation's crop is {side} pixels but an image has {width}x{height}; use a"
            " smaller crop, or a larger data.size"
        )
    top, left = (height - side) // 2, (width - side) // 2
    return array[top : top + side, left : left + side]


def pad(image: np.ndarray, mask: np.ndarray, size: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """At least (height, width): the mean colour, and labels to ignore, at the right and bottom."""
    below, right = (max(0, new - old) for new, old in zip(size, mask.shape))
    if not below and not right:
        return image, mask
    height, width = mask.shape
    padded = np.empty((height + below, width + right, 3), np.uint8)
    padded[:] = PADDING
    padded[:height, :width] = image
    return padded, np.pad(mask, ((0, below), (0, right)), constant_values=IGNORE)


def _scaled(rng, image, mask, recipe):
    """mmsegmentation's Resize with a ratio range, then RandomCrop."""
    low, high = recipe.ratio
    factor = low + (high - low) * rng.random()
    size = fitted(*mask.shape, recipe.short, recipe.long, factor)
    image, mask = resize(image, size), resize_mask(mask, size)
    box = _box(rng, mask.shape, recipe.side)
    for _ in range(_ATTEMPTS if recipe.largest_class < 1 else 0):
        counts = np.bincount(mask[box].ravel(), minlength=IGNORE + 1)[:IGNORE]
        if (counts > 0).sum() > 1 and counts.max() < recipe.largest_class * counts.sum():
            break
        box = _box(rng, mask.shape, recipe.side)
    return image[box], mask[box]


def _box(rng, size, side):
    top, left = (int(rng.integers(0, max(0, length - side) + 1)) for length in size)
    return slice(top, top + side), slice(left, left + side)


def _resized(rng, image, mask, recipe):
    """torchvision's RandomResizedCrop with antialiased bicubic pixels and the nearest labels."""
    y, x, height, width = boxes.random_resized_crop(rng, *mask.shape, scale=recipe.scale)
    box, size = (x, y, x + width, y + height), (recipe.side, recipe.side)
    kinds = Image.Resampling.BICUBIC, Image.Resampling.NEAREST
    image, mask = (
        np.asarray(Image.fromarray(array).resize(size, kind, box=box))
        for array, kind in zip((image, mask), kinds)
    )
    return image, mask


def distort(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """mmsegmentation's PhotoMetricDistortion, uint8 in and out: brightness (+-32), contrast
    (.5-1.5; before or after the two others), saturation (.5-1.5) and hue (+-18 of 180), each with
    probability 1/2."""

    def on():
        return rng.random() < 0.5

    def linear(pixels, factor=1.0, shift=0.0):
        return np.clip(pixels.astype(np.float32) * factor + shift, 0, 255).astype(np.uint8)

    def contrast(pixels):
        return linear(pixels, factor=rng.uniform(0.5, 1.5)) if on() else pixels

    if on():
        image = linear(image, shift=rng.uniform(-32, 32))
    early = on()
    if early:
        image = contrast(image)
    saturated, turned = on(), on()
    if saturated or turned:
        hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
        if saturated:
            hsv[..., 1] = linear(hsv[..., 1], factor=rng.uniform(0.5, 1.5))
        if turned:
            hsv[..., 0] = (hsv[..., 0].astype(np.int16) + int(rng.integers(-18, 18))) % 180
        image = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
    return image if early else contrast(image)
