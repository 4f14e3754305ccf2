"""L2 normalisation."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.scores import checked

_LEAST = 1e-12  # lower bound of the norm that divides


def on_host(x: ArrayLike) -> np.ndarray:
    """L2-normalises rows of [..., d] in their own precision, but at least float32; a zero row stays
    zero."""
    x = checked.real(x)
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), _LEAST)


@jax.jit
def on_device(x: jax.typing.ArrayLike) -> jax.Array:
    """L2-normalises rows of [..., d] in float32; a zero row stays zero."""
    x = jnp.asarray(x, jnp.float32)
    return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), _LEAST)
