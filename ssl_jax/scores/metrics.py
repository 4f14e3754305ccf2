"""Scores of a segmentation, computed from the confusion matrix of its pixels or patches."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.scores import checked

ABSENT = ("zero", "skip")  # how a class that is only predicted counts


def confusion(
    truth: ArrayLike, predicted: ArrayLike, *, num_classes: int, ignore: int = IGNORE
) -> np.ndarray:
    """Confusion matrix [c, c] int64, with rows of true and columns of predicted classes. Pixels or
    patches whose true class is `ignore` do not count. Raises ValueError for other classes outside
    [0, c).
    """
    truth, predicted = np.asarray(truth).ravel(), np.asarray(predicted).ravel()
    valid = truth != ignore
    rows = checked.classes(truth[valid], num_classes, "true classes").astype(np.int64)
    pairs = rows * num_classes + checked.classes(predicted[valid], num_classes, "predicted classes")
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def num_classes(*masks: Iterable[np.ndarray]) -> int:
    """1 + the largest label in the masks, without `IGNORE`."""

    def largest(mask):
        return int(np.where(mask == IGNORE, 0, mask).max(initial=0))

    return 1 + max((largest(mask) for part in masks for mask in part), default=0)


def class_iou(counts: ArrayLike, absent: str = "zero") -> np.ndarray:
    """[c] intersection over union, TP / (TP + FP + FN), from a confusion matrix [c, c].

    NaN for classes neither in the truth nor predicted. A class that is only predicted is 0 with
    absent="zero", as in mmsegmentation (`IoUMetric`), and NaN with "skip".
    """
    if absent not in ABSENT:
        raise ValueError(f"absent is one of {', '.join(ABSENT)}, got {absent!r}")
    counts = np.asarray(counts, np.float64)
    hit, truth = np.diag(counts), counts.sum(axis=1)
    union = truth + counts.sum(axis=0) - hit
    counted = (union if absent == "zero" else truth) > 0
    return hit / np.where(counted, union, np.nan)


def mean_iou(iou: ArrayLike) -> float:
    """Mean (0..1) over the classes that are not NaN."""
    counted = np.isfinite(iou)
    if not counted.any():
        raise ValueError("nothing is labelled: every pixel or patch is ignored")
    return float(np.mean(np.asarray(iou)[counted]))


def class_accuracy(counts: ArrayLike) -> np.ndarray:
    """Accuracy [c] of each class, TP / (TP + FN), from a confusion matrix [c, c]; NaN for classes
    that are not in the truth. mAcc is their mean."""
    counts = np.asarray(counts, np.float64)
    truth = counts.sum(axis=1)
    return np.diag(counts) / np.where(truth > 0, truth, np.nan)


def accuracy(counts: ArrayLike) -> float:
    """Share (0..1) of labelled pixels or patches that are classified correctly (aAcc), from a
    confusion matrix [c, c]. Raises ValueError if none is labelled."""
    counts = np.asarray(counts, np.float64)
    if not counts.sum():
        raise ValueError("nothing is labelled: every pixel or patch is ignored")
    return float(np.trace(counts) / counts.sum())
