"""Exact nearest neighbours by inner product or cosine, in chunks that never hold all
similarities.
"""

import functools
import math
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ssl_jax.ops import devices
from ssl_jax.ops import passes as over
from ssl_jax.ops.arguments import require
from ssl_jax.ops.checked import Count, Must, checked
from ssl_jax.ops.numerics import Precision, float_type, product
from ssl_jax.ops.vectors import inverse_norm

_BLOCK = 128  # bank rows per block of the two-stage selection
# Bank rows read at a time: at least, per neighbour, at most. On CPUs what stays in the cache beside
# its similarities, elsewhere what keeps a device busy; more neighbours need longer passes, as each
# ends with a selection.
_ROWS_CPU, _ROWS = (2**12, 2**11, 2**15), (2**14, 2**13, 2**17)
# Similarities held at a time: 32 MB in float32; on GPUs, where many small kernels take longer, 512.
_SCORES, _SCORES_GPU = 2**23, 2**27


@checked(empty="q")
def nearest(
    queries: Float[Array, "*b q d"],
    bank: Float[Array, "n d"],
    *,
    k: int = 1,
    where: Bool[Array, " n"] | None = None,
    method: Literal["exact", "approx"] = "exact",
    metric: Literal["cosine", "dot"] = "cosine",
    inverse_norms: Float[Array, " n"] | None = None,
    group_size: Count | None = None,
    recall_target: Annotated[float, Must("in (0, 1]", lambda x: 0 < x <= 1)] = 0.95,
    chunk: Count | None = None,
    bank_chunk: int | None = None,
    precision: Precision = None,
    cut_bank: bool = False,
) -> tuple[Float[Array, "*b q k"], Int[Array, "*b q k"]]:
    """The k most similar bank rows of every query, best first.

    sim(q, e) = <q, e> ("dot") or <q, e> / (|q| |e|) ("cosine"). Among equals the lower row comes
    first, as in `jax.lax.top_k`.

    "exact" takes a chunk's maxima over blocks of 128 rows and selects among the k best blocks only.
    That loses nothing: an entry outside them has k blocks whose maxima beat it. Chunks of the bank
    are merged into a running top k; [q, n] similarities are never held, nor a second bank (but XLA
    converts a whole bfloat16 bank on a CPU).

    Args:
      queries: [..., q, d], any float type (computed in float32 or wider).
      bank: [n, d].
      k: number of neighbours, 1 <= k <= n (<= group_size with groups).
      where: bool [n], rows that may be returned; None: all. If fewer than k may, the missing values
        are -inf and their indices point at rows that `where` excludes (at any row, if the last
        group has fewer than k rows).
      method: "exact", or "approx" (`jax.lax.approx_max_k` in every chunk).
      metric: "cosine" or "dot". Zero vectors have cosine 0; other norms must lie
        within 1e-18 and 1e18.
      inverse_norms: [n], 1 / |e| of every bank row (any number for a zero row), for "cosine" only:
        for a memory that stores them. Constants, without gradient. None: worked out here.
      group_size: rows per group, for q = n: query i is compared with rows of its own group i //
        group_size only (the last group may be smaller). None: with all.
      recall_target: for "approx", the expected share of true neighbours, in (0, 1]. On a CPU
        `approx_max_k` sorts exactly at every target (and "exact" is faster); only a TPU takes the
        short cut.
      chunk: queries per pass, of a device; None: as many as give about 2^23 similarities, on a
        GPU 2^27. The queries of one pass are spread over all of them.
      bank_chunk: bank rows per pass, at least k; None: what suits the device, more for larger k (on
        a CPU 2^11 k, within 2^12 and 2^15). They are spread over the bank likewise. If no number of
        passes near n / bank_chunk divides n, a padded copy of the bank is made.
      precision: of the similarities; None: see `numerics.product`.
      cut_bank: with several devices: the rows of the bank, `where` and `inverse_norms` are cut over
        them and stay where they are. False, or with groups, or if the devices do not divide n into
        parts of k rows at least: every device has the bank, and takes its share of the queries.

    Returns:
      values [..., q, k] and row indices int32 [..., q, k]. Gradients reach queries and bank through
      the values.

    Raises:
      ValueError: shapes that do not fit, k, chunks, groups or recall out of range, unknown method
        or metric, inverse norms without "cosine".

    Example:
      >>> import jax.numpy as jnp
      >>> values, index = nearest(
      ...     jnp.array([[2.0, 0.0]]), jnp.array([[0.0, 1.0], [3.0, 4.0], [1.0, 0.0]]), k=2
      ... )
      >>> print(index, values)
      [[2 1]] [[1.  0.6]]

    Reference: SOP section 2.2 (top-k of the memory) and CrIBo section 3.2.2 (nearest object of a
    bank); approximate search: Chern et al. 2022, "TPU-KNN". The block maxima are ordinary
    selection, exact by the argument above.
    """
    *batch, count, width = queries.shape
    size = limit = bank.shape[0]
    stored = inverse_norms is None or metric == "cosine"
    require(stored, "inverse_norms", "an array", 'None with metric "dot"')
    if group_size is not None:
        expected = f"{size}, the rows of the bank, with groups"
        require(count == size, "the number of queries", count, expected)
        limit = min(size, group_size)
    rows = "the bank" if limit == size else "a group"
    require(1 <= k <= limit, "k", k, f"between 1 and {limit}, the rows of {rows}")
    fits = bank_chunk is None or bank_chunk >= k
    require(fits, "bank_chunk", bank_chunk, f"at least k = {k}")

    dtype = float_type(queries, bank)
    queries = queries.astype(dtype)
    if metric == "cosine":
        queries = queries * inverse_norm(queries)[..., None]
    if inverse_norms is not None:
        inverse_norms = jax.lax.stop_gradient(inverse_norms).astype(dtype)
    rows_per_device = size // devices.count() if devices.divide(size) else 0
    cut_bank = cut_bank and group_size is None and k <= rows_per_device
    how = _How(k, method, metric, recall_target, limit, chunk, bank_chunk, precision, cut_bank)
    values, index = _neighbours(queries.reshape(-1, width), bank, inverse_norms, where, how)
    return values.reshape(*batch, count, k), index.reshape(*batch, count, k)


