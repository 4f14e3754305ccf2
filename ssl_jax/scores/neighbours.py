"""Nearest rows of a bank, which may be a file or larger than device memory, and their votes for
classes.
"""

import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ssl_jax import ops
from ssl_jax.ops import devices
from ssl_jax.ops.numerics import product
from ssl_jax.scores import checked, normalize

KS = (20, 10, 100, 200)  # of k-NN classification, as in DINO and iBOT
TEMPERATURE = 0.07  # of k-NN classification
SOFTMAX_TEMPERATURE = 0.1  # of the vote "softmax"
QUERY_CHUNK, BANK_CHUNK = 2048, 65536  # rows per device call at most
BLOCK = 2**18  # queries per search
_VOTES = 2**22  # votes by class in memory at a time
_HOST_CHUNKS = 512, 8192  # queries and bank rows whose similarities fit in a CPU's cache


def nearest_streamed(
    queries: np.ndarray, bank: np.ndarray, *, rows: np.ndarray | None = None, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest rows of `bank` by cosine, exactly. The bank is copied to the device in chunks,
    over which a running top k is kept. Device memory holds at most 2^18 queries, 65536 rows of the
    bank and their similarities to 2048 queries.

    Args:
      queries: [q, d], bank: [n, d], on the host. k: limited to the rows searched.
      rows: ascending indices of the bank rows to search, read chunk by chunk; None = all.

    Returns:
      similarity [q, k] float32 (descending), index [q, k] int32 into the bank; equal similarities
      are in order of the index.

    Raises:
      ValueError: no query, an empty bank, or values that are not finite.
    """
    count = len(bank) if rows is None else len(rows)
    if not count or not len(queries):
        raise ValueError(f"nothing to retrieve: {len(queries)} queries, {count} rows in the bank")
    merge: Callable[..., Any] = _merge
    query_chunk, bank_chunk = QUERY_CHUNK, BANK_CHUNK
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
        pieces = [_unit(_padded(queries, start, query_chunk), "queries") for start in starts]
        best = [nothing] * len(pieces)
        for start in range(0, count, bank_chunk):
            chosen = None if rows is None else rows[start : start + bank_chunk]
            part = _unit(_padded(bank, start, bank_chunk, chosen), "bank")
            best = [merge(piece, part, count - start, start, *b) for piece, b in zip(pieces, best)]
        for start, (cosines, places) in zip(starts, best):
            stop = min(start + query_chunk, len(queries))
            similarity[start:stop] = np.asarray(cosines)[: stop - start]
            index[start:stop] = np.asarray(places)[: stop - start]
    return similarity, index if rows is None else rows[index].astype(np.int32)


def _unit(rows, what):
    return normalize.on_device(checked.finite(rows, what))


def _padded(rows, start, size, chosen=None):
    """`size` rows from `start` on, or the chosen rows, padded with copies of the last one, so that
    all chunks have one shape."""
    part = np.asarray(rows[start : start + size] if chosen is None else rows[chosen])
    missing = size - len(part)
    return np.concatenate([part, part[-1:].repeat(missing, axis=0)]) if missing else part


@jax.jit
def _merge(queries, bank, count, offset, similarity, index):
    """Merges the running top k with the first `count` rows of this chunk of the bank; earlier rows
    win ties."""
    k, where = index.shape[1], jnp.arange(len(bank)) < count
    # Queries and bank are L2-normalised.
    new_similarity, new_index = ops.nearest(queries, bank, k=k, where=where, metric="dot")
    similarity, best = jax.lax.top_k(jnp.concatenate([similarity, new_similarity], axis=1), k)
    return similarity, jnp.take_along_axis(
        jnp.concatenate([index, new_index + offset], axis=1), best, axis=1
    )


def _on_host() -> bool:
    """Whether to select with NumPy, because XLA's top k is as slow as the product on a CPU."""
    return devices.platform() == "cpu"


def _merge_on_host(queries, bank, count, offset, similarity, index):
    """Like `_merge`, but sorts only similarities that reach the k-th best so far (in the first
    chunk, its own k-th best)."""
    scores = np.asarray(_similarities(queries, bank))[:, :count]
    similarity, index = np.asarray(similarity), np.asarray(index)
    k, (size, count) = index.shape[1], scores.shape
    least = similarity[:, -1:]
    if not offset:
        least = np.partition(scores, count - k, axis=1)[:, count - k, None]
    query, row = np.divmod(np.flatnonzero(scores >= least), count)
    reaching = np.bincount(query, minlength=size)
    column = k + np.arange(len(query)) - np.repeat(np.cumsum(reaching) - reaching, reaching)
    values = np.full((size, k + reaching.max()), -np.inf, np.float32)
    rows = np.zeros(values.shape, np.int32)
    values[:, :k], rows[:, :k] = similarity, index
    values[query, column], rows[query, column] = scores[query, row], row + offset
    best = np.argsort(-values, axis=1, kind="stable")[:, :k]  # lower rows win ties
    return np.take_along_axis(values, best, axis=1), np.take_along_axis(rows, best, axis=1)


@jax.jit
def _similarities(queries, bank):
    return product("qd,nd->qn", queries, bank)


# --- classes


class Neighbours(NamedTuple):
    """Predictions for each k, and the neighbours that voted (nearest first)."""

    predictions: dict[int, np.ndarray]  # k -> [q] int32
    similarity: np.ndarray  # [q, max k] float32, cosine
    # [q, max k] int32, rows of the bank
    index: np.ndarray  # type: ignore[assignment]  # hides tuple.index


def classify(
    bank: ArrayLike,
    labels: ArrayLike,
    queries: ArrayLike,
    *,
    num_classes: int,
    ks: Collection[int] = KS,
    temperature: float = TEMPERATURE,
) -> Neighbours:
    """Predicts the class that wins the weighted vote of the k nearest bank rows, for several k
    (Wu et al. 2018, as in DINO and iBOT).

    score(c) = sum over the k nearest rows i of exp(<q, b_i> / temperature) [label_i = c], with q
    and b L2-normalised. Weights are divided by that of the nearest row, so that none is infinite.

    Args:
      bank: [n, d], labels: [n] int in [0, num_classes), queries: [q, d]; computed in float32.
      ks: numbers of neighbours; each is limited to the size of the bank.
      temperature: > 0.

    Returns:
      Neighbours. Equal scores go to the lowest class.

    Raises:
      ValueError: shapes do not fit, a label is out of range, or a value is not finite.
    """
    how: dict[str, Any] = dict(num_classes=num_classes, ks=ks, temperature=temperature)
    blocks = list(_voted(bank, labels, queries, rule="nearest", **how))
    predictions, similarity, index = zip(*blocks)
    join = np.concatenate
    of_k = {k: join([block[k] for block in predictions]) for k in predictions[0]}
    return Neighbours(of_k, join(similarity), join(index))


def classify_sets(
    bank: np.ndarray, labels: ArrayLike, queries: np.ndarray, *, num_classes: int, **how: Any
) -> dict[int, np.ndarray]:
    """Classifies each vector of a set by `classify`, with the vectors of all sets as the bank.

    Args:
      bank: [n, p, d], labels: [n] int in [0, num_classes), queries: [m, p, d].
      how: ks and temperature, see `classify`; each k is limited to n p.

    Returns:
      {k: [m, p] int32}.
    """
    rows, of_row = bank.reshape(-1, bank.shape[-1]), np.repeat(labels, bank.shape[1])
    votes = classify(
        rows, of_row, queries.reshape(-1, queries.shape[-1]), num_classes=num_classes, **how
    )
    return {k: classes.reshape(queries.shape[:2]) for k, classes in votes.predictions.items()}


def retrieve(
    bank: np.ndarray,
    bank_labels: ArrayLike,
    queries: np.ndarray,
    *,
    num_classes: int,
    k: int,
    rule: str = "plain",
    rows: np.ndarray | None = None,
) -> np.ndarray:
    """Class [q] int32 of each query [q, d] by the vote of its k nearest bank rows [n, d], whose
    labels are [n] int, in [0, num_classes) where they are searched.

    Args:
      rule: "plain" (one vote per neighbour) or "softmax" (weights softmax(similarity / 0.1)). Equal
        scores go to the lowest class.
      rows: see `nearest_streamed`.

    Raises ValueError like `classify`.
    """
    if rule not in ("plain", "softmax"):
        raise ValueError(f'the vote is "plain" or "softmax", got {rule!r}')
    how: dict[str, Any] = dict(num_classes=num_classes, rule=rule, temperature=SOFTMAX_TEMPERATURE)
    blocks = _voted(bank, bank_labels, queries, ks=(k,), rows=rows, **how)
    return np.concatenate([winners for block in blocks for winners in block.predictions.values()])


def _voted(bank, labels, queries, *, ks, num_classes, rows=None, **how) -> Iterator[Neighbours]:
    """Searches and votes for blocks of queries, in order."""
    bank, labels, queries = map(np.asarray, (bank, labels, queries))
    if (
        bank.ndim != 2
        or queries.ndim != 2
        or bank.shape[1] != queries.shape[1]
        or labels.shape != bank.shape[:1]
    ):
        raise ValueError(
            f"bank {bank.shape}, labels {labels.shape} and queries {queries.shape} do not fit [n,"
            " d], [n], [q, d]"
        )
    searched = checked.classes(labels if rows is None else labels[rows], num_classes)
    ks = tuple(sorted({min(k, len(searched)) for k in ks}))
    for first in range(0, max(len(queries), 1), BLOCK):
        part = queries[first : first + BLOCK]
        similarity, index = nearest_streamed(part, bank, rows=rows, k=ks[-1])
        votes = labels[index].astype(np.int32)
        size = min(max(1, _VOTES // num_classes), len(part))
        winners = [
            _winners(*(_padded(x, i, size) for x in (votes, similarity)), num_classes, ks, **how)
            for i in range(0, len(part), size)
        ]
        predicted = np.concatenate(winners, axis=1)[:, : len(part)]
        yield Neighbours(dict(zip(ks, predicted)), similarity, index)


@functools.partial(jax.jit, static_argnames=("num_classes", "ks", "temperature", "rule"))
def _winners(labels, similarity, num_classes, ks, *, temperature, rule):
    """`vote` with the weights [q, n] of the rule."""
    if rule == "plain":
        weights = jnp.ones_like(similarity)
    elif rule == "softmax":
        weights = jax.nn.softmax(similarity / temperature, axis=1)
    else:  # divided by the nearest one's weight
        weights = jnp.exp((similarity - similarity[:, :1]) / temperature)
    return vote(labels, weights, num_classes=num_classes, ks=ks)


def vote(
    labels: jax.Array, weights: jax.Array, *, num_classes: int, ks: Collection[int]
) -> jax.Array:
    """Winners after the first k weighted votes, for each k.

    Args:
      labels: [q, n] int, weights: [q, n] float32, nearest first. ks: ascending, each at most n.

    Returns:
      [len(ks), q] int32. Equal scores go to the lowest class. One vote per query is added at a
      time, so memory is [q, num_classes], and no two additions write to the same element, which
      makes results deterministic on accelerators too.
    """
    rows = jnp.arange(labels.shape[0])

    def add(j, scores):
        return scores.at[rows, labels[:, j]].add(weights[:, j], unique_indices=True)

    scores, done, winners = jnp.zeros((labels.shape[0], num_classes), jnp.float32), 0, []
    for k in ks:
        scores = jax.lax.fori_loop(done, k, add, scores)
        done = k
        winners.append(jnp.argmax(scores, axis=1).astype(jnp.int32))
    return jnp.stack(winners)
