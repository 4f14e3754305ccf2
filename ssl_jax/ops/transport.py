"""Entropic optimal transport between small sets, and the matching of two token sets.

Notation: cost C [n, m], marginals a [n] and b [m], entropic weight eps. The plan is P = diag(e^u) K
diag(e^v) with
K = exp(-C / eps); one iteration sets the row potential u so that the rows of P sum to a, then the
column potential v so that its columns sum to b.

Sources: Cuturi 2013, "Sinkhorn Distances"; "Learning Sparse Visual Representations via
Spatial-Semantic Factorization" (STELLAR) eq. 5; Kuhn 1955 and Jonker and Volgenant 1987 for the
exact assignment.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax.ops import arguments

# The scaling form multiplies numbers between exp(-range) and exp(range), and its gradient their
# squares: within float32.
_SCALING_RANGE = 40
_EMPTY = -1e30  # log of a marginal of 0: finite, and exp of it is 0


def entropic_transport(cost, a=None, b=None, *, epsilon, num_iters: int, form: str = "auto"):
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
      needs more iterations. num_iters: number of iterations, at least 1.
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
      >>> print(
      ...     jnp.array_str(
      ...         entropic_transport(cost, epsilon=0.1, num_iters=5).round(3), precision=3
      ...     )
      ... )
      [[0.5 0. ]
       [0.  0.5]]

    Reference: Cuturi 2013, algorithm 1; log domain: Peyré and Cuturi 2019, section 4.4.
    """
    arguments.require_shape("cost", cost, (..., None, None), "[..., n, m]")
    arguments.require(
        np.prod(jnp.shape(cost)[-2:]) > 0, "the shape of cost", jnp.shape(cost), "with n, m >= 1"
    )
    arguments.require_positive("epsilon", epsilon)
    arguments.require(num_iters >= 1, "num_iters", num_iters, "at least 1")
    arguments.require(
        form in ("auto", "log", "scaling"), "form", repr(form), '"auto", "log" or "scaling"'
    )
    *batch, rows, columns = jnp.shape(cost)
    for name, marginal, size in (("a", a, rows), ("b", b, columns)):
        if marginal is not None:
            fits = jnp.shape(marginal) in ((size,), (*batch, size))
            arguments.require(
                fits, f"the shape of {name}", jnp.shape(marginal), f"[{size}] or {[*batch, size]}"
            )
            if arguments.known(marginal):
                low = np.min(np.asarray(marginal, np.float64), initial=0)
                arguments.require(bool(low >= 0), f"the least entry of {name}", low, "at least 0")
    if arguments.known(a) and arguments.known(b):
        sums = [1.0 if x is None else np.sum(np.asarray(x, np.float64), axis=-1) for x in (a, b)]
        gap = np.max(
            np.abs(sums[0] - sums[1]) / np.maximum(np.maximum(sums[0], sums[1]), 1e-30), initial=0
        )
        arguments.require(
            bool(gap <= 0.01), "the relative difference of the sums of a and b", gap, "0"
        )
    given = [jnp.asarray(x) for x in (cost, a, b) if x is not None]
    dtype = jnp.promote_types(jnp.result_type(*given), jnp.float32)
    cost = given[0].astype(dtype)
    keep = None if a is None and b is None else jnp.ones((), bool)
    if a is not None:
        a = jnp.asarray(a).astype(dtype)
        keep = keep & (a > 0)[..., :, None]
    if b is not None:
        b = jnp.asarray(b).astype(dtype)
        keep = keep & (b > 0)[..., None, :]
    a = jnp.full(rows, 1 / rows, dtype) if a is None else a
    b = jnp.full(columns, 1 / columns, dtype) if b is None else b
    if keep is not None:
        keep = jnp.broadcast_to(keep, cost.shape)
        cost = jnp.where(keep, cost, 0)
    negative = -cost / jnp.asarray(epsilon).astype(dtype)
    problem = (negative, a, b, keep)
    if form == "auto":
        fits = jnp.max(_below_row_top(negative, keep), initial=0) <= _SCALING_RANGE
        scaling, log = (
            functools.partial(f, num_iters=num_iters) for f in (_scaling_plan, _log_domain_plan)
        )
        return jax.lax.cond(fits, scaling, log, *problem)
    return (_scaling_plan if form == "scaling" else _log_domain_plan)(*problem, num_iters=num_iters)


class Alignment(NamedTuple):
    """Which target each source token is matched to."""

    index: jax.Array  # int32 [..., r]
    cost: jax.Array  # [..., r, s]
    plan: jax.Array  # [..., r, s]


