"""Unit vectors, shared by ops that compare directions."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def inverse_norm(x: Float[Array, "*b d"]) -> Float[Array, "*b"]:
    """1 / |x| over the last axis, and 1 for a zero vector."""
    square = jnp.sum(x * x, axis=-1)
    return jax.lax.rsqrt(jnp.where(square > 0, square, 1))


def unit(x: Float[Array, "*b d"]) -> Float[Array, "*b d"]:
    """Rows of x [..., d] divided by their L2 norm; zero rows stay zero, with a finite gradient."""
    # Dividing by the largest entry first keeps squares, and their derivative, in range for rows of
    # any scale. Being a mere scale it cancels, so it needs no gradient.
    top = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=-1, keepdims=True))
    x = x / jnp.where(top > 0, top, 1)
    return x * inverse_norm(x)[..., None]
