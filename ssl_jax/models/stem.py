"""A convolutional stem: embeds patches by small convolutions instead of one linear layer."""

import itertools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from ssl_jax.models import layers

_SIDE = 3  # of a convolution's kernel, in pixels


class ConvStem(nnx.Module):
    """Images [B, H, W, channels] -> one token per patch [B, n, width], row by row: log2(patch)
    3 x 3 convolutions with stride 2, whose channels double up to `width`, each with LayerNorm and
    ReLU, then a linear layer (Xiao et al. 2021, "Early convolutions help transformers see better",
    section 4, but with LayerNorm instead of BatchNorm).

    patch: a power of 2, at least 2. The receptive field is 2 patch - 1 pixels per side.
    Parameters: "convs/i" (kernel [9 * channels, out], rows ordered by row, column, channel of the
    window, and bias), "norms/i", "out".
    """

    def __init__(
        self, key: jax.Array, patch: int, channels: int, width: int, eps: float, dtype: DTypeLike
    ):
        shapes = kernels(patch, channels, width)
        *keys, last = jax.random.split(key, len(shapes) + 1)
        self.convs = nnx.List(
            [
                layers.linear(layers.uniform(key, shape), dtype)
                for key, shape in zip(keys, shapes, strict=True)
            ]
        )
        self.norms = nnx.List([layers.LayerNorm(out, eps) for _, out in shapes])
        self.out = layers.linear(layers.uniform(last, (width, width)), dtype)

    def __call__(self, x: jax.Array) -> jax.Array:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = nnx.relu(norm(conv(windows(x))))
        return self.out(x.reshape(x.shape[0], -1, x.shape[-1]))


def windows(x: jax.Array) -> jax.Array:
    """[B, H, W, C] -> [B, H/2, W/2, 9 C], the inputs at each position of a 3 x 3 convolution with
    stride 2 and padding 1. The convolution becomes a matrix product, because XLA's own takes ten
    times as long inside a loop of steps on a CPU."""
    x = jnp.pad(x, ((0, 0), (1, 0), (1, 0), (0, 0)))
    rows, columns = x.shape[1] - 1, x.shape[2] - 1
    shifts = itertools.product(range(_SIDE), repeat=2)
    return jnp.concatenate(
        [x[:, i : i + rows : 2, j : j + columns : 2] for i, j in shifts], axis=-1
    )


def kernels(patch: int, channels: int, width: int) -> list[tuple[int, int]]:
    """Shapes of the convolutions' kernels, as matrices."""
    count = patch.bit_length() - 1
    sizes = [channels, *(max(1, width >> i) for i in reversed(range(count)))]
    return [(_SIDE**2 * fan_in, fan_out) for fan_in, fan_out in itertools.pairwise(sizes)]


def products(patches: int, patch: int, channels: int, width: int) -> int:
    """Multiply-adds for an image of `patches` patches."""
    total = patches * width * width
    for i, (rows, columns) in enumerate(kernels(patch, channels, width), 1):
        total += patches * (patch >> i) ** 2 * rows * columns
    return total
