"""Inception v3 for FID: images to 2048 features each.

    from ssl_jax.models import inception
    params = inception.load("pt_inception-2015-12-05-6726825d.safetensors")
    features = inception.apply(params, images)    # [B, H, W, 3] in [0, 1] -> [B, 2048]

The network is TensorFlow's of 2015-12-05 (Szegedy et al. 2015, "Rethinking the Inception
Architecture"), with the parameter names of its PyTorch port: average pools exclude padding, and the
last block has a maximum pool. As in FID's first implementation, images are rounded to 8 bits,
resized to 299 x 299 by TensorFlow 1's bilinear rule, and scaled to (x - 128) / 128. Untested on the
published weights, which the test machines lack.
"""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax.config import InputError
from ssl_jax.models import weights

WIDTH, SIDE = 2048, 299
FILE = "pt_inception-2015-12-05-6726825d"
FETCH = (
    f"fetch {FILE}.pth (GitHub, mseitzer/pytorch-fid, release fid_weights) and convert it once"
    f" where torch is: safetensors.torch.save_file(torch.load('{FILE}.pth'), '{FILE}.safetensors')"
)
_EPS = 1e-3  # of every batch norm
_NORM = ("weight", "bias", "running_mean", "running_var")
# Applies a layer: conv(x, name, channels, (height, width), stride, padding) -> x.
Conv = Callable[..., jax.Array]


def apply(params: Mapping[str, jax.Array], images: jax.Array) -> jax.Array:
    """Features [B, 2048] float32 of images [B, H, W, 3] in [0, 1]; params: from `load`."""
    return features(params, preprocess(images))


def features(params: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    """Features [B, 2048] of the output of `preprocess`, or of another size of at least 75 x 75."""

    def conv(x, name, width, kernel, stride=1, padding=(0, 0)):
        y = jax.lax.conv_general_dilated(
            x,
            params[f"{name}.conv.weight"],
            (stride, stride),
            [(p, p) for p in padding],
            dimension_numbers=("NHWC", "OIHW", "NHWC"),
        )
        scale, shift, mean, variance = (params[f"{name}.bn.{part}"] for part in _NORM)
        return jax.nn.relu((y - mean) * (scale * jax.lax.rsqrt(variance + _EPS)) + shift)

    return _network(conv, x)


def preprocess(images: jax.Array) -> jax.Array:
    """Converts images [B, H, W, 3] in [0, 1] to the network's input, [B, 299, 299, 3] in
    [-1, 1). Raises ValueError for integers."""
    if not jnp.issubdtype(jnp.asarray(images).dtype, jnp.floating):
        raise ValueError(f"images are {images.dtype}; expected floating point in [0, 1]")
    images = jnp.round(255 * jnp.clip(jnp.asarray(images, jnp.float32), 0, 1))
    rows, columns = (resize_matrix(n, SIDE) for n in images.shape[1:3])
    x = jnp.einsum("yh,bhwc,xw->byxc", rows, images, columns, precision=jax.lax.Precision.HIGHEST)
    return (x - 128) / 128


def resize_matrix(size: int, to: int) -> np.ndarray:
    """[to, size] float32: TensorFlow 1's bilinear resize, which samples pixel i at i size / to."""
    source = np.arange(to) * (size / to)
    low = np.floor(source).astype(int)
    matrix = np.zeros((to, size))
    np.add.at(matrix, (np.arange(to), low), 1 - (source - low))
    np.add.at(matrix, (np.arange(to), np.minimum(low + 1, size - 1)), source - low)
    return matrix.astype(np.float32)


@functools.cache
def shapes() -> dict[str, tuple[int, ...]]:
    """{published name: shape} of all parameters, convolutions as [out, in, height, width]."""
    result: dict[str, tuple[int, ...]] = {}

    def conv(x, name, width, kernel, stride=1, padding=(0, 0)):
        result[f"{name}.conv.weight"] = (width, x.shape[-1], *kernel)
        result.update({f"{name}.bn.{part}": (width,) for part in _NORM})
        h, w = ((n + 2 * p - k) // stride + 1 for n, p, k in zip(x.shape[1:3], padding, kernel))
        return jnp.zeros((x.shape[0], h, w, width))

    jax.eval_shape(lambda x: _network(conv, x), jax.ShapeDtypeStruct((1, SIDE, SIDE, 3), "float32"))
    return result


def load(path: str) -> dict[str, np.ndarray]:
    """Reads the weights, without the classifier, from a .safetensors or .npz file with the
    published names. Raises InputError, naming the file to fetch."""
    arrays = weights.read(path, "Inception", FETCH)
    for name, shape in shapes().items():
        if name not in arrays or arrays[name].shape != shape:
            has = f"has shape {arrays[name].shape}" if name in arrays else "is not there"
            raise InputError(
                f"{path}: {name} {has}, and must have shape {shape}: these are not the weights of"
                f" FID's Inception; {FETCH}"
            )
    return {name: np.asarray(arrays[name], np.float32) for name in shapes()}


# The network. Names are the published ones; activations [B, H, W, C].


def _network(conv: Conv, x: jax.Array) -> jax.Array:
    x = conv(x, "Conv2d_1a_3x3", 32, (3, 3), 2)
    x = conv(x, "Conv2d_2a_3x3", 32, (3, 3))
    x = conv(x, "Conv2d_2b_3x3", 64, (3, 3), 1, (1, 1))
    x = _max_pool(x, 2)
    x = conv(x, "Conv2d_3b_1x1", 80, (1, 1))
    x = conv(x, "Conv2d_4a_3x3", 192, (3, 3))
    x = _max_pool(x, 2)
    for name, pooled in (("Mixed_5b", 32), ("Mixed_5c", 64), ("Mixed_5d", 64)):
        x = _block_35(conv, x, name, pooled)
    x = _reduce_35(conv, x, "Mixed_6a")
    for name, inner in (("Mixed_6b", 128), ("Mixed_6c", 160), ("Mixed_6d", 160), ("Mixed_6e", 192)):
        x = _block_17(conv, x, name, inner)
    x = _reduce_17(conv, x, "Mixed_7a")
    x = _block_8(conv, x, "Mixed_7b", _average_pool)
    x = _block_8(conv, x, "Mixed_7c", functools.partial(_max_pool, stride=1, padding=1))
    return x.mean(axis=(1, 2))


def _block_35(conv, x, name, pooled):
    a = conv(x, f"{name}.branch1x1", 64, (1, 1))
    b = conv(x, f"{name}.branch5x5_1", 48, (1, 1))
    b = conv(b, f"{name}.branch5x5_2", 64, (5, 5), 1, (2, 2))
    c = conv(x, f"{name}.branch3x3dbl_1", 64, (1, 1))
    c = conv(c, f"{name}.branch3x3dbl_2", 96, (3, 3), 1, (1, 1))
    c = conv(c, f"{name}.branch3x3dbl_3", 96, (3, 3), 1, (1, 1))
    d = conv(_average_pool(x), f"{name}.branch_pool", pooled, (1, 1))
    return jnp.concatenate([a, b, c, d], axis=-1)


def _reduce_35(conv, x, name):
    a = conv(x, f"{name}.branch3x3", 384, (3, 3), 2)
    b = conv(x, f"{name}.branch3x3dbl_1", 64, (1, 1))
    b = conv(b, f"{name}.branch3x3dbl_2", 96, (3, 3), 1, (1, 1))
    b = conv(b, f"{name}.branch3x3dbl_3", 96, (3, 3), 2)
    return jnp.concatenate([a, b, _max_pool(x, 2)], axis=-1)


def _block_17(conv, x, name, inner):
    wide, high = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))
    a = conv(x, f"{name}.branch1x1", 192, (1, 1))
    b = conv(x, f"{name}.branch7x7_1", inner, (1, 1))
    b = conv(b, f"{name}.branch7x7_2", inner, *wide)
    b = conv(b, f"{name}.branch7x7_3", 192, *high)
    c = conv(x, f"{name}.branch7x7dbl_1", inner, (1, 1))
    c = conv(c, f"{name}.branch7x7dbl_2", inner, *high)
    c = conv(c, f"{name}.branch7x7dbl_3", inner, *wide)
    c = conv(c, f"{name}.branch7x7dbl_4", inner, *high)
    c = conv(c, f"{name}.branch7x7dbl_5", 192, *wide)
    d = conv(_average_pool(x), f"{name}.branch_pool", 192, (1, 1))
    return jnp.concatenate([a, b, c, d], axis=-1)


