"""GELU, SwiGLU's gate and layer normalisation with custom backward passes, which store little more
than the input.

JAX's derivatives store several arrays of the input's size, most of them in float32, which cause
most of the memory traffic of a transformer block. `jax.checkpoint` would prevent fusion of the
passes and cost more than it saves. Only reverse mode is supported: `jax.jvp` raises.
"""

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def gelu(x: jax.Array, approximate: bool = False) -> jax.Array:
    """x Phi(x), with Phi the standard normal distribution function; computed in float32, returned
    in the type of x.

    approximate: use the tanh form instead of erf.

    Reference: Hendrycks and Gimpel 2016, "Gaussian error linear units".
    """
    return jax.nn.gelu(_wide(x), approximate=approximate).astype(x.dtype)


def _wide(x):
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _gelu_forward(x, approximate):
    return gelu(x, approximate), x


def _gelu_backward(approximate, x, cotangent):
    near = jnp.clip(_wide(x), -10, 10)  # outside, the slope is 0 or 1, and the tanh form overflows
    slope = jax.grad(lambda x: jax.nn.gelu(x, approximate=approximate).sum())(near)
    return ((cotangent.astype(slope.dtype) * slope).astype(x.dtype),)


gelu.defvjp(_gelu_forward, _gelu_backward)


@jax.custom_vjp
def swiglu(x: jax.Array) -> jax.Array:
    """silu(gate) * value, [..., h], of x = (gate, value) [..., 2 h]; computed in float32, returned
    in the type of x.

    Reference: Shazeer 2020, "GLU variants improve transformer", eq. 5.
    """
    gate, value = jnp.split(_wide(x), 2, axis=-1)
    return (jax.nn.silu(gate) * value).astype(x.dtype)


def _swiglu_backward(x, cotangent):
    gate, value = jnp.split(_wide(x), 2, axis=-1)
    share, cotangent = jax.nn.sigmoid(gate), cotangent.astype(gate.dtype)
    slope = share * (1 + gate * (1 - share))
    parts = [cotangent * value * slope, cotangent * gate * share]
    return (jnp.concatenate(parts, axis=-1).astype(x.dtype),)


swiglu.defvjp(lambda x: (swiglu(x), x), _swiglu_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, eps: float) -> jax.Array:
    """Normalises float32 [..., width] to zero mean and unit variance over the last axis, then
    applies scale and bias [width]; eps is added to the variance.

    Reference: Ba et al. 2016, "Layer normalization".
    """
    return _norm_forward(x, scale, bias, eps)[0]


def _norm_forward(x, scale, bias, eps):
    mean = x.mean(-1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.square(x - mean).mean(-1, keepdims=True) + eps)
    return (x - mean) * (inverse * scale) + bias, (x, mean, inverse, scale)


def _norm_backward(eps, residuals, cotangent):
    x, mean, inverse, scale = residuals
    unit, inner = (x - mean) * inverse, cotangent * scale
    along = (inner * unit).mean(-1, keepdims=True)
    slope = inverse * (inner - inner.mean(-1, keepdims=True) - unit * along)
    rows = tuple(range(x.ndim - 1))
    return slope, (cotangent * unit).sum(rows), cotangent.sum(rows)


layer_norm.defvjp(_norm_forward, _norm_backward)
