"""Images beside their nearest neighbours."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.evals.pictures.base import Panel, Picture, class_name

_RIGHT, _WRONG, _QUERY = "#1a9850", "#d73027", "#333333"


def picture(
    queries: ArrayLike,
    neighbours: ArrayLike,
    similarity: ArrayLike,
    query_labels: ArrayLike,
    neighbour_labels: ArrayLike,
    class_names: Sequence[str] | None = None,
) -> Picture:
    """One row per query: the query, then its nearest neighbours; the frame says whether the class
    agrees.

    Args:
      queries: [n, H, W, 3]; neighbours: [n, k, H, W, 3], nearest first; images in [0, 1].
      similarity: [n, k]. query_labels: [n] int, neighbour_labels: [n, k] int.
      class_names: names of the classes; None: numbers.
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
        # A check mark or a cross, for those who cannot tell red from green.
        color, mark = (_RIGHT, "\u2713") if right[i, j] else (_WRONG, "\u2717")
        title = f"{mark} {_short(class_name(class_names, labels[i, j]))} ({similarity[i, j]:.2f})"
        return Panel(neighbours[i, j], title=title, frame=color)

    def query(i):
        title = f"query: {_short(class_name(class_names, truth[i]))}"
        return Panel(queries[i], title=title, frame=_QUERY)

    return Picture(
        "Nearest training images, with class and cosine similarity:"
        f" {100 * right.mean():.0f} % of those shown have the query's class",
        tuple((query(i), *(neighbour(i, j) for j in range(k))) for i in range(n)),
        legend=((_RIGHT, "same class"), (_WRONG, "other class")),
    )


def _short(text, limit=12):
    return text if len(text) <= limit else text[: limit - 1] + "\u2026"
