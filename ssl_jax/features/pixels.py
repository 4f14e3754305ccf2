"""The raw-pixel baseline: what an evaluation gives for the pixels themselves."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax.features.network import Network
from ssl_jax.ops import patchify

GRID = 16  # side to which an image is averaged


class Pixels(NamedTuple):
    """What the raw-pixel baseline has of `methods.Features`."""

    image: jax.Array  # [B, d]
    patches: jax.Array  # [B, h, w, d]


class RawPixels(Network):
    """images [B, H, W, C] in [0, 1] -> Pixels, for the same evaluation as a network with patches of
    `patch` pixels.

    `.image` [B, C * grid**2]: colours averaged over a grid x grid partition of the image, minus
    their mean over the image per channel, so that brightness and tint of the whole picture do not
    decide the cosine.
    `.patches` [B, H/patch, W/patch, C * patch**2]: the pixels of the patch minus mid grey. No
      position is added.
    """

    def __init__(self, patch: int, grid: int = GRID):
        super().__init__(functools.partial(_pixels, patch=patch, grid=grid))
        self.digest = f"raw pixels, patch {patch}, grid {grid}"


@functools.cache
def raw_pixels(patch: int, grid: int = GRID) -> RawPixels:
    """The RawPixels of that patch and grid."""
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
    """[cells, size] float32: row i averages the pixels in cell i of `cells` equal cells, shared
    pixels by share.
    """
    edges = np.linspace(0, size, cells + 1)
    pixels = np.arange(size)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return (np.maximum(overlap, 0) * cells / size).astype(np.float32)
