"""Average precision of boxes without classes, as defined by UAVDT."""

from collections.abc import Sequence

import numpy as np

from ssl_jax.scores import detection


def agnostic_precision(
    predicted: Sequence[detection.Boxes], true: Sequence[detection.Boxes], threshold: float = 0.7
) -> float:
    """VOC's average precision in percent, without classes and outside of ignored areas.

    Predictions with at least half of their area in `crowd` boxes are left out. The others are
    matched in order of falling score, each to the true box of the largest IoU. A prediction is
    wrong if this IoU is below `threshold` or the box is already matched. The precision at a recall
    is the highest at that recall or above.

    This is UAVDT's metric with a threshold of 0.7 (Du et al. 2018), used in FLSL's table 3 (section
    5.2).

    Args:
      predicted, true: one entry per image; labels are not used. threshold: of the IoU, in (0, 1].

    Raises:
      ValueError: lengths do not fit, a number is not finite, or there is no true box outside of
        ignored areas.
    """
    if len(predicted) != len(true):
        raise ValueError(f"{len(predicted)} predicted images and {len(true)} true ones")
    hits: list[bool] = []
    scores: list[float] = []
    count = 0
    for i, (guess, truth) in enumerate(zip(predicted, true)):
        everything, _, _, ignored = detection.arrays(i, truth, scored=False)
        boxes, _, confidence, _ = detection.arrays(i, guess, scored=True)
        objects, taken = everything[~ignored], np.zeros(len(everything), bool)
        outside = _covered(boxes, everything[ignored]) < 0.5
        for row in np.argsort(-confidence, kind="stable"):
            if outside[row]:
                overlap = _iou(boxes[row], objects)
                best = int(overlap.argmax()) if len(objects) else 0
                hit = bool(len(objects) and overlap[best] >= threshold and not taken[best])
                taken[best : best + 1] |= hit
                hits.append(hit)
                scores.append(confidence[row])
        count += len(objects)
    if not count:
        raise ValueError(detection.NO_BOX)
    right = np.asarray(hits, np.float64)[np.argsort(-np.asarray(scores), kind="stable")]
    precision = np.cumsum(right) / np.arange(1, len(right) + 1)
    highest = np.maximum.accumulate(precision[::-1])[::-1]
    return 100 * float((highest * right).sum()) / count


def _iou(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """IoU [n] of a box [4] with others [n, 4], all (y, x, height, width)."""
    first = np.maximum(box[:2], others[:, :2])
    last = np.minimum(box[:2] + box[2:], others[:, :2] + others[:, 2:])
    common = np.maximum(last - first, 0).prod(axis=1)
    return common / (box[2:].prod() + others[:, 2:].prod(axis=1) - common)


def _covered(boxes: np.ndarray, areas: np.ndarray) -> np.ndarray:
    """Share [n] of the pixels of each box [n, 4] that lie in one of the areas [m, 4]."""
    rows = [np.rint(x).astype(int) for x in (boxes, areas)]
    height, width = np.max([(x[:, :2] + x[:, 2:]).max(axis=0, initial=1) for x in rows], axis=0)
    mask = np.zeros((height, width), bool)
    for y, x, h, w in rows[1]:
        mask[max(y, 0) : y + h, max(x, 0) : x + w] = True
    inside = [
        mask[max(y, 0) : y + h, max(x, 0) : x + w].sum() / max(h * w, 1) for y, x, h, w in rows[0]
    ]
    return np.asarray(inside, np.float64)