def _reduce_17(conv, x, name):
    a = conv(x, f"{name}.branch3x3_1", 192, (1, 1))
    a = conv(a, f"{name}.branch3x3_2", 320, (3, 3), 2)
    b = conv(x, f"{name}.branch7x7x3_1", 192, (1, 1))
    b = conv(b, f"{name}.branch7x7x3_2", 192, (1, 7), 1, (0, 3))
    b = conv(b, f"{name}.branch7x7x3_3", 192, (7, 1), 1, (3, 0))
    b = conv(b, f"{name}.branch7x7x3_4", 192, (3, 3), 2)
    return jnp.concatenate([a, b, _max_pool(x, 2)], axis=-1)


def _block_8(conv, x, name, pool):
    wide, high = ((1, 3), 1, (0, 1)), ((3, 1), 1, (1, 0))
    a = conv(x, f"{name}.branch1x1", 320, (1, 1))
    b = conv(x, f"{name}.branch3x3_1", 384, (1, 1))
    b = [conv(b, f"{name}.branch3x3_2a", 384, *wide), conv(b, f"{name}.branch3x3_2b", 384, *high)]
    c = conv(x, f"{name}.branch3x3dbl_1", 448, (1, 1))
    c = conv(c, f"{name}.branch3x3dbl_2", 384, (3, 3), 1, (1, 1))
    c = [
        conv(c, f"{name}.branch3x3dbl_3a", 384, *wide),
        conv(c, f"{name}.branch3x3dbl_3b", 384, *high),
    ]
    d = conv(pool(x), f"{name}.branch_pool", 192, (1, 1))
    return jnp.concatenate([a, *b, *c, d], axis=-1)


def _max_pool(x, stride, padding=0):
    edges = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    return jax.lax.reduce_window(
        x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, stride, stride, 1), edges
    )


def _average_pool(x):
    """3 x 3 average that excludes padding."""
    edges = ((0, 0), (1, 1), (1, 1), (0, 0))

    def total(values):
        return jax.lax.reduce_window(values, 0.0, jax.lax.add, (1, 3, 3, 1), (1, 1, 1, 1), edges)

    return total(x) / total(jnp.ones((1, *x.shape[1:3], 1), x.dtype))
