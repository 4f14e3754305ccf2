"""How each class fared, and what it was taken for."""

from collections.abc import Sequence

import numpy as np

from ssl_jax.methods.pictures.base import Classes, class_name
from ssl_jax.scores import metrics


def picture(
    counts: np.ndarray,
    values: np.ndarray | None = None,
    *,
    names: Sequence[str] | None = None,
    title: str = "Correct share of each class, and the classes predicted for it",
    measure: str = "right",
) -> Classes:
    """A bar for each class, and on the same rows where its examples went.

    Args:
      counts: [c, c] examples by true (row) and predicted class. values: [c] in 0..1, what the bars
        show, NaN for a class that is not there; None: the share of the class that is right.
      names: of the classes. measure: what the values are called.
    """
    total = counts.sum(axis=1)
    shares = counts / np.maximum(total, 1)[:, None]
    if values is None:
        values = np.where(total > 0, np.diagonal(shares), np.nan)
    all_names = tuple(class_name(names, i) for i in range(len(counts)))
    return Classes(title, values, shares, all_names, measure)


def of_labels(
    labels: np.ndarray, predicted: np.ndarray, num_classes: int, names: Sequence[str] | None
) -> Classes:
    """`picture` of true and predicted classes [n], both in [0, num_classes)."""
    counts = metrics.confusion(labels, predicted, num_classes=num_classes, ignore=-1)
    return picture(counts, names=names)
