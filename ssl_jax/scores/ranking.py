"""Scores of rankings: mean average precision and precision at k, as in the revisited Oxford and
Paris benchmark (Radenovic et al. 2018).
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.scores import checked

KS = (1, 5, 10)
_CHUNK = 256  # queries whose similarities are in memory at a time


class Query(NamedTuple):
    """Gallery rows that are relevant to a query, or left out; all others are wrong."""

    relevant: np.ndarray  # [r] int
    ignored: np.ndarray  # [i] int, removed from the ranking


class Scores(NamedTuple):
    """Means over the queries with relevant rows, each 0..1."""

    mean_ap: float
    precision: dict[int, float]  # k -> precision at k
    queries: int  # number of queries with relevant rows


def positions(order: ArrayLike, query: Query) -> np.ndarray:
    """Positions of the relevant rows in a ranking without the ignored rows: [r] int, from 0,
    ascending.

    order: [n] rows of the gallery, best first.
    """
    order = np.asarray(order)
    left = order[~np.isin(order, query.ignored)]
    return np.flatnonzero(np.isin(left, query.relevant))


def average_precision(places: ArrayLike) -> float:
    """Area under the precision-recall curve by the trapezoidal rule, 0..1.

    The j-th relevant row (from 0), at position p, contributes (j / p + (j + 1) / (p + 1)) / 2, with
    j / p = 1 at p = 0. In the usual average precision it contributes (j + 1) / (p + 1).

    places: [r] int, r > 0: see `positions`.
    """
    places = np.asarray(places, np.float64)
    earlier = np.arange(len(places))
    before = np.where(places == 0, 1.0, earlier / np.maximum(places, 1))
    return float(np.mean((before + (earlier + 1) / (places + 1)) / 2))


def precision_at(places: ArrayLike, k: int) -> float:
    """Share of relevant rows among the first k, or among those up to the last relevant row if that
    comes earlier. So a query with three relevant rows can reach 1 at k = 10.

    places: [r] int, r > 0: see `positions`.
    """
    places = np.asarray(places) + 1
    shown = min(int(places.max()), k)
    return float((places <= shown).sum() / shown)


def evaluate(
    queries: np.ndarray, gallery: np.ndarray, targets: Sequence[Query], ks: Collection[int] = KS
) -> Scores:
    """Scores the ranking of the gallery by dot product with each query; ties are in order of the
    rows.

    Args:
      queries: [q, d], gallery: [n, d]; computed in float32 at least. targets: one per query;
        queries without relevant rows do not count.

    Raises:
      ValueError: shapes do not fit, a value is not finite, or no query has a relevant row.
    """
    if queries.ndim != 2 or gallery.shape[1:] != queries.shape[1:] or len(targets) != len(queries):
        raise ValueError(
            f"queries {queries.shape}, gallery {gallery.shape} and {len(targets)} answers do not"
            " fit [q, d], [n, d], q"
        )
    all_places = [
        positions(order, query)
        for start in range(0, len(queries), _CHUNK)
        for order, query in zip(
            ranking(queries[start : start + _CHUNK], gallery), targets[start : start + _CHUNK]
        )
        if len(query.relevant)
    ]
    if not all_places:
        raise ValueError("no query has a relevant row in the gallery")
    return Scores(
        mean_ap=float(np.mean([average_precision(places) for places in all_places])),
        precision={
            k: float(np.mean([precision_at(places, k) for places in all_places])) for k in ks
        },
        queries=len(all_places),
    )


def ranking(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """[q, n] int rows of the gallery [n, d] for each query [q, d], largest dot product first.
    Raises ValueError for values that are not finite."""
    queries, gallery = checked.finite(queries, "queries"), checked.finite(gallery, "gallery")
    return np.argsort(-(queries @ gallery.T), axis=1, kind="stable")


# --- relevant rows


def levels(
    easy: Iterable[np.ndarray], hard: Iterable[np.ndarray], junk: Iterable[np.ndarray]
) -> dict[str, list[Query]]:
    """The queries of the benchmark's three levels.

    "easy": easy images are relevant, hard and junk ones ignored. "medium": easy and hard are
    relevant, junk ignored. "hard": hard are relevant, easy and junk ignored. Junk includes the
    query's own image.

    easy, hard, junk: for each query, rows [r] of the gallery.
    """
    join = np.concatenate
    entries = list(zip(easy, hard, junk, strict=True))
    return {
        "medium": [Query(join([easy, hard]), junk) for easy, hard, junk in entries],
        "hard": [Query(hard, join([easy, junk])) for easy, hard, junk in entries],
        "easy": [Query(easy, join([hard, junk])) for easy, hard, junk in entries],
    }


def same_label(labels: np.ndarray) -> list[Query]:
    """One query per image of labels [n]: the other images of its label are relevant, and the image
    itself is ignored."""
    rows = np.arange(len(labels))
    return [Query(rows[(labels == labels[i]) & (rows != i)], rows[i : i + 1]) for i in rows]
