"""Random erasing (Zhong et al. 2020): a rectangle of a view becomes noise, inside the jitted step.

As DeiT and BEiT use it: the noise is N(0, 1) of pixels as the network sees them, so an erased value
may lie outside of [0, 1].
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax.config import InputError
from ssl_jax.views import section

_TRIES = 10  # rectangles drawn; the first that fits is taken, and if none does, nothing is erased


@dataclass(frozen=True)
class Erasing:
    """How rectangles are erased.

    Attributes:
      prob: probability that a view has an erased rectangle.
      area: (lo, hi) share of the view, drawn uniformly; ratio: (lo, hi) height / width, drawn
        uniformly in its logarithm.
      mean, std: the network's normalisation of images, per channel.

    Raises:
      InputError: a value is out of range.
    """

    prob: float
    area: tuple[float, float] = (0.02, 1 / 3)
    ratio: tuple[float, float] = (0.3, 1 / 0.3)
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self):
        section.KEYS["flip"].check("prob", self.prob)
        for name, (low, high) in (("area", self.area), ("ratio", self.ratio)):
            if not 0 < low <= high:
                raise InputError(f"{name} is {(low, high)}; use (lo, hi) with 0 < lo <= hi")


@functools.partial(jax.jit, static_argnames="erasing")
def erase(rows: jax.Array, keys: jax.Array, erasing: Erasing) -> jax.Array:
    """Erases a rectangle of some views.

    Args:
      rows: float32 [..., H, 3, W] (channels before columns, as in `photometric`).
      keys: typed PRNG keys [...], one per view, which makes all its draws.

    Returns:
      the same shape. A view depends on its own rows and key alone.
    """
    height, width = rows.shape[-3], rows.shape[-1]
    flat = rows.reshape(-1, *rows.shape[-3:])
    mean, std = (np.array(v, np.float32)[None, :, None] for v in (erasing.mean, erasing.std))

    def one(rows, key):
        key_box, key_noise = jax.random.split(key)
        coin, *box = rectangle(key_box, height, width, erasing)
        top, left, tall, wide = box
        y, x = jnp.arange(height)[:, None, None], jnp.arange(width)
        inside = (y >= top) & (y < top + tall) & (x >= left) & (x < left + wide)
        noise = mean + std * jax.random.normal(key_noise, rows.shape, jnp.float32)
        return jnp.where(inside & (coin < erasing.prob), noise, rows)

    return jax.vmap(one)(flat, keys.reshape(-1)).reshape(rows.shape)


def rectangle(key: jax.Array, height: int, width: int, erasing: Erasing) -> tuple[jax.Array, ...]:
    """(coin in [0, 1), top, left, height, width) of the rectangle of one view, in pixels; a height
    of 0 where none of the draws fits into it."""
    u = jax.random.uniform(key, (4 * _TRIES + 1,), jnp.float32)
    area, ratio, top, left = u[1:].reshape(4, _TRIES)
    low, high = erasing.area
    area = height * width * (low + (high - low) * area)
    low, high = np.log(erasing.ratio)
    ratio = jnp.exp(low + (high - low) * ratio)
    tall, wide = jnp.round(jnp.sqrt(area * ratio)), jnp.round(jnp.sqrt(area / ratio))
    fits = (tall < height) & (wide < width)
    top = jnp.floor(top * (height - tall + 1))
    left = jnp.floor(left * (width - wide + 1))
    first = jnp.argmax(fits)
    return u[0], top[first], left[first], jnp.where(fits.any(), tall[first], 0), wide[first]
