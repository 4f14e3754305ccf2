"""What segmentation heads are built of: convolutions, upsampling, dropout of channels."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ssl_jax.models import layers as layers_lib

_EPS = 1e-5  # of BatchNorm
_MOMENTUM = 0.9  # of the running statistics: what torch calls a momentum of 0.1


class Logits(NamedTuple):
    """Class scores [B, h, w, classes], float32; auxiliary: those of a second head that is trained
    next to the first, or None."""

    logits: jax.Array
    auxiliary: jax.Array | None = None


def upsample(x: jax.Array, size: Sequence[int]) -> jax.Array:
    """[B, h, w, c] -> [B, H, W, c], bilinear between the centres of pixels, borders repeated
    (torch's `interpolate` with align_corners=False, mmsegmentation's `resize`)."""
    if x.shape[1:3] == tuple(size):
        return x
    shape = (x.shape[0], *size, x.shape[3])
    return jax.image.resize(x, shape, "linear", antialias=False)


def nearest(x: jax.Array, size: Sequence[int]) -> jax.Array:
    """[B, h, w, c] -> [B, H, W, c] by the nearest place, as torch's `interpolate`: i -> floor(i h /
    H)."""
    rows, columns = (jnp.arange(new) * old // new for new, old in zip(size, x.shape[1:3]))
    return x[:, rows][:, :, columns]


def convolution(
    key: jax.Array, width: int, out: int, size: int, *, init: Callable, bias: bool = True
) -> nnx.Conv:
    """size x size, stride 1, same size out."""
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
    """The last layer: weights from N(0, 0.01^2), as in mmsegmentation."""
    return layers_lib.linear(layers_lib.normal(key, (width, classes), 0.01), jnp.float32)


def batch_norm(width: int) -> nnx.BatchNorm:
    """Over the whole batch, also where that lies on several devices (SyncBN)."""
    return nnx.BatchNorm(
        width,
        momentum=_MOMENTUM,
        epsilon=_EPS,
        dtype=jnp.float32,
        use_fast_variance=False,
        rngs=nnx.Rngs(0),  # nothing is drawn from it
    )


class ConvNormRelu(nnx.Module):
    """Convolution without bias, BatchNorm, ReLU."""

    def __init__(self, key: jax.Array, width: int, out: int, size: int):
        # By the number of outputs, as mmcv initialises what a ReLU follows.
        init = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")
        self.conv = convolution(key, width, out, size, init=init, bias=False)
        self.norm = batch_norm(out)

    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return jax.nn.relu(self.norm(self.conv(x), use_running_average=not train))


def drop_channels(x: jax.Array, rate: float, keys: jax.Array | None) -> jax.Array:
    """Dropout of whole channels of [B, h, w, c]; each image draws from its own of keys [B]. Nothing
    is dropped without keys."""
    if keys is None or rate == 0:
        return x
    share = jnp.float32(1 - rate)
    keep = jax.vmap(lambda key: jax.random.bernoulli(key, share, x.shape[-1:]))(keys)
    return x * (keep[:, None, None] / (1 - rate)).astype(x.dtype)


def average(x: jax.Array, cells: int) -> jax.Array:
    """[B, h, w, c] -> [B, cells, cells, c]: torch's AdaptiveAvgPool2d. Cell i is the mean of places
    floor(i h / cells) .. ceil((i + 1) h / cells) - 1, so that neighbours may share one."""
    rows, columns = (_cells(size, cells) for size in x.shape[1:3])
    return jnp.einsum("yh,bhwc,xw->byxc", rows, x, columns, precision="highest")


def _cells(size: int, cells: int) -> np.ndarray:
    weights = np.zeros((cells, size), np.float32)
    for i in range(cells):
        start, stop = i * size // cells, -(-(i + 1) * size // cells)
        weights[i, start:stop] = 1 / (stop - start)
    return weights
