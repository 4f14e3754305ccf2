"""Crops of an image with its mask, on the host: mmsegmentation's training pipeline, crops of random
area and aspect ratio, and the resizing and padding of whole images.

Images are uint8 [H, W, 3], masks uint8 [H, W] with 255 = ignore.
"""

import dataclasses
from collections.abc import Sequence

import cv2
import numpy as np

from ssl_jax.config import field
from ssl_jax.data import decode
from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.views import boxes

KINDS = ("scale_crop", "resized_crop")
# ImageNet's mean colour, 0 after normalisation; mmsegmentation pads with it.
PADDING = (124, 116, 104)
_ATTEMPTS = 10  # to find a crop of which no class exceeds largest_class


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of training crops."""

    augment: str = field(
        "scale_crop",
        'training crops: "scale_crop" (mmsegmentation: random scale, then crop), or "resized_crop"'
        " (torchvision's random resized crop)",
        choices=KINDS,
    )
    side: int = field(
        0,
        "side of training crops, sliding windows and the centre crop; 0 = the images' shorter"
        " side, at most 224",
        "pixels",
        least=0,
        most=16384,
    )
    crop_side: int = field(
        0,
        "side of the region that a training crop takes of an image before padding to `side`;"
        " 0 = `side`",
        "pixels",
        least=0,
        most=16384,
    )
    short: int = field(
        0,
        "length to which the shorter side is resized in tests and before the random scale in"
        " training; 0 = images as stored",
        "pixels",
        least=0,
        most=16384,
    )
    long: int = field(
        0,
        "largest length of the longer side after resizing to `short`; 0 = no limit",
        "pixels",
        least=0,
        most=65536,
    )
    ratio: tuple[float, ...] = field(
        (0.5, 2.0),
        "range of the random scale (scale_crop)",
        above=0,
        most=100,
        length=2,
        ordered=True,
    )
    scale: tuple[float, ...] = field(
        (0.25, 1.0),
        "(least, largest) share of the image's area in a crop of resized_crop",
        above=0,
        most=1,
        length=2,
        ordered=True,
    )
    largest_class: float = field(
        0.75, "largest share of a crop that one class may fill, for scale_crop", above=0, most=1
    )
    photometric: bool = field(
        True, "change brightness, contrast, saturation and hue of training crops at random"
    )


def draw(
    rng: np.random.Generator, image: np.ndarray, mask: np.ndarray, settings: Settings
) -> tuple[np.ndarray, np.ndarray]:
    """Draws a training crop: image uint8 [side, side, 3] and mask uint8 [side, side], padded at the
    right and bottom if the image is too small."""
    make = _scaled if settings.augment == "scale_crop" else _resized
    image, mask = make(rng, image, mask, settings)
    if rng.random() < 0.5:
        image, mask = image[:, ::-1], mask[:, ::-1]
    if settings.photometric:
        image = distort(rng, np.ascontiguousarray(image))
    return pad(image, mask, (settings.side, settings.side))


def _scaled(rng, image, mask, settings):
    """mmsegmentation's Resize with a ratio range, then RandomCrop."""
    low, high = settings.ratio
    factor = low + (high - low) * rng.random()
    height, width = mask.shape
    size = fitted(height, width, settings.short, settings.long, factor)
    image, mask = resize(image, size), resize(mask, size)
    side = settings.crop_side or settings.side
    box = _box(rng, mask.shape, side)
    for _ in range(_ATTEMPTS if settings.largest_class < 1 else 0):
        counts = np.bincount(mask[box].ravel(), minlength=IGNORE + 1)[:IGNORE]
        if (counts > 0).sum() > 1 and counts.max() < settings.largest_class * counts.sum():
            break
        box = _box(rng, mask.shape, side)
    return image[box], mask[box]


def _box(rng, size, side):
    top, left = (int(rng.integers(0, max(0, length - side) + 1)) for length in size)
    return slice(top, top + side), slice(left, left + side)


def _resized(rng, image, mask, settings):
    """torchvision's RandomResizedCrop with antialiased bicubic pixels and nearest labels."""
    y, x, height, width = boxes.random_resized_crop(rng, *mask.shape, scale=settings.scale)
    size, box = (settings.side, settings.side), (x, y, x + width, y + height)
    return decode.resize(image, size, box), decode.resize(mask, size, box)


def distort(rng: np.random.Generator, image: np.ndarray) -> np.ndarray:
    """mmsegmentation's PhotoMetricDistortion of a uint8 image: brightness (+-32), contrast (.5-1.5,
    before or after the next two), saturation (.5-1.5) and hue (+-18 of 180), each with probability
    1/2."""

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
    """Resizes to (height, width), an image bilinearly without antialiasing, a mask by nearest
    neighbour, as mmsegmentation (OpenCV)."""
    if image.shape[:2] == tuple(size):
        return image
    how = cv2.INTER_LINEAR if image.ndim == 3 else cv2.INTER_NEAREST
    return cv2.resize(image, (size[1], size[0]), interpolation=how)


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
