"""RandAugment (Cubuk et al. 2020) on 8-bit images on the host: a few operations drawn from a table.

The table is the one of the fine-tuning recipes of DeiT and BEiT ("rand-m9-mstd0.5-inc1" in timm's
notation): fifteen operations whose strength grows with the magnitude, each applied with probability
1/2. The operations are Pillow's own.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from ssl_jax.config import InputError
from ssl_jax.views import section

LARGEST = 10.0  # magnitude at which an operation is strongest


@dataclass(frozen=True)
class RandAugment:
    """What is drawn for one view.

    Attributes:
      count: operations drawn one after the other, with replacement.
      magnitude: mean strength, in [0, 10]; std: its standard deviation; cut to that range.
      prob: of each drawn operation being applied.
      fill: colour of pixels from outside of the image, (r, g, b) in 0..255.

    Raises:
      InputError: a value is out of range.
    """

    count: int = 2
    magnitude: float = 9.0
    std: float = 0.5
    prob: float = 0.5
    fill: tuple[int, ...] = (124, 116, 104)  # ImageNet's mean

    def __post_init__(self):
        if self.count < 0 or not 0 <= self.magnitude <= LARGEST or self.std < 0:
            raise InputError(
                f"RandAugment has count {self.count}, magnitude {self.magnitude} and std "
                f"{self.std}; use count >= 0, a magnitude from 0 to {LARGEST:g} and std >= 0"
            )
        section.KEYS["flip"].check("prob", self.prob)


def augment(image: np.ndarray, recipe: RandAugment, rng: np.random.Generator) -> np.ndarray:
    """Draws and applies the operations to an image uint8 [H, W, 3]: the same shape.

    rng: makes all draws, always as many of them.
    """
    picture = Image.fromarray(image)
    names = tuple(OPERATIONS)
    for _ in range(recipe.count):
        applied, chosen, sign = rng.random(3)
        strength = np.clip(rng.normal(recipe.magnitude, recipe.std), 0, LARGEST) / LARGEST
        if applied < recipe.prob:
            operation = OPERATIONS[names[int(chosen * len(names))]]
            signed = math.copysign(strength, sign - 0.5)
            picture = operation(picture, float(strength), signed, recipe.fill)
    return np.asarray(picture)


# --- operations: (picture, strength in [0, 1], the same with a random sign, fill) -> picture


def _enhance(kind) -> Callable:
    """Blends with a plain, gray or smoothed picture; a factor of 1 changes nothing."""

    def apply(picture, strength, signed, fill):
        return kind(picture).enhance(max(0.1, 1 + 0.9 * signed))

    return apply


def _affine(matrix: Callable) -> Callable:
    """Pixel (x, y) comes from (a x + b y + c, d x + e y + f); `matrix` gives a..f from the signed
    strength, width and height."""

    def apply(picture, strength, signed, fill):
        return picture.transform(
            picture.size,
            Image.Transform.AFFINE,
            matrix(signed, *picture.size),
            Image.Resampling.BICUBIC,
            fillcolor=fill,
        )

    return apply


def _rotate(picture, strength, signed, fill):
    return picture.rotate(30 * signed, Image.Resampling.BICUBIC, fillcolor=fill)


def _posterize(picture, strength, signed, fill):
    # Nothing would be left of a picture at 0 bits.
    return ImageOps.posterize(picture, max(1, 4 - int(4 * strength)))


def _solarize(picture, strength, signed, fill):
    return ImageOps.solarize(picture, 256 - int(256 * strength))


def _solarize_add(picture, strength, signed, fill):
    """Adds to the dark values."""
    add = int(110 * strength)
    return picture.point([min(255, i + add) if i < 128 else i for i in range(256)] * 3)


OPERATIONS: dict[str, Callable] = {
    "auto_contrast": lambda picture, *_: ImageOps.autocontrast(picture),
    "equalize": lambda picture, *_: ImageOps.equalize(picture),
    "invert": lambda picture, *_: ImageOps.invert(picture),
    "rotate": _rotate,
    "posterize": _posterize,
    "solarize": _solarize,
    "solarize_add": _solarize_add,
    "color": _enhance(ImageEnhance.Color),
    "contrast": _enhance(ImageEnhance.Contrast),
    "brightness": _enhance(ImageEnhance.Brightness),
    "sharpness": _enhance(ImageEnhance.Sharpness),
    "shear_x": _affine(lambda s, w, h: (1, 0.3 * s, 0, 0, 1, 0)),
    "shear_y": _affine(lambda s, w, h: (1, 0, 0, 0.3 * s, 1, 0)),
    "translate_x": _affine(lambda s, w, h: (1, 0, 0.45 * s * w, 0, 1, 0)),
    "translate_y": _affine(lambda s, w, h: (1, 0, 0, 0, 1, 0.45 * s * h)),
}
