"""Nearest rows of a bank that may be larger than the memory of a device, or in a file."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax import ops
from ssl_jax.ops.numerics import product

BLOCK = 2**18  # queries that are searched for at a time
_HOST_CHUNKS = 512, 8192  # queries and rows of the bank whose similarities stay in a CPU's cache


def nearest_streamed(
    queries: np.ndarray,
    bank: np.ndarray,
    *,
    rows: np.ndarray | None = None,
    k: int,
    query_chunk: int = 2048,
    bank_chunk: int = 65536,
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest rows of `bank` by cosine, exactly; the bank goes to the device in pieces, with
    a running top k.

    Args:
      queries: [q, d], bank: [n, d], on the host. k: limited to the rows searched.
      rows: ascending indices of the rows of the bank to search, read piece by piece; None: all.
      query_chunk, bank_chunk: rows per device call at most; device memory holds 2^18 queries, one
        piece of the bank and [query_chunk, bank_chunk] similarities at most. A CPU takes 512 and
        8192 at most. Results do not depend on them.

    Returns:
      similarity [q, k] float32 (descending), index [q, k] int32 into the bank; equal similarities
      in order of the index.
    """
    count = len(bank) if rows is None else len(rows)
    if not count or not len(queries):
        raise ValueError(f"nothing to retrieve: {len(queries)} queries, {count} rows in the bank")
    merge: Callable[..., Any] = _merge
    if _on_host():
        merge = _merge_on_host
        query_chunk, bank_chunk = map(min, (query_chunk, bank_chunk), _HOST_CHUNKS)
    k, query_chunk = min(k, count), min(query_chunk, len(queries))
    bank_chunk = max(min(bank_chunk, count), k)
    similarity = np.empty((len(queries), k), np.float32)
    index = np.empty((len(queries), k), np.int32)
    nothing = jnp.full((query_chunk, k), -jnp.inf), jnp.zeros((query_chunk, k), jnp.int32)
    for first in range(0, len(queries), BLOCK):
        starts = range(first, min(first + BLOCK, len(queries)), query_chunk)
        pieces = [normalize(padded(queries, start, query_chunk)) for start in starts]
        best = [nothing] * len(pieces)
        for start in range(0, count, bank_chunk):
            chosen = None if rows is None else rows[start : start + bank_chunk]
            part = normalize(padded(bank, start, bank_chunk, chosen))
            best = [merge(piece, part, count - start, start, *b) for piece, b in zip(pieces, best)]
        for start, (values, found) in zip(starts, best):
            stop = min(start + query_chunk, len(queries))
            similarity[start:stop] = np.asarray(values)[: stop - start]
            index[start:stop] = np.asarray(found)[: stop - start]
    return similarity, index if rows is None else rows[index].astype(np.int32)


@jax.jit
def normalize(x: jax.typing.ArrayLike) -> jax.Array:
    """Rows of [..., d] at length 1 in float32; a zero row stays zero."""
    x = jnp.asarray(x, jnp.float32)
    return x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def padded(rows: np.ndarray, start: int, size: int, chosen: np.ndarray | None = None) -> np.ndarray:
    """`size` rows from `start` on, or the chosen ones, the last one repeated to fill up, so that
    every piece has one shape."""
    part = np.asarray(rows[start : start + size] if chosen is None else rows[chosen])
    missing = size - len(part)
    return np.concatenate([part, part[-1:].repeat(missing, axis=0)]) if missing else part


@jax.jit
def _merge(queries, bank, count, offset, similarity, index):
    """Top k of the best so far and of the first `count` rows of this piece of the bank; earlier
    rows win ties."""
    k, where = index.shape[1], jnp.arange(len(bank)) < count
    # Both sides have length 1.
    new_similarity, new_index = ops.nearest(queries, bank, k=k, where=where, metric="dot")
    similarity, best = jax.lax.top_k(jnp.concatenate([similarity, new_similarity], axis=1), k)
    return similarity, jnp.take_along_axis(
        jnp.concatenate([index, new_index + offset], axis=1), best, axis=1
    )


def _on_host() -> bool:
    """Whether to select with numpy: XLA's top k takes as long as the product there."""
    return jax.default_backend() == "cpu"


def _merge_on_host(queries, bank, count, offset, similarity, index):
    """As `_merge`. Only what reaches the k-th best so far is sorted, at first that of this piece;
    a NaN does, as the greatest."""
    scores = np.asarray(_similarities(queries, bank))[:, :count]
    similarity, index = np.asarray(similarity), np.asarray(index)
    k, (size, count) = index.shape[1], scores.shape
    least = similarity[:, -1:]
    if not offset:
        least = np.partition(scores, count - k, axis=1)[:, count - k, None]
    query, row = np.divmod(np.flatnonzero(~(scores < least)), count)
    found = np.bincount(query, minlength=size)
    column = k + np.arange(len(query)) - np.repeat(np.cumsum(found) - found, found)
    values = np.full((size, k + found.max()), -np.inf, np.float32)
    rows = np.zeros(values.shape, np.int32)
    values[:, :k], rows[:, :k] = similarity, index
    values[query, column], rows[query, column] = scores[query, row], row + offset
    best = np.argsort(-values, axis=1, kind="stable")[:, :k]  # of equals the lower row
    return np.take_along_axis(values, best, axis=1), np.take_along_axis(rows, best, axis=1)


@jax.jit
def _similarities(queries, bank):
    return product("qd,nd->qn", queries, bank)
