"""What the ops compute with: float32 or wider, and products that keep its digits."""

from typing import overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from ssl_jax.ops import devices

Precision = jax.lax.PrecisionLike


def key(seed: ArrayLike) -> jax.Array:
    """A PRNG key of the kind that the package draws with, whatever JAX's default is."""
    return jax.random.key(seed, impl="threefry2x32")


def float_type(*arrays: ArrayLike) -> jnp.dtype:
    """Their common float type, float32 at least; also where JAX is set not to mix types, and for
    floats of 8 bits, which it never mixes."""
    with jax.numpy_dtype_promotion("standard"):
        types = [jnp.float32 if _is_below_float32(x) else x for x in arrays]
        return jnp.promote_types(jnp.result_type(*types), jnp.float32)


def _is_below_float32(x) -> bool:
    dtype = jnp.result_type(x)
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4


@overload
def wide(array: ArrayLike, /) -> jax.Array: ...
@overload
def wide(array: ArrayLike, /, *more: ArrayLike) -> tuple[jax.Array, ...]: ...
def wide(*arrays: ArrayLike) -> jax.Array | tuple[jax.Array, ...]:
    """The arrays in their common float type, float32 at least."""
    dtype = float_type(*arrays)
    cast = tuple(jnp.asarray(x).astype(dtype) for x in arrays)
    return cast if len(cast) > 1 else cast[0]


def wide_within_range(x: jax.Array) -> jax.Array:
    """x in float32 or wider; a gradient beyond the range of float16 is its largest number there."""
    if x.dtype != jnp.float16:
        return wide(x)

    return _wide_half(x)


@jax.custom_vjp
def _wide_half(x):
    return wide(x)


def _narrow_half(_, gradient):
    most = float(jnp.finfo(jnp.float16).max)
    return (jnp.clip(gradient, -most, most).astype(jnp.float16),)


_wide_half.defvjp(lambda x: (wide(x), None), _narrow_half)


def sharpen(x: ArrayLike, temperature: ArrayLike) -> jax.Array:
    """x / T in float32 or wider; the type of T does not matter."""
    x = wide(x)
    return x / jnp.asarray(temperature).astype(x.dtype)


def precision_of(dtype: DTypeLike) -> str | None:
    """The precision of products of float32 that the package uses unless told otherwise.

    Full float32 on CPUs and on GPUs without bfloat16, which know nothing else. Others would take
    one pass of bfloat16 (TPUs) or TensorFloat-32 (GPUs) by themselves, and six passes if asked for
    full precision. Here they take three passes of bfloat16: similarities are divided by
    temperatures of a few percent, so that an error of 1e-6 becomes one of 3e-5 in a probability.
    Largest error in a cosine of 384 coordinates: 7e-7 in float32, 1e-6 with three passes, 6e-5 in
    TensorFloat-32, 5e-4 with one pass. Other types are multiplied as they are (None).
    """
    if dtype != jnp.float32:
        return "highest" if dtype == jnp.float64 else None
    by_platform = {"tpu": "high", "gpu": "BF16_BF16_F32_X3"}
    platform = devices.platform() if devices.knows_bfloat16() else "cpu"
    return by_platform.get(platform, "highest")


def product(
    pattern: str, *arrays: ArrayLike, precision: Precision = None, out: DTypeLike | None = None
) -> jax.Array:
    """`jnp.einsum` with the precision that ops and networks share: `precision_of`, or another one.
    out: type in which products are summed and returned; None: that of the arrays."""
    if precision is None:
        precision = precision_of(jnp.result_type(*arrays))
    return jnp.einsum(pattern, *arrays, precision=precision, preferred_element_type=out)


def softmax_parts(x: jax.Array, axis: int = -1) -> tuple[jax.Array, jax.Array, jax.Array]:
    """exp(x - max), its sum, and the maximum, over one axis, which is kept."""
    top = jax.lax.stop_gradient(jnp.max(x, axis=axis, keepdims=True))
    terms = jnp.exp(x - top)
    return terms, jnp.sum(terms, axis=axis, keepdims=True), top


def log_sum_exp(x: jax.Array, axis: int) -> jax.Array:
    """log sum exp of finite numbers over one axis, which is kept."""
    _, total, top = softmax_parts(x, axis)
    return top + jnp.log(total)
