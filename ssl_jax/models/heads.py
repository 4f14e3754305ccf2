"""Heads: SOP's projection onto the unit sphere, DINO's head with weight-normalised prototypes, and
a linear classifier.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from ssl_jax.models import fused
from ssl_jax.models import layers as layers_lib
from ssl_jax.models.functional import Model, functional
from ssl_jax.ops import numerics


def l2_normalize(x: jax.Array, eps: float = 1e-6) -> jax.Array:
    """x / max(|x|, eps) along the last axis, in float32. Value and gradient are finite, even at
    x = 0.
    """
    x = x.astype(jnp.float32)
    return x * _one_over_norm(x, -1, eps)


def _one_over_norm(x, axis, eps=1e-6):
    # The maximum of the squares has gradient 0 below eps, which avoids 0 / 0.
    return jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(axis=axis, keepdims=True), eps**2))


@functools.cache
def projection_head(
    in_dim: int,
    hidden: int = 2048,
    out: int = 256,
    layers: int = 3,
    init_std: float = 0.02,
    dtype: str = "float32",
) -> Model:
    """SOP's head: Linear, GELU, ..., Linear, then L2 normalisation; shared by class token and
    patches.

    apply(params, x [..., in_dim]) -> float32 [..., out] of unit length.
    Parameters: "mlp/0" .. "mlp/<layers - 1>", each with kernel and bias.

    Raises:
      ValueError: invalid sizes; in apply: an x of another width.
    """
    _check_sizes(init_std, in_dim=in_dim, hidden=hidden, out=out, layers=layers)
    sizes = _sizes(in_dim, hidden, out, layers)
    return functional(_Projection, sizes=sizes, init_std=init_std, dtype=dtype)


@functools.cache
def dino_head(
    in_dim: int,
    out: int,
    hidden: int = 2048,
    bottleneck: int = 256,
    layers: int = 3,
    init_std: float = 0.02,
    dtype: str = "float32",
) -> Model:
    """DINO's head (Caron et al. 2021, app. C): MLP to a bottleneck, L2 normalisation,
    weight-normalised linear layer without bias.

    apply(params, x [..., in_dim]) -> logits float32 [..., out], cosines in [-1, 1] if all gains
    are 1.
    Parameters: "mlp/i" and "last": direction [bottleneck, out] (columns are scaled to unit length
    before use) and gain [1, out], two-dimensional so that rules by rank treat it as in the
    published code. An optimizer rule decides whether the gain is trained.

    Raises:
      ValueError: invalid sizes; in apply: an x of another width.
    """
    _check_sizes(
        init_std, in_dim=in_dim, out=out, hidden=hidden, bottleneck=bottleneck, layers=layers
    )
    sizes = _sizes(in_dim, hidden, bottleneck, layers)
    return functional(_Prototypes, sizes=sizes, out=out, init_std=init_std, dtype=dtype)


@functools.cache
def linear_head(
    in_dim: int, out: int, norm: bool = False, init_std: float = 0.02, dtype: str = "float32"
) -> Model:
    """A linear classifier; with `norm`, a LayerNorm precedes the linear layer.

    apply(params, x [..., in_dim]) -> float32 [..., out].
    Parameters: "linear" (kernel, N(0, init_std^2), and bias, 0) and, with `norm`, "norm".

    Raises:
      ValueError: invalid sizes.
    """
    _check_sizes(init_std, in_dim=in_dim, out=out)
    return functional(_Linear, sizes=(in_dim, out), norm=norm, std=init_std, dtype=dtype)


@functools.cache
def prototypes(in_dim: int, out: int, dtype: str = "float32") -> Model:
    """The weight-normalised last layer of `dino_head`, for several such layers after one
    `projection_head`.

    apply(params) -> its matrix [in_dim, out] in `dtype`. The caller multiplies embeddings
      [..., in_dim] with it, possibly in chunks.
    Parameters: direction and gain as in `dino_head`.

    Raises:
      ValueError: invalid sizes.
    """
    _check_sizes(in_dim=in_dim, out=out)
    kernel = _WeightNormLinear.kernel
    return functional(_WeightNormLinear, kernel, fan_in=in_dim, fan_out=out, dtype=dtype)


class _Projection(nnx.Module):
    def __init__(self, key, sizes, init_std, dtype):
        self.mlp = _mlp(key, sizes, init_std, dtype)

    def __call__(self, x):
        return l2_normalize(_run_mlp(self.mlp, x))


class _Linear(nnx.Module):
    def __init__(self, key, sizes, norm, std, dtype):
        self.norm = layers_lib.LayerNorm(sizes[0], 1e-6) if norm else None
        self.linear = layers_lib.linear(layers_lib.normal(key, sizes, std), dtype)

    def __call__(self, x):
        x = x if self.norm is None else self.norm(x)
        return self.linear(x).astype(jnp.float32)


class _Prototypes(nnx.Module):
    def __init__(self, key, sizes, out, init_std, dtype):
        key_mlp, key_last = jax.random.split(key)
        self.mlp = _mlp(key_mlp, sizes, init_std, dtype)
        self.last = _WeightNormLinear(key_last, sizes[-1], out, dtype)

    def __call__(self, x):
        return self.last(l2_normalize(_run_mlp(self.mlp, x)))


class _WeightNormLinear(nnx.Module):
    """y = x (gain * direction / |direction|), norms over the input axis (Salimans and
    Kingma 2016).
    """

    def __init__(self, key, fan_in, fan_out, dtype):
        # torch's default for Linear, as in DINO.
        self.direction = nnx.Param(layers_lib.uniform(key, (fan_in, fan_out)))
        self.gain = nnx.Param(jnp.ones((1, fan_out), jnp.float32))
        self.dtype = jnp.dtype(dtype)

    def kernel(self):
        return (self.gain[...] * l2_normalize(self.direction[...].T).T).astype(self.dtype)

    def __call__(self, x):
        direction, x = self.direction[...], x.astype(self.dtype)
        if x.size >= direction.shape[0] ** 2:
            return numerics.product("...d,dk->...k", x, self.kernel(), out=jnp.float32)
        # With few rows, scaling the results is cheaper than scaling the matrix.
        matrix = direction.astype(self.dtype)
        scale = self.gain[...] * _one_over_norm(direction, 0)
        return numerics.product("...d,dk->...k", x, matrix, out=jnp.float32) * scale


def _sizes(in_dim: int, hidden: int, out: int, layers: int) -> tuple[int, ...]:
    return (in_dim, *[hidden] * (layers - 1), out)


def _mlp(key, sizes, init_std, dtype) -> nnx.List:
    keys = jax.random.split(key, len(sizes) - 1)
    pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return nnx.List(
        [layers_lib.linear(layers_lib.normal(k, (a, b), init_std), dtype) for k, a, b in pairs]
    )


def _run_mlp(mlp, x):
    width = mlp[0].kernel.shape[0]
    if x.shape[-1] != width:
        raise ValueError(f"the head's input has shape {x.shape}; its last axis must be {width}")
    for i, linear in enumerate(mlp):
        x = linear(fused.gelu(x) if i else x)
    return x


def _check_sizes(init_std=None, **sizes) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if init_std is not None:
        layers_lib.check_init_std(init_std)
