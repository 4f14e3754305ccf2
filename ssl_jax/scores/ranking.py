"""Scores of rankings: mean average precision and precision at k, as the revisited Oxford and Paris
benchmark computes them (Radenovic et al. 2018).
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

KS = (1, 5, 10)
_CHUNK = 256  # queries whose similarities are held at a time


class Query(NamedTuple):
    """What a query should find: rows of the gallery. All others are wrong."""

    relevant: np.ndarray  # [r] int
    ignored: np.ndarray  # [i] int, neither right nor wrong: taken out of the ranking


class Scores(NamedTuple):
    """Means over the queries that have something to find, each 0..1."""

    mean_ap: float
    precision: dict[int, float]  # at k
    queries: int  # how many those are


def positions(order: ArrayLike, query: Query) -> np.ndarray:
    """Places of the relevant rows in a ranking, once the ignored rows are out: [r] int, from 0 on,
    ascending.

    order: [n] rows of the gallery, best first.
    """
    order = np.asarray(order)
    left = order[~np.isin(order, query.ignored)]
    return np.flatnonzero(np.isin(left, query.relevant))


def average_precision(places: ArrayLike) -> float:
    """Area under the precision-recall curve by the trapezoidal rule, 0..1.

    The j-th relevant row (from 0 on), at place p, adds (j / p + (j + 1) / (p + 1)) / 2, with
    j / p = 1 at p = 0. The usual average precision adds (j + 1) / (p + 1).

    places: [r] int, r > 0: see `positions`.
    """
    places = np.asarray(places, np.float64)
    found = np.arange(len(places))
    before = np.where(places == 0, 1.0, found / np.maximum(places, 1))
    return float(np.mean((before + (found + 1) / (places + 1)) / 2))


def precision_at(places: ArrayLike, k: int) -> float:
    """Share of relevant rows among the first k, or up to the last relevant row where that comes
    earlier: a query with three relevant rows can reach 1 at k = 10.

    places: [r] int, r > 0: see `positions`.
    """
    places = np.asarray(places) + 1
    shown = min(int(places.max()), k)
    return float((places <= shown).sum() / shown)


def evaluate(
    queries: np.ndarray, gallery: np.ndarray, wanted: Sequence[Query], ks: Collection[int] = KS
) -> Scores:
    """Ranks the gallery by the dot product with each query; equal products in order of the rows.

    Args:
      queries: [q, d], gallery: [n, d]; float. wanted: of each query; one that has nothing relevant
        does not count.

    Raises:
      ValueError: shapes do not fit, or no query has anything to find.
    """
    if queries.ndim != 2 or gallery.shape[1:] != queries.shape[1:] or len(wanted) != len(queries):
        raise ValueError(
            f"queries {queries.shape}, gallery {gallery.shape} and {len(wanted)} answers do not fit"
            " [q, d], [n, d], q"
        )
    found = [
        positions(order, query)
        for start in range(0, len(queries), _CHUNK)
        for order, query in zip(
            ranking(queries[start : start + _CHUNK], gallery), wanted[start : start + _CHUNK]
        )
        if len(query.relevant)
    ]
    if not found:
        raise ValueError("no query has a relevant row in the gallery")
    return Scores(
        mean_ap=float(np.mean([average_precision(places) for places in found])),
        precision={k: float(np.mean([precision_at(places, k) for places in found])) for k in ks},
        queries=len(found),
    )


def ranking(queries: np.ndarray, gallery: np.ndarray) -> np.ndarray:
    """[q, n] int rows of the gallery [n, d] for each query [q, d], largest dot product first."""
    return np.argsort(-(queries @ gallery.T), axis=1, kind="stable")
