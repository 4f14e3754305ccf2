"""Scores of segmented videos: region similarity J and boundary accuracy F of each object (Perazzi
et al. 2016; DAVIS 2017, Pont-Tuset et al. 2017).
"""

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.scores.propagation import objects

TOLERANCE = 0.008  # largest distance of matching boundaries, as a share of the diagonal
_HIT = 0.5  # recall is the share of frames with a value above it


class Measured(NamedTuple):
    """Means over the scored frames of one object, each 0..1."""

    j: float
    j_recall: float
    f: float
    f_recall: float


def region_similarity(truth: ArrayLike, predicted: ArrayLike) -> float:
    """J: intersection over union of two bool masks [H, W]; 1 if both are empty."""
    truth, predicted = np.asarray(truth, bool), np.asarray(predicted, bool)
    union = (truth | predicted).sum()
    return float((truth & predicted).sum() / union) if union else 1.0


def boundary_accuracy(
    truth: ArrayLike, predicted: ArrayLike, tolerance: float = TOLERANCE
) -> float:
    """F: harmonic mean of the shares of boundary pixels that have a boundary pixel of the other
    mask no farther away than ceil(tolerance * diagonal), in Euclidean distance.

    truth, predicted: bool [H, W]. 1 if neither has a boundary, 0 if only one has.
    """
    predicted_edge, true_edge = boundary(predicted), boundary(truth)
    if not predicted_edge.any() or not true_edge.any():
        return float(predicted_edge.any() == true_edge.any())
    near = _disk(int(np.ceil(tolerance * np.hypot(*predicted_edge.shape))))
    precision = (predicted_edge & _dilated(true_edge, near)).sum() / predicted_edge.sum()
    recall = (true_edge & _dilated(predicted_edge, near)).sum() / true_edge.sum()
    total = precision + recall
    return float(2 * precision * recall / total) if total else 0.0


def boundary(mask: ArrayLike) -> np.ndarray:
    """Boundary of a mask [H, W]: the pixels that differ from the neighbour to the right, below or
    diagonally below right; bool [H, W]. The border of the image is not a boundary."""
    mask = np.asarray(mask, bool)
    # The last row and column are repeated, so that the border is not a boundary.
    padded = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
    right, below, across = padded[:-1, 1:], padded[1:, :-1], padded[1:, 1:]
    return (mask ^ right) | (mask ^ below) | (mask ^ across)


def _disk(radius: int) -> np.ndarray:
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    return (y**2 + x**2 <= radius**2).astype(np.uint8)


def _dilated(mask: np.ndarray, near: np.ndarray) -> np.ndarray:
    return cv2.dilate(mask.astype(np.uint8), near).astype(bool)


def measure(truth: np.ndarray, predicted: np.ndarray) -> list[Measured]:
    """Scores of the objects of one video. The first frame, whose mask is given, and the last do not
    count, as in the official evaluation.

    Args:
      truth: [T, H, W] uint8, T >= 3, the object of each pixel; 0 = background, 255 = ignore.
      predicted: likewise, without 255.

    Returns:
      One entry for each object in `truth`, in order of their numbers, which need not be 1..n.

    Raises:
      ValueError: shapes do not fit, fewer than three frames, or no object.
    """
    if truth.shape != predicted.shape or truth.ndim != 3 or len(truth) < 3:
        raise ValueError(
            f"true {truth.shape} and predicted {predicted.shape} masks must both be [T, H, W] with"
            " at least 3 frames: the first is given and the last does not count"
        )
    numbers = objects(truth)
    if not len(numbers):
        raise ValueError("no object: all masks are background")
    truth, predicted = truth[1:-1], predicted[1:-1]
    predicted = np.where(truth == IGNORE, 0, predicted)
    result = []
    for number in numbers:
        pairs = [(t == number, p == number) for t, p in zip(truth, predicted)]
        j = np.array([region_similarity(t, p) for t, p in pairs])
        f = np.array([boundary_accuracy(t, p) for t, p in pairs])
        means = j.mean(), (j > _HIT).mean(), f.mean(), (f > _HIT).mean()
        result.append(Measured(*map(float, means)))
    return result
