"""Crop boxes: drawing them, where their patches lie in the source image, composing and comparing
them.

A box is (y, x, height, width) in pixels of the source image: the region [y, y + height) x
[x, x + width), edges of pixels at integers. The functions over arrays accept NumPy arrays (on the
host) and JAX arrays (inside jit) alike.
"""

import math
from typing import TypeVar

import jax
import numpy as np

ATTEMPTS = 10
_Array = TypeVar("_Array", np.ndarray, jax.Array)  # the kind that comes in goes out


def random_resized_crop(
    rng: np.random.Generator,
    height: int,
    width: int,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> tuple[int, int, int, int]:
    """Draws the box of torchvision's RandomResizedCrop: whole pixels, area and aspect ratio uniform
    within bounds.

    Up to 10 attempts draw an area (uniform share of the image) and an aspect ratio (log-uniform);
    the first that fits is placed uniformly. If none fits, the largest centred box whose aspect
    ratio is within bounds is taken.

    Args:
      rng: np.random.Generator, advanced by a varying number of draws.
      height, width: size of the source image, pixels.
      scale: (lo, hi) share of the image area, within (0, 1].
      ratio: (lo, hi) of width / height, above 0.

    Returns:
      (y, x, height, width), inside the image, at least 1 x 1.
    """
    area = height * width
    log_lo, log_hi = math.log(ratio[0]), math.log(ratio[1])
    uniform = rng.random
    for _ in range(ATTEMPTS):
        target = area * (scale[0] + (scale[1] - scale[0]) * uniform())
        aspect = math.exp(log_lo + (log_hi - log_lo) * uniform())
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(uniform() * (height - h + 1)), int(uniform() * (width - w + 1)), h, w
    return central_crop(height, width, ratio=ratio)


def central_crop(
    height: int, width: int, *, ratio: tuple[float, float] = (3 / 4, 4 / 3)
) -> tuple[int, int, int, int]:
    """The largest centred box (y, x, height, width) of an image such that width / height is within
    `ratio`.
    """
    h, w = height, width
    if width < height * ratio[0]:
        h = min(height, max(1, round(width / ratio[0])))
    elif width > height * ratio[1]:
        w = min(width, max(1, round(height * ratio[1])))
    return (height - h) // 2, (width - w) // 2, h, w


def patch_positions(boxes: _Array, flips: _Array, grid: tuple[int, int]) -> _Array:
    """Centres of the patches of each view in the source image, as CrIBo's clustering uses them.

    Column c of a grid of W patches lies at x + (c + 1/2) width / W - 1/2, in reverse order where
    the view is flipped; rows likewise. The 1/2 subtracted makes 0 the centre of the first source
    pixel.

    Args:
      boxes: [..., 4] (y, x, height, width) in source pixels.
      flips: [...] bool, horizontal.
      grid: (rows, columns).

    Returns:
      [..., rows * columns, 2] (y, x) in source pixels, patches in row-major order of the view.
    """
    xp = boxes.__array_namespace__()
    rows, columns = grid
    steps_y = (xp.arange(rows, dtype=boxes.dtype) + 0.5) / rows
    steps_x = (xp.arange(columns, dtype=boxes.dtype) + 0.5) / columns
    steps_x = xp.where(flips[..., None], steps_x[::-1], steps_x)
    y = boxes[..., 0:1] + steps_y * boxes[..., 2:3] - 0.5
    x = boxes[..., 1:2] + steps_x * boxes[..., 3:4] - 0.5
    shape = (*boxes.shape[:-1], rows, columns)
    pairs = xp.stack(
        [xp.broadcast_to(y[..., :, None], shape), xp.broadcast_to(x[..., None, :], shape)], axis=-1
    )
    return pairs.reshape(*boxes.shape[:-1], rows * columns, 2)


def patch_labels(mask: np.ndarray, boxes: np.ndarray, flips: np.ndarray, grid: tuple) -> np.ndarray:
    """Classes of the patches of each view: of the source pixel in which a patch's centre lies, so
    that a view's mask is resampled once, by nearest neighbour.

    Args:
      mask: uint8 [H, W], classes of the pixels of the source image.
      boxes: [..., 4]; flips: [...]; grid: (rows, columns); see `patch_positions`.

    Returns:
      uint8 [..., rows * columns], patches in row-major order of the view.
    """
    pixels = np.floor(patch_positions(boxes, flips, grid) + 0.5).astype(int)
    # A composed float32 box may stick out by a rounding error.
    y, x = (np.clip(pixels[..., i], 0, mask.shape[i] - 1) for i in (0, 1))
    return mask[y, x]


def compose(
    outer: _Array, inner: _Array, size: tuple[int, int], outer_flips: _Array | None = None
) -> _Array:
    """Box of a crop of a crop in source pixels, so that the view can be resampled once from the
    source.

    Args:
      outer: [..., 4] box in source pixels that was resized to `size` and, where outer_flips,
        mirrored.
      inner: [..., 4] box in pixels of that resized crop.
      size: (height, width) of the resized crop.
      outer_flips: [...] bool or None. A view of `inner` must be flipped by XOR of this and its own
        flip.

    Returns:
      [..., 4] box in source pixels.
    """
    xp = outer.__array_namespace__()
    step_y, step_x = outer[..., 2] / size[0], outer[..., 3] / size[1]
    left = inner[..., 1]
    if outer_flips is not None:
        left = xp.where(outer_flips, size[1] - inner[..., 1] - inner[..., 3], left)
    y, x = outer[..., 0] + inner[..., 0] * step_y, outer[..., 1] + left * step_x
    return xp.stack([y, x, inner[..., 2] * step_y, inner[..., 3] * step_x], axis=-1)


def overlap(a: _Array, b: _Array) -> _Array:
    """Share of the area of box a [..., 4] that box b [..., 4] covers: 0 = disjoint, 1 = a lies
    inside b.
    """
    xp = a.__array_namespace__()
    top, left = xp.maximum(a[..., 0], b[..., 0]), xp.maximum(a[..., 1], b[..., 1])
    bottom = xp.minimum(a[..., 0] + a[..., 2], b[..., 0] + b[..., 2])
    right = xp.minimum(a[..., 1] + a[..., 3], b[..., 1] + b[..., 3])
    common = xp.maximum(bottom - top, 0) * xp.maximum(right - left, 0)
    return common / (a[..., 2] * a[..., 3])
