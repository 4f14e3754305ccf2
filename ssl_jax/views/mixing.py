"""Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019): images of a batch are mixed in pairs.

Rows 2k and 2k + 1 of a batch are a pair. The order of the records is random, so these pairs are as
random as any others, and a pair is on one device if devices hold an even number of rows. The whole
batch is mixed before it is split into chunks or sharded over devices, and the draws depend only on
a key: chunks, devices and processes do not change the result.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from ssl_jax.config import InputError
from ssl_jax.views import section


@dataclass(frozen=True)
class Mixing:
    """How a batch is mixed. As in DeiT and BEiT, each batch uses one kind of mixing and one share.

    Attributes:
      mixup, cutmix: alpha of the Beta(alpha, alpha) that the share is drawn from; 0 = not used.
      switch_prob: probability of CutMix if both are used. prob: probability that a batch is mixed.

    Raises:
      InputError: a value is out of range, or nothing is mixed.
    """

    mixup: float = 0.8
    cutmix: float = 1.0
    switch_prob: float = 0.5
    prob: float = 1.0

    def __post_init__(self):
        if min(self.mixup, self.cutmix) < 0 or not max(self.mixup, self.cutmix) > 0:
            raise InputError(
                f"mixup is {self.mixup} and cutmix {self.cutmix}; use numbers >= 0, one above 0"
            )
        for name in ("switch_prob", "prob"):
            section.KEYS["flip"].check(name, getattr(self, name))


def partners(x: jax.Array) -> jax.Array:
    """[B, ...] with rows 2k and 2k + 1 exchanged. B must be even."""
    return jnp.flip(x.reshape(-1, 2, *x.shape[1:]), axis=1).reshape(x.shape)


@functools.partial(jax.jit, static_argnames="mixing")
def mix(rows: jax.Array, key: jax.Array, mixing: Mixing) -> tuple[jax.Array, jax.Array]:
    """Mixes each image with its partner.

    Args:
      rows: float32 [B, V, H, 3, W] (channels before columns, as in `photometric`), B even.
      key: one PRNG key for the batch.

    Returns:
      the mixed rows, same shape, and the share of its own image in each: float32 [], in [0, 1].
    """
    key_on, key_which, key_mixup, key_cutmix, key_box = jax.random.split(key, 5)
    other = partners(rows)
    on = jax.random.uniform(key_on, dtype=jnp.float32) < mixing.prob
    chance = mixing.switch_prob if mixing.mixup > 0 and mixing.cutmix > 0 else mixing.cutmix > 0
    cut = jax.random.uniform(key_which, dtype=jnp.float32) < chance

    def beta(key, alpha):
        is_mixed = alpha > 0
        return jax.random.beta(key, alpha, alpha, (), jnp.float32) if is_mixed else jnp.float32(1)

    share = beta(key_mixup, mixing.mixup)
    blended = share * rows + (1 - share) * other
    height, width = rows.shape[-3], rows.shape[-1]
    box = rectangle(key_box, beta(key_cutmix, mixing.cutmix), height, width)
    top, bottom, left, right = box
    y, x = jnp.arange(height)[:, None, None], jnp.arange(width)
    inside = (y >= top) & (y < bottom) & (x >= left) & (x < right)
    pasted = jnp.where(inside, other, rows)
    # The box may stick out of the image: what counts is its area inside.
    own_share = 1 - (bottom - top) * (right - left) / (height * width)
    mixed = jnp.where(on, jnp.where(cut, pasted, blended), rows)
    return mixed, jnp.where(on, jnp.where(cut, own_share, share), 1.0).astype(jnp.float32)


def rectangle(key: jax.Array, share: jax.Array, height: int, width: int) -> tuple[jax.Array, ...]:
    """(top, bottom, left, right) in pixels of CutMix's box: sides sqrt(1 - share) times those of
    the image, the centre uniform over its pixels, cut at its border."""
    side = jnp.sqrt(1 - share)
    bounds: list[jax.Array] = []
    for axis_key, length in zip(jax.random.split(key), (height, width)):
        centre = jax.random.randint(axis_key, (), 0, length, jnp.int32)
        half = jnp.floor(length * side).astype(jnp.int32) // 2
        bounds += [jnp.maximum(centre - half, 0), jnp.minimum(centre + half, length)]
    return tuple(bounds)
