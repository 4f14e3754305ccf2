"""The raw-pixel baseline: pixels as features, scored like those of a network."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax.features.network import Network
from ssl_jax.ops import patchify

GRID = 16  # cells along a side of the averaged image


class Pixels(NamedTuple):
    """The fields of `methods.Features` that the raw-pixel baseline has."""

    image: jax.Array  # [B, d]
    patches: jax.Array  # [B, h, w, d]


class RawPixels(Network):
    """Features from the pixels of images [B, H, W, C] in [0, 1], evaluated like those of a network
    with patches of `patch` pixels.

    `.image` [B, C * grid**2]: each channel averaged over a grid x grid partition of the image,
      minus its mean over the image, so that overall brightness and tint do not dominate the cosine.
    `.patches` [B, H/patch, W/patch, C * patch**2]: the pixels of the patch minus 0.5 (mid grey),
      without position.
    """

    def __init__(self, patch: int, grid: int = GRID):
        super().__init__(functools.partial(_pixels, patch=patch, grid=grid))
        self.digest = f"raw pixels, patch {patch}, grid {grid}"


@functools.cache
def raw_pixels(patch: int, grid: int = GRID) -> RawPixels:
    """The cached RawPixels of a patch size and grid."""
    return RawPixels(patch, grid)


@functools.partial(jax.jit, static_argnames=("patch", "grid"))
def _pixels(images, patch, grid):
    images = jnp.asarray(images, jnp.float32)
    b, height, width, _ = images.shape
    rows, columns = area_weights(height, grid), area_weights(width, grid)
    small = jnp.einsum("yh,bhwc,xw->byxc", rows, images, columns, precision="highest")
    small -= small.mean(axis=(1, 2), keepdims=True)
    h, w = height // patch, width // patch
    patches = patchify(images, patch).reshape(b, h, w, -1)
    return Pixels(image=small.reshape(b, -1), patches=patches - 0.5)


def area_weights(size: int, cells: int) -> np.ndarray:
    """Weights [cells, size] float32: row i averages the pixels in the i-th of `cells` equal cells;
    a pixel on a border counts in proportion to its overlap.
    """
    edges = np.linspace(0, size, cells + 1)
    pixels = np.arange(size)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return (np.maximum(overlap, 0) * cells / size).astype(np.float32)
