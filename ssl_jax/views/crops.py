"""Cropping and resizing views: one definition (antialiased Keys cubic, a = -1/2), on the host and
on the device.

Sample o of a view lies at y + (o + 1/2) height / size - 1/2 in source pixels. Its value is the mean
of the source pixels around it under Keys' cubic kernel, widened by height / size when the crop is
shrunk (antialiasing), over the pixels that exist (also those outside the box), and clipped to the
range of the image. This is Pillow's BICUBIC `resize` with a float `box`, and
`jax.image.scale_and_translate(method="cubic")`. Host and device differ by at most 1.1/255, because
Pillow rounds to 8 bit after each of its two passes (tested). It also clips there: where the cubic
overshoots black or white in one pass and the other would have brought it back, isolated pixels
differ by more (0.5 % of full-range noise, up to 15/255).
"""

import cv2
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import InputError
from ssl_jax.data import planes


def crop_host(image: np.ndarray, box: ArrayLike, size: int, flip: bool) -> np.ndarray:
    """Crops `box` from an image, resizes it to size x size and mirrors it horizontally if `flip`;
    by Pillow.

    Args:
      image: [H, W, C], uint8 or float32 in [0, 1]; box: (y, x, height, width), inside the image.

    Returns:
      [size, size, C] of the same type.

    Raises:
      InputError: the image has another type.
    """
    return crops_host(image, np.asarray(box)[None], size, np.asarray(flip)[None])[0]


def crops_host(
    image: np.ndarray,
    boxes: np.ndarray,
    size: int,
    flips: np.ndarray,
    area: bool = False,
    bilinear: bool = False,
) -> np.ndarray:
    """`crop_host` for several boxes [V, 4] and flips [V] of one image: [V, size, size, C].

    area: crops at whole source pixels and averages those that a pixel of the view covers, or
    interpolates linearly if the crop is enlarged; by OpenCV, in half the time.
    bilinear: Pillow's antialiased bilinear filter instead of its bicubic.
    """
    if image.dtype not in (np.uint8, np.float32):
        raise InputError(
            f"image has dtype {image.dtype}; cropping on the host takes uint8 and float32: set"
            ' data.crop_on="device"'
        )
    height, width = image.shape[:2]
    parts = planes.split(image)
    out = np.empty((len(boxes), size, size, image.shape[2]), image.dtype)
    for view, (y, x, h, w), flip in zip(out, boxes.tolist(), flips.tolist(), strict=True):
        # A composed float32 box may stick out by a rounding error, which Pillow refuses.
        box = (max(x, 0.0), max(y, 0.0), min(x + w, width), min(y + h, height))
        if area:
            left, upper, right, lower = map(round, box)
            left, upper = min(left, width - 1), min(upper, height - 1)
            part = image[upper : max(lower, upper + 1), left : max(right, left + 1)]
            pixels = _means(part, size)
        else:
            pixels = planes.resampled(parts, (size, size), box, bilinear)
        view[:] = pixels[:, ::-1] if flip else pixels
    return out


def _means(part: np.ndarray, size: int) -> np.ndarray:
    """[size, size, C] of a part [H, W, C], see `crops_host`; OpenCV has up to four channels."""

    def resized(pixels):
        return cv2.resize(pixels, (size, size), interpolation=cv2.INTER_AREA)

    if part.shape[2] == 3:
        return resized(part)
    channels = [np.ascontiguousarray(part[..., i]) for i in range(part.shape[2])]
    return np.stack([resized(channel) for channel in channels], axis=-1)


def keys_cubic(x: jax.Array) -> jax.Array:
    """Keys' cubic convolution kernel with a = -1/2 (Keys 1981, eq. 15) at distances x >= 0, in
    samples.
    """
    near = ((1.5 * x - 2.5) * x) * x + 1.0
    far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
    return jnp.where(x < 1.0, near, jnp.where(x < 2.0, far, 0.0))


def weights(
    start: jax.Array, length: jax.Array, source_size: int, size: int, flips: jax.Array | None = None
) -> jax.Array:
    """Resampling matrix along one axis.

    Args:
      start, length: [...] float32, the interval of the source in pixels.
      source_size: pixels of the source on this axis. size: pixels of the view.
      flips: [...] bool or None, reverses the output samples.

    Returns:
      [..., size, source_size] float32; rows sum to 1.
    """
    step = length[..., None, None] / size
    out = jnp.arange(size, dtype=jnp.float32)
    if flips is not None:
        out = jnp.where(flips[..., None], size - 1 - out, out)
    centre = start[..., None, None] + (out[..., :, None] + 0.5) * step
    distance = jnp.abs(jnp.arange(source_size, dtype=jnp.float32) + 0.5 - centre) / jnp.maximum(
        step, 1.0
    )
    kernel = keys_cubic(distance)
    return kernel / kernel.sum(-1, keepdims=True)


def crops_device(rows: jax.Array, boxes: jax.Array, flips: jax.Array, size: int) -> jax.Array:
    """Crops and resizes views by two matrix products per view; works under jit, vmap and sharding.

    Args:
      rows: float32 [B, H, C, W] in [0, 1], images with the channel axis before the column axis. A
        NaN anywhere in an image makes all its views NaN and leaves the other images alone.
      boxes: float32 [B, V, 4]; flips: bool [B, V].

    Returns:
      float32 [B, V, size, C, size] in [0, 1].
    """
    vertical = weights(boxes[..., 0], boxes[..., 2], rows.shape[1], size)
    horizontal = weights(boxes[..., 1], boxes[..., 3], rows.shape[3], size, flips)
    # Accelerators would otherwise round the operands to bf16 or tf32.
    exact = jax.lax.Precision.HIGHEST
    half = jnp.einsum("bvoh,bhcw->bvocw", vertical, rows, precision=exact)
    return jnp.clip(jnp.einsum("bvocw,bvpw->bvocp", half, horizontal, precision=exact), 0.0, 1.0)
