"""Score of each class, and the confusion matrix."""

from collections.abc import Sequence

import numpy as np

from ssl_jax.methods.pictures.base import Classes, class_name
from ssl_jax.scores import metrics


def picture(
    counts: np.ndarray,
    iou: np.ndarray | None = None,
    *,
    names: Sequence[str] | None = None,
    title: str = "Correct share of each class, and the classes predicted for it",
) -> Classes:
    """A bar for each class, its IoU or accuracy, and in the same row its examples by predicted
    class.

    Args:
      counts: [c, c] examples by true (row) and predicted class. iou: [c] in 0..1; None = show the
        accuracies. names: of the classes.
    """
    shares = counts / np.maximum(counts.sum(axis=1), 1)[:, None]
    values, measure = (metrics.class_accuracy(counts), "right") if iou is None else (iou, "IoU")
    all_names = tuple(class_name(names, i) for i in range(len(counts)))
    return Classes(title, values, shares, all_names, measure)


def of_labels(
    labels: np.ndarray, predicted: np.ndarray, num_classes: int, names: Sequence[str] | None
) -> Classes:
    """`picture` for true and predicted classes [n], both in [0, num_classes)."""
    counts = metrics.confusion(labels, predicted, num_classes=num_classes, ignore=-1)
    return picture(counts, names=names)
