"""Sliding windows: joins the logits of an image's windows into classes of its pixels."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax.models import segmentation

_BUCKET = 64  # pixels; sides are rounded up to multiples of it, so that fewer sizes are compiled


def starts(length: int, window: int, stride: int) -> list[int]:
    """Starts of the windows along a side: every `stride` pixels, the last one moved back to end at
    the border; as in mmsegmentation's slide_inference."""
    count = max(length - window + stride - 1, 0) // stride + 1
    return [max(min(i * stride + window, length) - window, 0) for i in range(count)]


def grid_labels(masks: Any, grid: Sequence[int]) -> Any:
    """Reduces masks [..., H, W] to [..., h, w]: the labels at (floor(i H / h), floor(j W / w)), as
    in torch's nearest interpolation."""
    rows, columns = (np.arange(new) * old // new for new, old in zip(grid, masks.shape[-2:]))
    return masks[..., rows, :][..., columns]


def join(
    logits: jax.Array,
    corners: Sequence[tuple[int, int]],
    window: tuple[int, int],
    size: tuple[int, int],
    result: Sequence[int],
) -> np.ndarray:
    """Classes uint8 [networks, H, W] from the logits [windows, networks, h, w, c] of an image.

    The logits of each window are upsampled to its pixels, averaged where windows overlap and
    resampled to `result`, all bilinearly; the largest wins, as in mmsegmentation's inference.

    corners: (y, x) of the windows in an image of `size`. window: (height, width) of each. result:
    (H, W).
    """
    counts: np.ndarray
    if len(corners) == 1 and window == size:
        canvas = _enlarged(logits[0], window)
        counts = np.ones(window, np.float32)
    else:
        height, width = (_bucket(max(a, b)) for a, b in zip(size, window))
        canvas = jnp.zeros((logits.shape[1], height, width, logits.shape[-1]), jnp.float32)
        counts = np.zeros((height, width), np.float32)
        for part, (y, x) in zip(logits, corners):
            canvas = _added(canvas, part, y, x, window)
            counts[y : y + window[0], x : x + window[1]] += 1
    samples = [_samples(old, new, _bucket(new)) for old, new in zip(size, result)]
    labels = _decided(canvas, np.maximum(counts, 1), *samples)
    return np.asarray(labels)[:, : result[0], : result[1]]


def _bucket(length: int) -> int:
    return -(-length // _BUCKET) * _BUCKET


def _samples(old: int, new: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For `new` bilinear samples of `old` pixels, padded to `length`: the first neighbour, the
    second, and the weight of the second."""
    places = np.maximum((np.arange(length) + 0.5) * old / new - 0.5, 0)
    first = np.minimum(np.floor(places).astype(np.int32), old - 1)
    weight = np.where(first < old - 1, places - first, 0).astype(np.float32)
    return first, np.minimum(first + 1, old - 1).astype(np.int32), weight


@functools.partial(jax.jit, static_argnames="size")
def _enlarged(logits, size):
    return segmentation.upsample(logits, size)


@functools.partial(jax.jit, static_argnames="size", donate_argnums=0)
def _added(canvas, logits, y, x, size):
    """Adds the logits [networks, h, w, c] of a window to the canvas at (y, x)."""
    large = segmentation.upsample(logits, size)
    current = jax.lax.dynamic_slice(canvas, (0, y, x, 0), large.shape)
    return jax.lax.dynamic_update_slice(canvas, current + large, (0, y, x, 0))


@jax.jit
def _decided(canvas, counts, rows, columns):
    """Averages and resamples the canvas and takes the largest class: uint8 [networks, H, W]."""
    x = canvas / counts[..., None]
    for axis, (first, second, weight) in ((1, rows), (2, columns)):
        shape = [1, 1, 1, 1]
        shape[axis] = -1
        weight = weight.reshape(shape)
        x = jnp.take(x, first, axis=axis) * (1 - weight) + jnp.take(x, second, axis=axis) * weight
    return jnp.argmax(x, axis=-1).astype(jnp.uint8)
