"""Exact nearest neighbours by inner product or cosine, in chunks that never hold all similarities."""

import math

import jax
import jax.numpy as jnp

from ssl_jax.ops import arguments

_BLOCK = 128  # bank rows per block of the two-stage selection
_SCORES = 2**23  # similarities held at a time (32 MB in float32)


def nearest(
    queries, bank, *, k: int = 1, where=None, method: str = "exact", metric: str = "cosine", chunk: int | None = None
):
    """The k most similar bank rows of every query, best first.

    sim(q, e) = <q, e> ("dot") or <q, e> / (|q| |e|) ("cosine"). Among equals the lower row comes first, as in
    `jax.lax.top_k`.

    "exact" takes the chunk's maxima over blocks of 128 rows and selects among the k best blocks only. That loses
    nothing: an entry outside them has k blocks whose maxima beat it.

    Args:
      queries: [..., q, d], any float type (computed in float32 or wider).
      bank: [n, d].
      k: number of neighbours, 1 <= k <= n.
      where: bool [n], rows that may be returned; None: all. If fewer than k may, the missing values are -inf and
        their indices point at rows that `where` excludes.
      method: "exact", or "approx" (`jax.lax.approx_max_k`: recall 0.95 on TPU, the same result as exact elsewhere,
        only slower).
      metric: "cosine" or "dot". Zero vectors have cosine 0.
      chunk: queries per pass; None: as many as give about 2^23 similarities. The queries of one pass are spread
        over all of them, so that a sharded query axis keeps all devices busy in every pass.

    Returns:
      values [..., q, k] and row indices int32 [..., q, k]. Gradients reach queries and bank through the values.

    Raises:
      ValueError: shapes that do not fit, k out of range, unknown method or metric.

    Example:
      >>> import jax.numpy as jnp
      >>> values, index = nearest(jnp.array([[2.0, 0.0]]), jnp.array([[0.0, 1.0], [3.0, 4.0], [1.0, 0.0]]), k=2)
      >>> print(index, values)
      [[2 1]] [[1.  0.6]]

    Reference: SOP section 2.2 (top-k of the memory); the block maxima are ordinary selection, exact by the argument
    above.
    """
    arguments.require_shape("bank", bank, (None, None), "[n, d]")
    size, width = jnp.shape(bank)
    arguments.require_shape("queries", queries, (..., None, width), f"[..., q, {width}] as wide as bank")
    arguments.require(1 <= k <= size, "k", k, f"between 1 and {size}, the rows of the bank")
    arguments.require(method in ("exact", "approx"), "method", repr(method), '"exact" or "approx"')
    arguments.require(metric in ("cosine", "dot"), "metric", repr(metric), '"cosine" or "dot"')
    if where is not None:
        arguments.require_shape("where", where, (size,), f"[{size}], one entry per row of bank")
    if chunk is not None:
        arguments.require(chunk >= 1, "chunk", chunk, "at least 1")
    dtype = jnp.promote_types(jnp.result_type(queries, bank), jnp.float32)
    queries, bank = jnp.asarray(queries).astype(dtype), jnp.asarray(bank).astype(dtype)
    if metric == "cosine":
        queries, bank = _unit(queries), _unit(bank)
    penalty = jnp.zeros(size, dtype) if where is None else jnp.where(where, 0, -jnp.inf).astype(dtype)
    select = _top_k if method == "exact" else jax.lax.approx_max_k

    def search(part):
        scores = jnp.einsum("qd,nd->qn", part, bank, precision=jax.lax.Precision.HIGHEST)
        return select(scores + penalty, k)

    *batch, count, _ = queries.shape
    flat = queries.reshape(-1, width)
    total = flat.shape[0]
    passes = math.ceil(total / (chunk or max(1, _SCORES // size)))
    if passes <= 1:
        values, index = search(flat)
    else:
        per_pass = math.ceil(total / passes)
        strided = jnp.pad(flat, ((0, per_pass * passes - total), (0, 0))).reshape(per_pass, passes, width)
        found = jax.lax.map(search, jnp.swapaxes(strided, 0, 1))
        values, index = (jnp.swapaxes(x, 0, 1).reshape(per_pass * passes, k)[:total] for x in found)
    return values.reshape(*batch, count, k), index.reshape(*batch, count, k)


def _unit(x):
    square = jnp.sum(x * x, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.where(square > 0, square, 1))


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
