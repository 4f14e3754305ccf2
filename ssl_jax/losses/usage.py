"""How many prototypes (or supports of points) are in use: for the eye, without a gradient."""

import jax
import jax.numpy as jnp


def wins(scores, where=None):
    """How often each of K columns is the largest of its row: [K] float32.

    Args:
      scores: [..., K]; of equal entries the first wins. where: bool, the shape of `scores` without
        K; rows outside do not count.
    """
    best = jnp.argmax(jax.lax.stop_gradient(scores), axis=-1, keepdims=True)
    won = best == jnp.arange(
        jnp.shape(scores)[-1]
    )  # not a scatter: a sharded batch needs one sum over devices
    won = won if where is None else won & jnp.asarray(where, bool)[..., None]
    return won.astype(jnp.float32).sum(axis=tuple(range(won.ndim - 1)))


def share(wins):
    """Share of columns that won at least once, of `wins` [K]: 1 / K if everything has the same
    target, at most rows / K.
    """
    return (wins > 0).astype(jnp.float32).mean()
