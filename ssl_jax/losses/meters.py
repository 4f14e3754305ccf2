"""What to look at beside a loss: entropies of the targets and usage of the prototypes, without a
gradient."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from ssl_jax.ops import divergence
from ssl_jax.ops.checked import checked
from ssl_jax.ops.numerics import wide


@checked
def assignment_meters(log_targets: Float[Array, "*b K"]) -> dict[str, jax.Array]:
    """How sharp the targets are, and how they differ between images.

    Args:
      log_targets: [..., K], logarithms of distributions over K prototypes.

    Returns:
      dict of scalars: teacher_entropy, mean entropy of a target in nats (0: one prototype; log K:
      uniform); marginal_entropy, entropy of the mean target (0: the same prototype for all, i.e.
      collapse); usage, share of prototypes that are the likeliest of one or more targets.

    Example:
      >>> import jax.numpy as jnp
      >>> meters = assignment_meters(jnp.log(jnp.array([[0.5, 0.5], [0.9, 0.1]])))
      >>> print(*(f"{name} {value:.3f}" for name, value in meters.items()))
      teacher_entropy 0.509 marginal_entropy 0.611 usage 0.500
    """
    log_targets = jax.lax.stop_gradient(wide(log_targets))
    axes = tuple(range(log_targets.ndim - 1))
    return {
        "teacher_entropy": divergence.entropy(log_probs=log_targets).mean(),
        "marginal_entropy": divergence.entropy(jnp.exp(log_targets).mean(axis=axes)),
        "usage": usage(wins(log_targets)),
    }


def wins(
    scores: Float[Array, "*b K"], where: Bool[Array, "*b"] | None = None
) -> Float[Array, " K"]:
    """How often each of K columns is the largest of its row: [K] float32.

    Args:
      scores: [..., K]; of equal entries the first wins.
      where: bool, the shape of `scores` without K; rows outside do not count.
    """
    best = jnp.argmax(jax.lax.stop_gradient(scores), axis=-1)
    return counts(best, jnp.shape(scores)[-1], where)


def counts(
    best: Integer[Array, "*b"], width: int, where: Bool[Array, "*b"] | None = None
) -> Float[Array, " K"]:
    """How often each of the columns 0 .. K - 1 is the best of a row: [K] float32, K = `width`.

    Args:
      best: columns [...]. where: bool [...]; rows outside do not count.
    """
    # Not a scatter: a sharded batch needs one sum over devices.
    won = jax.nn.one_hot(best, width, dtype=bool)
    won = won if where is None else won & jnp.asarray(where, bool)[..., None]
    return won.astype(jnp.float32).sum(axis=tuple(range(won.ndim - 1)))


def usage(wins: Float[Array, " K"]) -> Float[Array, ""]:
    """Share of columns that won at least once, of `wins` [K]: 1 / K if everything has the same
    target, at most rows / K."""
    return (wins > 0).astype(jnp.float32).mean()
