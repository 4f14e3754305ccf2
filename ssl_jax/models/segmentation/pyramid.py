"""Resamples the maps of a vision transformer, all of one stride, to a pyramid."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from ssl_jax.models.segmentation import parts

STRIDES = (4, 8, 16, 32)  # of the pyramid's levels, in pixels


class Pyramid(nnx.Module):
    """Four maps [B, h, w, width] -> four maps [B, h_i, w_i, width], at strides of 4 to 32 pixels
    for patches of 16 pixels, and proportionally for others.

    As in BEiT, XCiT and iBOT: two transposed convolutions with BatchNorm and GELU between them for
    the first level, one for the second, none for the third, and 2 x 2 max pooling (odd sizes are
    padded) for the fourth.
    """

    def __init__(self, key: jax.Array, width: int):
        keys = jax.random.split(key, 3)
        self.up4 = _doubled(keys[0], width)
        self.norm4 = parts.batch_norm(width)
        self.up4b = _doubled(keys[1], width)
        self.up8 = _doubled(keys[2], width)

    def __call__(self, maps: Sequence[jax.Array], train: bool) -> list[jax.Array]:
        first, second, third, fourth = (x.astype(jnp.float32) for x in maps)
        x = self.norm4(self.up4(first), use_running_average=not train)
        x = self.up4b(jax.nn.gelu(x, approximate=False))
        return [x, self.up8(second), third, nnx.max_pool(fourth, (2, 2), (2, 2), "SAME")]


def _doubled(key: jax.Array, width: int) -> nnx.ConvTranspose:
    # torch's default for this layer: uniform in +-1 / sqrt(4 width).
    init = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
    return nnx.ConvTranspose(
        width,
        width,
        (2, 2),
        (2, 2),
        padding="VALID",
        kernel_init=init,
        dtype=jnp.float32,
        rngs=nnx.Rngs(params=key),
    )