class _How(NamedTuple):
    """The static part of a search."""

    k: int
    method: str
    metric: str
    recall_target: float
    group: int  # rows per group
    chunk: int | None
    bank_chunk: int | None
    precision: Precision
    cut_bank: bool


@functools.partial(jax.custom_jvp, nondiff_argnums=(4,))
def _neighbours(queries, bank, scale, allowed, how: _How):
    """values [q, k] and rows [q, k] of queries [q, d]; scale: stored inverse norms [n] or None."""
    size, width = bank.shape
    if how.group >= size:
        search, banks = functools.partial(_search, how=how), (bank, scale, allowed)
        if how.cut_bank:
            values, index = devices.by_bank(search, queries, banks)
        else:
            values, index = devices.by_rows(search, (queries,), banks)
    else:
        values, index = _in_groups(queries, bank, scale, allowed, how)
    return values, jnp.minimum(index, size - 1).astype(jnp.int32)


def _in_groups(queries, bank, scale, allowed, how: _How):
    """Does what `_neighbours` does, for queries [b n, d] to a bank [n, d], each in its own group of
    rows."""
    size, width = bank.shape
    groups = math.ceil(size / how.group)
    extra = groups * how.group - size
    allowed = jnp.ones(size, bool) if allowed is None else allowed
    banks = tuple(
        None if x is None else over.pad(x, extra).reshape(groups, how.group, *x.shape[1:])
        for x in (bank, scale, allowed)
    )
    queries = over.pad(queries.reshape(-1, size, width), extra, 1).reshape(-1, width)

    def share(queries, number, banks):
        """Queries [m, d] with their numbers [m], which rise by one, cut where a group ends."""
        length = math.gcd(queries.shape[0], how.group)
        group = number[::length] // how.group % groups
        # Of all queries in order, the groups are as they stand: no copy of the bank.
        ordered = queries.shape[0] == groups * how.group
        searched = banks if ordered else (None if x is None else x[group] for x in banks)
        parts = queries.reshape(-1, length, width)
        values, index = jax.vmap(functools.partial(_search, how=how, at_once=len(parts)))(
            parts, *searched
        )
        index = index + how.group * group[:, None, None]
        return tuple(x.reshape(-1, how.k) for x in (values, index))

    number = jnp.arange(queries.shape[0], dtype=jnp.int32)
    selected = devices.by_rows(share, (queries, number), (banks,))
    return tuple(x.reshape(-1, size + extra, how.k)[:, :size].reshape(-1, how.k) for x in selected)


