"""Matching of two sets of tokens.

Source: "Learning Sparse Visual Representations via Spatial-Semantic Factorization" (STELLAR) eq. 5.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ssl_jax.ops.arguments import require
from ssl_jax.ops.assignment import assignment
from ssl_jax.ops.checked import Count, Positive, checked
from ssl_jax.ops.numerics import Precision, product, sharpen, wide
from ssl_jax.ops.transport import log_domain_plan


class Alignment(NamedTuple):
    """Which target each source token is matched to."""

    index: Int[Array, "*b r"]  # type: ignore[assignment]  # hides tuple.index
    cost: Float[Array, "*b r s"]
    plan: Float[Array, "*b r s"]


@checked
def align_sets(
    source: Float[Array, "*#b r d"],
    target: Float[Array, "*#b s d"],
    *,
    epsilon: Positive = 0.1,
    num_iters: Count = 5,
    solver: Literal["sinkhorn", "hungarian"] = "sinkhorn",
    precision: Precision = None,
) -> Alignment:
    """Matches the tokens of one set to those of another by Euclidean distance.

    C_ij = |source_i - target_j|_2 (not squared); sinkhorn: P the plan of `entropic_transport` with
    mass 1 per source token, index_i = argmax_j P_ij (two tokens may get the same target);
    hungarian: the one-to-one matching of least total cost. The tokens are used as they come: their
    scale sets how sharp a given eps is.

    Args:
      source: [..., r, d]; any float type (computed in float32 or wider).
      target: [..., s, d]; leading axes broadcast, e.g. views [B, V, r, d] with images [B, 1, r, d].
      epsilon: eps > 0 of "sinkhorn" in units of distance, a number or a traced scalar.
      num_iters: iterations of "sinkhorn", at least 1. Small eps needs more: about 1 / eps.
      solver: "sinkhorn", or "hungarian" (exact, r <= s, at most r * s steps one after the other; a
        source token that is not finite gets a target that is left and does not disturb the others).
      precision: of the products in the distances; None: see `numerics.product`.

    Returns:
      (index [..., r] int32 in [0, s), cost C [..., r, s], plan [..., r, s]) as a named tuple. The
      plan's columns sum to r / s ("sinkhorn"), or it is 1 at the matches ("hungarian"). All are
      constants: no gradient passes.

    Raises:
      ValueError: shapes that do not fit, unknown solver, r > s with "hungarian", eps <= 0 (where
      known), num_iters < 1.

    Example:
      >>> import jax.numpy as jnp
      >>> target = jnp.array([[0.0, 0.0], [3.0, 4.0]])
      >>> index, cost, plan = align_sets(target[::-1], target)
      >>> print(index, cost)
      [1 0] [[5. 0.]
       [0. 5.]]

    Reference: STELLAR eq. 5 and section 3 (set alignment); Kuhn 1955 (Hungarian method).
    """
    count, size = source.shape[-2], target.shape[-2]
    exact = solver == "hungarian"
    fits = not exact or count <= size
    require(fits, "the number of source tokens", count, f"at most {size}, of the target")
    source, target = jax.lax.stop_gradient(wide(source, target))
    epsilon = jax.lax.stop_gradient(epsilon)
    cost = _distances(source, target, precision)
    if exact:
        index = jax.vmap(assignment)(cost.reshape(-1, count, size)).reshape(cost.shape[:-1])
        return Alignment(index, cost, jax.nn.one_hot(index, size, dtype=cost.dtype))
    one = (1,) * (cost.ndim - 2)
    a, b = (jnp.full((*one, n), 1 / n, cost.dtype) for n in (count, size))
    # Distances of tokens that are not unit vectors span hundreds of eps: the log form. The largest
    # entry of a row cannot underflow: it is at least 1 / (r s) of the row's mass after the row step
    # and the column step that end the loop.
    plan = count * log_domain_plan(sharpen(-cost, epsilon), a, b, None, num_iters=num_iters)
    return Alignment(jnp.argmax(plan, axis=-1).astype(jnp.int32), cost, plan)


def _distances(source, target, precision):
    """|source_i - target_j| [..., r, s]: squared norms minus twice the products, about a common
    centre.
    """
    centre = jnp.mean(target, axis=-2, keepdims=True)  # distances far from the origin would cancel
    source, target = source - centre, target - centre
    inner = product("...rd,...sd->...rs", source, target, precision=precision)
    norms = (
        jnp.sum(source * source, axis=-1)[..., :, None]
        + jnp.sum(target * target, axis=-1)[..., None, :]
    )
    return jnp.sqrt(jnp.maximum(norms - 2 * inner, 0))
