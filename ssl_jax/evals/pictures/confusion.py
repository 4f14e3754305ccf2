"""Score of each class, and the confusion matrix."""

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
    """A bar for each class and, in the same row, its examples by predicted class.

    Args:
      counts: [c, c] examples by true (row) and predicted class. values: [c] in 0..1, lengths of the
        bars, NaN for a class without examples; None = the accuracy of each class.
      names: of the classes. measure: name of the values.
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
    """`picture` for true and predicted classes [n], both in [0, num_classes)."""
    counts = metrics.confusion(labels, predicted, num_classes=num_classes, ignore=-1)
    return picture(counts, names=names)
