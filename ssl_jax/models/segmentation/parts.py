"""Building blocks of segmentation heads: convolutions, upsampling, channel dropout."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ssl_jax.models import layers as layers_lib

_EPS = 1e-5  # of BatchNorm
_MOMENTUM = 0.9  # of the running statistics; torch calls this a momentum of 0.1


class Logits(NamedTuple):
    """Class scores [B, h, w, classes], float32. auxiliary: scores of an auxiliary head for
    training, or None."""

    logits: jax.Array
    auxiliary: jax.Array | None = None


def upsample(x: jax.Array, size: Sequence[int]) -> jax.Array:
    """[B, h, w, c] -> [B, H, W, c], bilinear between pixel centres, borders repeated (torch's
    `interpolate` with align_corners=False, mmsegmentation's `resize`)."""
    if x.shape[1:3] == tuple(size):
        return x
    shape = (x.shape[0], *size, x.shape[3])
    return jax.image.resize(x, shape, "linear", antialias=False)


def nearest(x: jax.Array, size: Sequence[int]) -> jax.Array:
    """[B, h, w, c] -> [B, H, W, c], nearest neighbour as in torch's `interpolate`: row i comes from
    floor(i h / H)."""
    rows, columns = (jnp.arange(new) * old // new for new, old in zip(size, x.shape[1:3]))
    return x[:, rows][:, :, columns]


def convolution(
    key: jax.Array, width: int, out: int, size: int, *, init: Callable, bias: bool = True
) -> nnx.Conv:
    """size x size, stride 1, padded to the same output size."""
    return nnx.Conv(
        width,
        out,
        (size, size),
        use_bias=bias,
        kernel_init=init,
        dtype=jnp.float32,
        rngs=nnx.Rngs(params=key),
    )


def classifier(key: jax.Array, width: int, classes: int) -> nnx.Linear:
    """The last layer, with initial weights from N(0, 0.01^2) as in mmsegmentation."""
    return layers_lib.linear(layers_lib.normal(key, (width, classes), 0.01), jnp.float32)


def batch_norm(width: int) -> nnx.BatchNorm:
    """BatchNorm over the global batch, also when sharded (SyncBN)."""
    return nnx.BatchNorm(
        width,
        momentum=_MOMENTUM,
        epsilon=_EPS,
        dtype=jnp.float32,
        use_fast_variance=False,
        rngs=nnx.Rngs(0),  # unused
    )


class ConvNormRelu(nnx.Module):
    """Convolution without bias, BatchNorm, ReLU."""

    def __init__(self, key: jax.Array, width: int, out: int, size: int):
        # mmcv's initialisation before a ReLU: variance 2 / fan_out.
        init = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")
        self.conv = convolution(key, width, out, size, init=init, bias=False)
        self.norm = batch_norm(out)

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return jax.nn.relu(self.norm(self.conv(x), use_running_average=not train))


def drop_channels(x: jax.Array, rate: float, keys: jax.Array | None) -> jax.Array:
    """Drops whole channels of [B, h, w, c], with one of keys [B] per image; None: no dropout."""
    if keys is None or rate == 0:
        return x
    share = jnp.float32(1 - rate)
    keep = jax.vmap(lambda key: jax.random.bernoulli(key, share, x.shape[-1:]))(keys)
    return x * (keep[:, None, None] / (1 - rate)).astype(x.dtype)


def average(x: jax.Array, cells: int) -> jax.Array:
    """[B, h, w, c] -> [B, cells, cells, c], torch's AdaptiveAvgPool2d. Cell i averages rows
    floor(i h / cells) .. ceil((i + 1) h / cells) - 1; adjacent cells may overlap."""
    rows, columns = (_cells(size, cells) for size in x.shape[1:3])
    return jnp.einsum("yh,bhwc,xw->byxc", rows, x, columns, precision="highest")


def _cells(size: int, cells: int) -> np.ndarray:
    weights = np.zeros((cells, size), np.float32)
    for i in range(cells):
        start, stop = i * size // cells, -(-(i + 1) * size // cells)
        weights[i, start:stop] = 1 / (stop - start)
    return weights
