"""Entropic optimal transport between small sets.

Notation: cost C [n, m], marginals a [n] and b [m], entropic weight eps. The plan is P = diag(e^u) K
diag(e^v) with K = exp(-C / eps); one iteration sets the row potential u so that the rows of P sum
to a, then the column potential v so that its columns sum to b.

Source: Cuturi 2013, "Sinkhorn Distances".
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from ssl_jax.ops.arguments import is_concrete, require
from ssl_jax.ops.checked import Count, Positive, checked
from ssl_jax.ops.numerics import log_sum_exp, product, sharpen, wide

# The scaling form multiplies numbers between exp(-range) and exp(range), and its gradient their
# squares: within float32.
_SCALING_RANGE = 40
_EMPTY = -1e30  # log of a marginal of 0: finite, and exp of it is 0


@checked
def entropic_transport(
    cost: Float[Array, "*b n m"],
    a: Float[Array, " n"] | Float[Array, "*b n"] | None = None,
    b: Float[Array, " m"] | Float[Array, "*b m"] | None = None,
    *,
    epsilon: Positive,
    num_iters: Count,
    form: Literal["auto", "log", "scaling"] = "auto",
) -> Float[Array, "*b n m"]:
    """Transport plan between two sets: cheap, spread out by an entropy, with given marginals.

    Sinkhorn's iteration for argmin_P <P, C> - eps H(P), P 1 = a, P^T 1 = b (Cuturi 2013):
    u = log a - lse_j(v - C / eps), then v = log b - lse_i(u - C / eps), from v = 0; P = exp(u + v -
    C / eps).
    It ends on columns: they sum to b exactly, the rows to a as far as it has converged (about 1 /
    eps iterations).

    Args:
      cost: C [..., n, m], finite; any float type (computed in float32 or wider).
      a: row marginals [..., n] >= 0 with the leading axes of cost, or [n] for all; None: 1 / n. A
        row of mass 0 is left out, whatever its cost: use it as a mask.
      b: column marginals [..., m] likewise, of the same sum; None: 1 / m.
      epsilon: eps > 0 in units of the cost, a number or a traced scalar. Smaller is sharper and
        needs more iterations.
      num_iters: number of iterations, at least 1.
      form: static. "log" works at any scale. "scaling" iterates products with K, two to three times
        as fast, and is exact while no row spans more than 40 eps; beyond that it takes a cost for
        its row's least plus 40 eps. "auto" looks at the cost when it runs: scaling if all rows of
        all leading axes allow it, else log. Under vmap it computes both.

    Returns:
      P [..., n, m], float32 or wider, >= 0 and finite; 0 in rows and columns without mass.
      Gradients (reverse mode) reach all arguments through the iterations, which are recomputed: one
      number per column and iteration is kept.

    Raises:
      ValueError: shapes that do not fit, eps <= 0 or marginals that are negative or of different
        sums (where their values are known), num_iters < 1, unknown form.

    Example:
      >>> import jax.numpy as jnp
      >>> cost = jnp.array([[0.0, 1.0], [1.0, 0.0]])
      >>> # everything stays where it is
      >>> print(entropic_transport(cost, epsilon=0.1, num_iters=5).round(3))
      [[0.5 0. ]
       [0.  0.5]]

    Reference: Cuturi 2013, algorithm 1; log domain: Peyré and Cuturi 2019, section 4.4.
    """
    _check_marginals(a, b)
    rows, columns = cost.shape[-2:]
    masked = a is not None or b is not None
    a = jnp.full(rows, 1 / rows, wide(cost).dtype) if a is None else a
    b = jnp.full(columns, 1 / columns, wide(cost).dtype) if b is None else b
    cost, a, b = wide(cost, a, b)
    a, b = (x[(None,) * (cost.ndim - 1 - x.ndim)] for x in (a, b))
    keep = None
    if masked:
        keep = jnp.broadcast_to((a > 0)[..., :, None] & (b > 0)[..., None, :], cost.shape)
        cost = jnp.where(keep, cost, 0)
    negative = sharpen(-cost, epsilon)
    problem = (negative, a, b, keep)
    if form == "auto":
        fits = jnp.max(_below_row_top(negative, keep), initial=0) <= _SCALING_RANGE
        scaling, log = (
            functools.partial(f, num_iters=num_iters) for f in (_scaling_plan, log_domain_plan)
        )
        return jax.lax.cond(fits, scaling, log, *problem)
    return (_scaling_plan if form == "scaling" else log_domain_plan)(*problem, num_iters=num_iters)


def _check_marginals(a, b) -> None:
    """Raises ValueError for known marginals below 0 or of different sums."""
    sums = []
    for name, marginal in (("a", a), ("b", b)):
        if is_concrete(marginal):
            values = np.asarray(1.0 if marginal is None else marginal, np.float64)
            low = np.min(values, initial=0)
            require(bool(low >= 0), f"the least entry of {name}", low, "at least 0")
            sums.append(values if marginal is None else values.sum(axis=-1))
    if len(sums) == 2:
        larger = np.maximum(np.maximum(*sums), 1e-30)
        gap = np.max(np.abs(sums[0] - sums[1]) / larger, initial=0)
        require(bool(gap <= 0.01), "the relative difference of the sums of a and b", gap, "0")


# Entropic plans. `negative` is -C / eps, 0 where `keep` is False; keep None: all.


def _log(marginal):
    positive = marginal > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, marginal, 1)), _EMPTY)


def _iterate(step, start, num_iters: int):
    """`step` n times; the gradient recomputes what a step holds."""
    step = jax.checkpoint(step, prevent_cse=False)
    return jax.lax.fori_loop(0, num_iters, lambda _, x: step(x), start)


def scale_rows(
    scores: Float[Array, "*b n m"],
    log_a: Float[Array, "*#b n 1"],
    log_b: Float[Array, "*#b 1 m"],
    num_iters: int,
    start: Float[Array, "*b 1 m"] | None = None,
) -> Float[Array, "*b n m"]:
    """Scores plus row potentials: Sinkhorn iterations in logarithms, but for the last column step.

    Args:
      scores: [..., n, m], finite.
      log_a: row marginals [..., n, 1], and
      log_b: column marginals [..., 1, m], broadcastable.
      num_iters: at least 1; the last column step is the caller's.
      start: [..., 1, m], first column potential; None: 0.

    Returns:
      scores + u, [..., n, m]; b times its softmax over the axis n is the plan.
    """

    def rows(v):
        return log_a - log_sum_exp(scores + v, -1)

    def step(v):
        return log_b - log_sum_exp(scores + rows(v), -2)

    start = jnp.zeros_like(scores[..., :1, :]) if start is None else start
    return scores + rows(_iterate(step, start, num_iters - 1))


def log_domain_plan(
    negative: Float[Array, "*b n m"],
    a: Float[Array, "*#b n"],
    b: Float[Array, "*#b m"],
    keep: Bool[Array, "*b n m"] | None,
    *,
    num_iters: int,
) -> Float[Array, "*b n m"]:
    """The plan [..., n, m] by iterations in logarithms."""
    log_a, log_b = _log(a)[..., :, None], _log(b)[..., None, :]
    # Columns without mass are never there.
    start = jnp.where(b[..., None, :] > 0, jnp.zeros_like(negative[..., :1, :]), _EMPTY)
    scaled = scale_rows(negative, log_a, log_b, num_iters, start)
    # The last column step as a softmax: sums to b however large the potentials are.
    plan = b[..., None, :] * jax.nn.softmax(scaled, axis=-2)
    return plan if keep is None else jnp.where(keep, plan, 0)


def _below_row_top(negative, keep):
    """How far each entry lies below the largest of its row, which counts as a constant."""
    lowest = jnp.finfo(negative.dtype).min
    allowed = negative if keep is None else jnp.where(keep, negative, lowest)
    top = jax.lax.stop_gradient(jnp.max(allowed, axis=-1, keepdims=True))
    below = top - negative
    return below if keep is None else jnp.where(keep, below, 0)


def _scaling_plan(negative, a, b, keep, *, num_iters: int):
    # A factor per row only changes u. Clamped, so that this form is finite also where "auto" does
    # not choose it.
    below = jnp.minimum(_below_row_top(negative, keep), _SCALING_RANGE)
    kernel = jnp.exp(-below) if keep is None else jnp.where(keep, jnp.exp(-below), 0)

    def divide(marginal, sums):  # rows and columns without mass have sum 0
        return marginal / (sums if keep is None else jnp.where(sums > 0, sums, 1))

    def rows(v):
        return divide(a, product("...ij,...j->...i", kernel, v))

    def step(v):
        return divide(b, product("...ij,...i->...j", kernel, rows(v)))

    v = _iterate(step, jnp.ones_like(negative[..., 0, :]), num_iters - 1)
    plan = kernel * rows(v)[..., :, None]
    return plan * divide(b, jnp.sum(plan, axis=-2))[..., None, :]
