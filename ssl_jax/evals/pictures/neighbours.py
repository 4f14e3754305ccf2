"""Images next to their nearest neighbours."""

import collections
import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.methods.pictures.base import Panel, Picture, class_name

_COLUMNS = 6  # images in a row of `points`
_RIGHT, _WRONG, _QUERY = "#1a9850", "#d73027", "#333333"


def picture(
    queries: ArrayLike,
    neighbours: ArrayLike,
    similarity: ArrayLike,
    query_labels: ArrayLike,
    neighbour_labels: ArrayLike,
    class_names: Sequence[str] | None = None,
) -> Picture:
    """One row per query: the query, then its nearest neighbours, framed in green if they have the
    query's class and in red if not.

    Args:
      queries: [n, H, W, 3]; neighbours: [n, k, H, W, 3], nearest first; images in [0, 1].
      similarity: [n, k]. query_labels: [n] int, neighbour_labels: [n, k] int.
      class_names: names of the classes; None = show their numbers.
    """
    queries, neighbours, similarity = map(np.asarray, (queries, neighbours, similarity))
    truth, labels = np.asarray(query_labels), np.asarray(neighbour_labels)
    n, k = similarity.shape
    shapes = len(queries), neighbours.shape[:2], truth.shape, labels.shape
    if shapes != (n, (n, k), (n,), (n, k)):
        raise ValueError(
            f"queries {queries.shape}, neighbours {neighbours.shape}, similarity"
            f" {similarity.shape}, labels {truth.shape} and {labels.shape} do not fit"
        )
    right = labels == truth[:, None]

    def neighbour(i, j):
        name = _short(class_name(class_names, labels[i, j]))
        return f"{name} ({similarity[i, j]:.2f})"

    return judged_rows(
        list(queries),
        list(neighbours),
        right,
        query_titles=[f"query: {_short(class_name(class_names, label))}" for label in truth],
        titles=[[neighbour(i, j) for j in range(k)] for i in range(n)],
        title="Nearest training images, with class and cosine similarity:"
        f" {100 * right.mean():.0f} % of those shown have the query's class",
        meaning=("same class", "other class"),
    )


def unjudged(queries: ArrayLike, neighbours: ArrayLike, similarity: ArrayLike) -> Picture:
    """Like `picture`, for images without labels."""
    queries, neighbours, similarity = map(np.asarray, (queries, neighbours, similarity))
    rows = tuple(
        (
            Panel(query, title="query", frame=_QUERY),
            *(Panel(image, title=f"{x:.3f}") for image, x in zip(images, cosines, strict=True)),
        )
        for query, images, cosines in zip(queries, neighbours, similarity, strict=True)
    )
    return Picture("Nearest training images, with cosine similarity", rows)


def judged_rows(
    queries: Sequence[ArrayLike],
    neighbours: Sequence[Sequence[ArrayLike]],
    right: ArrayLike,
    *,
    query_titles: Sequence[str],
    titles: Sequence[Sequence[str]],
    title: str,
    meaning: tuple[str, str],
) -> Picture:
    """One row per query: the query, then its neighbours, framed in green if right, in red if wrong.

    Args:
      queries: n images [H, W, 3] in [0, 1] of any size. neighbours: k images for each query.
      right: bool [n, k]. meaning: names of right and wrong in the legend.
    """
    right = np.asarray(right)

    def panel(i, j):
        color, mark = judged(bool(right[i, j]))
        return Panel(neighbours[i][j], title=f"{mark} {titles[i][j]}", frame=color)

    rows = tuple(
        (
            Panel(query, title=query_titles[i], frame=_QUERY),
            *(panel(i, j) for j in range(right.shape[1])),
        )
        for i, query in enumerate(queries)
    )
    return Picture(title, rows, legend=tuple(zip((_RIGHT, _WRONG), meaning)))


def points(
    images: Sequence[np.ndarray],
    places: ArrayLike,
    labels: ArrayLike,
    predicted: ArrayLike,
    *,
    class_names: Sequence[str] | None,
    title: str,
) -> Picture:
    """Images with the points of the patches that voted, and the number of votes for the true class.

    Args:
      images: n images [H, W, 3] in [0, 1]. places: [n or more, P, 2], (y, x) in 0..1. labels: [n or
        more] int. predicted: [n or more, P] int.
    """

    def panel(image, marks, label, classes):
        votes = int((classes == label).sum())
        color, mark = judged(votes > 0)
        text = f"{mark} {class_name(class_names, label)}: {votes} of {len(classes)} say so"
        return Panel(image, marks=tuple(map(tuple, marks)), title=text, frame=color)

    panels = list(map(panel, images, np.asarray(places), np.asarray(labels), np.asarray(predicted)))
    rows = [tuple(panels[i : i + _COLUMNS]) for i in range(0, len(panels), _COLUMNS)]
    return Picture(title, tuple(rows))


def turns(kinds: Iterable[Hashable]) -> list[int]:
    """For each entry, the number of earlier entries of its kind. Sorted by it, queries are the
    first of each kind, then the second of each, ..."""
    counts: dict[Hashable, Iterator[int]] = collections.defaultdict(itertools.count)
    return [next(counts[kind]) for kind in kinds]


def judged(right: bool) -> tuple[str, str]:
    """(colour, sign) of right or wrong; the sign is for readers who cannot distinguish the
    colours."""
    return (_RIGHT, "\u2713") if right else (_WRONG, "\u2717")


def _short(text, limit=12):
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"