@_neighbours.defjvp
def _neighbours_jvp(how, primals, tangents):
    """Differentiates the selected pairs only: the derivative of the search itself would hold every
    similarity."""
    (queries, bank, scale, _), (by_query, by_bank, *_) = primals, tangents
    values, index = _neighbours(*primals, how)

    def similarity(query, row):
        value = jnp.sum(query[:, None] * row, axis=-1)
        if how.metric == "cosine":
            value = value * (inverse_norm(row) if scale is None else scale[index])
        return value

    found = jnp.isfinite(values)  # whatever lies in other rows, NaN too
    rows, by_rows = (
        jnp.where(found[..., None], x[index].astype(values.dtype), 0) for x in (bank, by_bank)
    )
    slope = jax.jvp(similarity, (queries, rows), (by_query, by_rows))[1]
    return (values, index), (
        jnp.where(found, slope, 0),
        jax.custom_derivatives.zero_from_primal(index),
    )


def _search(queries, bank, scale, allowed, how: _How, at_once: int = 1):
    """Does what `_neighbours` does within one group; rows beyond the bank may stand for missing
    neighbours.

    at_once: searches that run side by side.
    """
    size, width = bank.shape
    total = queries.shape[0]
    least, each, most = _ROWS_CPU if devices.platform() == "cpu" else _ROWS
    budget = _SCORES_GPU if devices.platform() == "gpu" else _SCORES
    rows = min(size, how.bank_chunk or max(least, how.k, min(each * how.k, most)))
    bank_passes, per_pass = over.divide(size, rows, least=how.k, block=_BLOCK)
    missing = bank_passes * per_pass - size
    if missing:
        allowed = jnp.ones(size, bool) if allowed is None else allowed
        bank, scale, allowed = (over.pad(x, missing) for x in (bank, scale, allowed))

    def look(part, number):
        rows, factor, usable = (over.take(x, number, bank_passes) for x in (bank, scale, allowed))
        rows = rows.astype(part.dtype)
        if how.metric == "cosine":
            # Norms here: a pass over the whole bank would also convert it as a whole.
            rows = rows * (inverse_norm(rows) if factor is None else factor)[:, None]
        scores = product("qd,nd->qn", part, rows, precision=how.precision)
        scores = scores if usable is None else jnp.where(usable, scores, -jnp.inf)
        if how.method == "approx":
            values, index = jax.lax.approx_max_k(scores, how.k, recall_target=how.recall_target)
        else:
            values, index = _top_k(scores, how.k)
        return values, index.astype(jnp.int32) * bank_passes + number

    def one_pass(part):
        def merge(best, number):
            values, index = (
                jnp.concatenate(pair, axis=-1) for pair in zip(best, look(part, number))
            )
            values, index = jax.lax.sort((-values, index), num_keys=2)
            return (-values[:, : how.k], index[:, : how.k]), None

        best = look(part, jnp.int32(0))
        if bank_passes == 1:
            return best
        return jax.lax.scan(merge, best, jnp.arange(1, bank_passes, dtype=jnp.int32))[0]

    passes = math.ceil(total / (how.chunk or max(1, budget // max(1, at_once * per_pass))))
    if passes <= 1:
        return one_pass(queries)
    together = math.ceil(total / passes)
    queries = over.pad(queries, together * passes - total).reshape(together, passes, width)
    best = jax.lax.map(one_pass, jnp.swapaxes(queries, 0, 1))
    return tuple(jnp.swapaxes(x, 0, 1).reshape(together * passes, how.k)[:total] for x in best)


def _top_k(scores, k: int):
    """`jax.lax.top_k` of scores [q, n], by way of block maxima."""
    rows, size = scores.shape
    blocks = math.ceil(size / _BLOCK)
    if blocks <= 2 * k:  # nothing to skip
        return jax.lax.top_k(scores, k)
    scores = jnp.pad(scores, ((0, 0), (0, blocks * _BLOCK - size)), constant_values=-jnp.inf)
    scores = scores.reshape(rows, blocks, _BLOCK)
    best = jax.lax.top_k(jnp.max(scores, axis=-1), k)[1]
    best = jnp.sort(best, axis=-1)  # ascending rows, so that ties are broken as in one pass
    candidates = jnp.take_along_axis(scores, best[..., None], axis=1).reshape(rows, k * _BLOCK)
    values, where = jax.lax.top_k(candidates, k)
    index = jnp.take_along_axis(best, where // _BLOCK, axis=-1) * _BLOCK + where % _BLOCK
    return values, index