def align_sets(source, target, *, epsilon=0.1, num_iters: int = 5, solver: str = "sinkhorn"):
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

    Reference: STELLAR eq. 5 and section 3.2 (set alignment); Kuhn 1955 (Hungarian method).
    """
    arguments.require_shape("source", source, (..., None, None), "[..., r, d]")
    *lead, count, width = jnp.shape(source)
    arguments.require_shape(
        "target", target, (..., None, width), f"[..., s, {width}] as wide as source"
    )
    *other, size, _ = jnp.shape(target)
    try:
        batch = np.broadcast_shapes(tuple(lead), tuple(other))
    except ValueError:
        arguments.require(
            False,
            "the leading axes of target",
            tuple(other),
            f"such that they broadcast with {lead}",
        )
    arguments.require(
        count * size > 0, "the number of tokens", (count, size), "at least 1 in each set"
    )
    arguments.require(
        solver in ("sinkhorn", "hungarian"), "solver", repr(solver), '"sinkhorn" or "hungarian"'
    )
    arguments.require_positive("epsilon", epsilon)
    arguments.require(num_iters >= 1, "num_iters", num_iters, "at least 1")
    exact = solver == "hungarian"
    arguments.require(
        not exact or count <= size,
        "the number of source tokens",
        count,
        f"at most {size}, of the target",
    )
    source, target, epsilon = jax.lax.stop_gradient(
        (jnp.asarray(source), jnp.asarray(target), epsilon)
    )
    dtype = jnp.promote_types(jnp.result_type(source, target), jnp.float32)
    cost = _distances(source.astype(dtype), target.astype(dtype))
    if exact:
        flat = cost.reshape(-1, count, size)
        index = jax.vmap(_assignment)(flat).reshape(*batch, count)
        return Alignment(index, cost, jax.nn.one_hot(index, size, dtype=dtype))
    a, b = jnp.full(count, 1 / count, dtype), jnp.full(size, 1 / size, dtype)
    # Distances of tokens that are not unit vectors span hundreds of eps: the log form. The largest
    # entry of a row cannot underflow: it is at least 1 / (r s) of the row's mass after the row step
    # and the column step that end the loop.
    plan = count * _log_domain_plan(
        -cost / jnp.asarray(epsilon).astype(dtype), a, b, None, num_iters=num_iters
    )
    return Alignment(jnp.argmax(plan, axis=-1).astype(jnp.int32), cost, plan)


def _distances(source, target):
    """|source_i - target_j| [..., r, s]: squared norms minus twice the products, about a common
    centre.
    """
    centre = jnp.mean(target, axis=-2, keepdims=True)  # distances far from the origin would cancel
    source, target = source - centre, target - centre
    product = jnp.einsum("...rd,...sd->...rs", source, target, precision=jax.lax.Precision.HIGHEST)
    norms = (
        jnp.sum(source * source, axis=-1)[..., :, None]
        + jnp.sum(target * target, axis=-1)[..., None, :]
    )
    return jnp.sqrt(jnp.maximum(norms - 2 * product, 0))


# Entropic plans. `negative` is -C / eps, 0 where `keep` is False; keep None: all.


def _lse(x, axis: int):
    """log sum exp of finite numbers."""
    top = jax.lax.stop_gradient(jnp.max(x, axis=axis, keepdims=True))
    return jnp.squeeze(top, axis) + jnp.log(jnp.sum(jnp.exp(x - top), axis=axis))


def _log(marginal):
    positive = marginal > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, marginal, 1)), _EMPTY)


def _iterate(step, start, num_iters: int):
    """`step` n times; the gradient recomputes what a step holds."""
    step = jax.checkpoint(step, prevent_cse=False)
    return jax.lax.fori_loop(0, num_iters, lambda _, x: step(x), start)


def _log_domain_plan(negative, a, b, keep, *, num_iters: int):
    log_a, log_b = _log(a), _log(b)

    def rows(v):
        return log_a - _lse(negative + v[..., None, :], -1)

    def step(v):
        return log_b - _lse(negative + rows(v)[..., :, None], -2)

    start = jnp.where(
        b > 0, jnp.zeros((), negative.dtype), _EMPTY
    )  # columns without mass are never there
    v = _iterate(
        step, jnp.broadcast_to(start, (*negative.shape[:-2], negative.shape[-1])), num_iters - 1
    )
    # The last column step as a softmax: sums to b however large the potentials are.
    plan = b[..., None, :] * jax.nn.softmax(negative + rows(v)[..., :, None], axis=-2)
    return plan if keep is None else jnp.where(keep, plan, 0)


def _below_row_top(negative, keep):
    """How far each entry lies below the largest of its row, >= 0 (the largest is taken as a
    constant).
    """
    lowest = jnp.finfo(negative.dtype).min
    kept = negative if keep is None else jnp.where(keep, negative, lowest)
    top = jax.lax.stop_gradient(jnp.max(kept, axis=-1, keepdims=True))
    below = top - negative
    return below if keep is None else jnp.where(keep, below, 0)


def _scaling_plan(negative, a, b, keep, *, num_iters: int):
    # A factor per row only changes u. Clamped, so that this form is finite also where "auto" does
    # not choose it.
    below = jnp.minimum(_below_row_top(negative, keep), _SCALING_RANGE)
    kernel = jnp.exp(-below) if keep is None else jnp.where(keep, jnp.exp(-below), 0)

    def divide(marginal, sums):  # rows and columns without mass have sum 0
        return marginal / (sums if keep is None else jnp.where(sums > 0, sums, 1))

    product = functools.partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)

    def rows(v):
        return divide(a, product("...ij,...j->...i", kernel, v))

    def step(v):
        return divide(b, product("...ij,...i->...j", kernel, rows(v)))

    v = _iterate(
        step, jnp.ones((*negative.shape[:-2], negative.shape[-1]), negative.dtype), num_iters - 1
    )
    plan = kernel * rows(v)[..., :, None]
    return plan * divide(b, jnp.sum(plan, axis=-2))[..., None, :]


def _assignment(cost):
    """Target of every row of cost [n, m], n <= m, by shortest augmenting paths: int32 [n].

    Rows enter one by one. The search from a new row grows a tree of columns by the least reduced
    cost, shifting the potentials of the tree so that reduced costs stay >= 0, until it meets a free
    column; then the matches along the path are exchanged. Column 0 is a root that stands for the
    new row; an unmatched column has row -1.
    """
    rows, columns = cost.shape
    big = jnp.asarray(1e30, cost.dtype)
    cost = jnp.clip(jnp.nan_to_num(cost, nan=1e30), -big, big)
    ids = jnp.arange(columns + 1)

    def put(array, position, value):  # as a comparison: faster than a scatter for small sets
        return jnp.where(ids == position, value, array)

    def enter(row, state):
        matched, row_shift, column_shift = (
            state  # of each column: its row, that row's potential, its own
        )

        def searching(search):
            return search[-1] >= 0

        def grow(search):
            row_shift, column_shift, least, parent, used, column, current = search
            used = put(used, column, True)
            reduced = jnp.concatenate([big[None], cost[current]]) - row_shift[column] - column_shift
            closer = ~used & (reduced < least)
            least, parent = jnp.where(closer, reduced, least), jnp.where(closer, column, parent)
            following = jnp.argmin(jnp.where(used, jnp.inf, least))
            delta = least[following]
            row_shift = jnp.where(used, row_shift + delta, row_shift)
            column_shift = jnp.where(used, column_shift - delta, column_shift)
            least = jnp.where(used, least, least - delta)
            return row_shift, column_shift, least, parent, used, following, matched[following]

        matched = put(matched, 0, row)
        row_shift = put(row_shift, 0, 0)
        least = jnp.full(columns + 1, jnp.finfo(cost.dtype).max, cost.dtype)
        search = (
            row_shift,
            column_shift,
            least,
            jnp.zeros_like(ids),
            ids < 0,
            jnp.zeros_like(row),
            row,
        )
        row_shift, column_shift, _, parent, _, column, _ = jax.lax.while_loop(
            searching, grow, search
        )

        def exchange(path):
            matched, row_shift, column = path
            before = parent[column]
            return (
                put(matched, column, matched[before]),
                put(row_shift, column, row_shift[before]),
                before,
            )

        path = (matched, row_shift, column)
        matched, row_shift, _ = jax.lax.while_loop(lambda path: path[-1] > 0, exchange, path)
        return matched, row_shift, column_shift

    start = (
        jnp.full(columns + 1, -1, ids.dtype),
        jnp.zeros(columns + 1, cost.dtype),
        jnp.zeros(columns + 1, cost.dtype),
    )
    matched, _, _ = jax.lax.fori_loop(0, rows, enter, start)
    is_mine = matched[1:] == jnp.arange(rows)[:, None]
    return jnp.argmax(is_mine, axis=-1).astype(jnp.int32)
