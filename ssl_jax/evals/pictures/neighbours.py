"""Images next to their nearest neighbours."""

import collections
import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.methods.pictures.base import Panel, Picture, class_name

_COLUMNS = 6  # images in a row of `points`
_LONGEST = 12  # letters of a class name that are shown
_RIGHT, _WRONG, _QUERY = "#1a9850", "#d73027", "#333333"


def picture(
    queries: Iterable[ArrayLike],
    neighbours: Iterable[Iterable[ArrayLike]],
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
    truth, labels = np.asarray(query_labels), np.asarray(neighbour_labels)
    right = labels == truth[:, None]

    def name(label):
        text = class_name(class_names, label)
        return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "\u2026"

    titles = [
        [f"{name(label)} ({x:.2f})" for label, x in zip(*row, strict=True)]
        for row in zip(labels, np.asarray(similarity), strict=True)
    ]
    return rows(
        queries,
        neighbours,
        titles,
        query_titles=[f"query: {name(label)}" for label in truth],
        title="Nearest training images, with class and cosine similarity:"
        f" {100 * right.mean():.0f} % of those shown have the query's class",
        right=right,
        meaning=("same class", "other class"),
    )


def rows(
    queries: Iterable[ArrayLike],
    neighbours: Iterable[Iterable[ArrayLike]],
    titles: Sequence[Sequence[str]],
    *,
    query_titles: Sequence[str],
    title: str,
    right: ArrayLike | None = None,
    meaning: tuple[str, str] = ("", ""),
) -> Picture:
    """One row per query: the query, then its neighbours, framed in green if right, in red if wrong.

    Args:
      queries: n images [H, W, 3] in [0, 1] of any size. neighbours: k images for each query, or
        more, with titles [n][k].
      right: bool [n, k]; None = not judged. meaning: names of right and wrong in the legend.
    """

    def panel(image, text, is_right=None):
        if is_right is None:
            return Panel(image, title=text)
        color, mark = _judged(is_right)
        return Panel(image, title=f"{mark} {text}", frame=color)

    columns = (neighbours, titles) if right is None else (neighbours, titles, np.asarray(right))
    panels = tuple(
        (Panel(query, title=text, frame=_QUERY), *map(panel, *of_query))
        for query, text, *of_query in zip(queries, query_titles, *columns)
    )
    legend = () if right is None else tuple(zip((_RIGHT, _WRONG), meaning))
    return Picture(title, panels, legend=legend)


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
        color, mark = _judged(votes > 0)
        text = f"{mark} {class_name(class_names, label)}: {votes} of {len(classes)} say so"
        return Panel(image, marks=tuple(map(tuple, marks)), title=text, frame=color)

    panels = list(map(panel, images, np.asarray(places), np.asarray(labels), np.asarray(predicted)))
    starts = range(0, len(panels), _COLUMNS)
    return Picture(title, tuple(tuple(panels[i : i + _COLUMNS]) for i in starts))


def turns(kinds: Iterable[Hashable]) -> list[int]:
    """For each entry, the number of earlier entries of its kind. Sorted by it, queries are the
    first of each kind, then the second of each, ..."""
    counts: dict[Hashable, Iterator[int]] = collections.defaultdict(itertools.count)
    return [next(counts[kind]) for kind in kinds]


def _judged(right: bool) -> tuple[str, str]:
    """(colour, sign) of right or wrong; the sign is for readers who cannot distinguish the
    colours."""
    return (_RIGHT, "\u2713") if right else (_WRONG, "\u2717")
