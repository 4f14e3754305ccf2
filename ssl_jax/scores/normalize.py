"""Vectors at length 1."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

_LEAST = 1e-12  # by which a shorter vector is divided


def on_host(x: ArrayLike) -> np.ndarray:
    """Rows of [..., d] at length 1, in the precision that they have; a zero row stays zero."""
    x = np.asarray(x)
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), _LEAST)


@jax.jit
def on_device(x: jax.typing.ArrayLike) -> jax.Array:
    """The same in float32."""
    x = jnp.asarray(x, jnp.float32)
    return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), _LEAST)
