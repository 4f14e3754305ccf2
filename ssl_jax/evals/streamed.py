"""Nearest rows of a bank that may be larger than the memory of a device, or in a file."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax import ops
from ssl_jax.evals import knn

BLOCK = 2**18  # queries that are searched for at a time


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
      query_chunk, bank_chunk: rows per device call; device memory holds 2^18 queries, one piece of
        the bank and [query_chunk, bank_chunk] similarities at most. Results do not depend on them.

    Returns:
      similarity [q, k] float32 (descending), index [q, k] int32 into the bank; equal similarities
      in order of the index.
    """
    count = len(bank) if rows is None else len(rows)
    if not count or not len(queries):
        raise ValueError(f"nothing to retrieve: {len(queries)} queries, {count} rows in the bank")
    k, query_chunk = min(k, count), min(query_chunk, len(queries))
    bank_chunk = max(min(bank_chunk, count), k)
    similarity = np.empty((len(queries), k), np.float32)
    index = np.empty((len(queries), k), np.int32)
    nothing = jnp.full((query_chunk, k), -jnp.inf), jnp.zeros((query_chunk, k), jnp.int32)
    for first in range(0, len(queries), BLOCK):
        starts = range(first, min(first + BLOCK, len(queries)), query_chunk)
        pieces = [knn.normalize(_padded(queries, start, query_chunk)) for start in starts]
        best = [nothing] * len(pieces)
        for start in range(0, count, bank_chunk):
            chosen = None if rows is None else rows[start : start + bank_chunk]
            part = knn.normalize(_padded(bank, start, bank_chunk, chosen))
            where = jnp.arange(bank_chunk) < count - start
            best = [_merge(piece, part, where, start, *b, k=k) for piece, b in zip(pieces, best)]
        for start, (values, found) in zip(starts, best):
            stop = min(start + query_chunk, len(queries))
            similarity[start:stop] = np.asarray(values)[: stop - start]
            index[start:stop] = np.asarray(found)[: stop - start]
    return similarity, index if rows is None else rows[index].astype(np.int32)


def _padded(rows, start, size, chosen=None):
    """`size` rows from `start` on, or the chosen ones, filled up with zeros, so that every piece
    has one shape."""
    part = np.asarray(rows[start : start + size] if chosen is None else rows[chosen], np.float32)
    return np.pad(part, ((0, size - len(part)), (0, 0)))


@functools.partial(jax.jit, static_argnames="k")
def _merge(queries, bank, where, offset, similarity, index, *, k):
    """Top k of the best so far and of this piece of the bank; earlier rows win ties."""
    # Both sides have length 1.
    new_similarity, new_index = ops.nearest(queries, bank, k=k, where=where, metric="dot")
    similarity, best = jax.lax.top_k(jnp.concatenate([similarity, new_similarity], axis=1), k)
    return similarity, jnp.take_along_axis(
        jnp.concatenate([index, new_index + offset], axis=1), best, axis=1
    )
