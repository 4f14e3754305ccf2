"""Rotary position embeddings (RoPE) on a grid of patches, as in DINOv3: each pair of channels of a
patch's query and key is rotated by an angle proportional to the patch's row or column, so that
their product depends on relative positions only. Class, register and query tokens are not rotated.

Reference: Su et al. 2021, "RoFormer"; facebookresearch/dinov3,
dinov3/layers/rope_position_encoding.py.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_DRAW = 1 << 30  # folded into an image's key; drop-path folds in block numbers


class Settings(NamedTuple):
    """base: base of the periods. rounded: round periods to bfloat16, as in the released files.
    shift, jitter, rescale: augmentation of training coordinates, see `centres`; 0, 1, 1 = none."""

    base: float = 100.0
    rounded: bool = False
    shift: float = 0.0
    jitter: float = 1.0
    rescale: float = 1.0


class Rotation(NamedTuple):
    """Cosines and sines of the angles of all tokens, float32 [1 or B, N, head width]."""

    cos: jax.Array
    sin: jax.Array


def periods(head_width: int, base: float, rounded: bool = False) -> np.ndarray:
    """base^(k / m), k = 0 .. m - 1, float64 [m]; m = head_width / 4."""
    count = head_width // 4
    exact = base ** (np.arange(count) / count)
    return exact.astype(jnp.bfloat16).astype(np.float64) if rounded else exact


def centres(
    grid: tuple[int, int], settings: Settings, keys: jax.Array | None = None
) -> jax.Array | np.ndarray:
    """Rows and columns of the patches' centres in [-1, 1], [1 or B, h * w, 2], row by row.

    keys: [B] typed PRNG keys, one per image, or None for no augmentation. In training, the
    coordinates of an image are shifted by U(-shift, shift) per axis, multiplied by
    exp(U(-ln jitter, ln jitter)) per axis, then by exp(U(-ln rescale, ln rescale)). A draw depends
    only on the image's key and is the same in all blocks.
    """
    axes = [2 * (np.arange(side) + 0.5) / side - 1 for side in grid]
    positions = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(1, -1, 2)
    s = settings
    if keys is None or (s.shift, s.jitter, s.rescale) == (0.0, 1.0, 1.0):
        return positions

    def draw(key):
        drawn = jax.random.uniform(jax.random.fold_in(key, _DRAW), (5,), jnp.float32, -1.0)
        factor = jnp.exp(drawn[2:4] * np.log(s.jitter) + drawn[4] * np.log(s.rescale))
        return (positions[0].astype(np.float32) + s.shift * drawn[:2]) * factor

    return jax.vmap(draw)(keys)


def of_patches(
    grid: tuple[int, int], head_width: int, settings: Settings, keys: jax.Array | None = None
) -> Rotation:
    """The rotation of an image's patches [1 or B, h * w, head_width]: channels 0 .. m - 1 by
    2 pi row / period, the next m by the same of the column; m = head_width / 4. The second half
    repeats the first."""
    positions = centres(grid, settings, keys)
    turns = positions[..., None] / periods(head_width, settings.base, settings.rounded)
    angles = (2 * np.pi * turns).reshape(*positions.shape[:2], head_width // 2)
    lib = np if isinstance(angles, np.ndarray) else jnp
    angles = lib.concatenate([angles, angles], axis=-1)
    return Rotation(*(jnp.asarray(f(angles), jnp.float32) for f in (lib.cos, lib.sin)))


def keep(rotation: Rotation, indices: jax.Array) -> Rotation:
    """The rotation of the patches `indices` [B, m] only."""
    rows = (jnp.broadcast_to(x, (len(indices), *x.shape[1:])) for x in rotation)
    return Rotation(*(jnp.take_along_axis(x, indices[..., None], axis=1) for x in rows))


def among(rotation: Rotation, before: int, after: int) -> Rotation:
    """Extends a rotation by unrotated tokens before and after the patches."""
    widths = ((0, 0), (before, after), (0, 0))
    cos = jnp.pad(rotation.cos, widths, constant_values=1.0)
    return Rotation(cos, jnp.pad(rotation.sin, widths))


def rotate(x: jax.Array, rotation: Rotation) -> jax.Array:
    """Rotates queries or keys [B, N, heads, w], with channels k and k + w / 2 as pairs. Computed in
    float32, returned in the type of x."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate([-second, first], axis=-1)
    cos, sin = (part[:, :, None] for part in rotation)
    return (x * cos + turned * sin).astype(x.dtype)
