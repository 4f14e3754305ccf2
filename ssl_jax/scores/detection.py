"""Average precision of boxes as COCO defines it."""

import importlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ssl_jax import extras
from ssl_jax.config import InputError

# The summary of COCO's evaluator, in its order.
SCORES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
_MOST = 100  # predictions that count in an image


class Boxes(NamedTuple):
    """Objects in one image.

    boxes: [n, 4] (row and column of the upper left corner, height, width) in pixels.
    labels: [n] int in [0, classes).
    scores: [n], of predictions. crowd: [n] bool, of true boxes: a region of many objects, in which
      predictions count as neither right nor wrong.
    """

    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray | None = None
    crowd: np.ndarray | None = None


def check_installed() -> None:
    """Raises InputError if faster-coco-eval is not installed."""
    try:
        importlib.import_module("faster_coco_eval")
    except ImportError as error:
        raise InputError(
            "average precision needs faster-coco-eval, which is not installed;"
            f" {extras.install('eval')}"
        ) from error


def average_precision(
    predicted: Sequence[Boxes], true: Sequence[Boxes], *, classes: int
) -> dict[str, float]:
    """COCO's average precision in percent, mean over classes that have a true box.

    Args:
      predicted: of each image; the 100 with the highest scores count. true: of the same images.

    Returns:
      {"ap": mean over the IoU thresholds .5, .55, ..., .95; "ap50", "ap75": at one threshold;
      "ap_small", "ap_medium", "ap_large": of true boxes with less than 32^2, up to 96^2 and more
      pixels}; sizes that no true box has are left out.

    Raises:
      InputError: faster-coco-eval is not installed.
      ValueError: arrays that do not fit, labels out of range, no true box at all.
    """
    check_installed()
    from faster_coco_eval import COCO, COCOeval_faster

    if len(predicted) != len(true):
        raise ValueError(f"{len(predicted)} predicted images and {len(true)} true ones")
    annotations = _entries(true, classes, scored=False)
    if not annotations:
        raise ValueError("average precision needs at least one true box")
    # Numbers from 1: to the evaluator, 0 is no match.
    truth = COCO(
        {
            "images": [{"id": i + 1} for i in range(len(true))],
            "categories": [{"id": c + 1, "name": str(c)} for c in range(classes)],
            "annotations": annotations,
        }
    )
    found = truth.loadRes(_entries(predicted, classes, scored=True))
    evaluator = COCOeval_faster(truth, found, "bbox", print_function=_silent)
    evaluator.params.maxDets = [1, 10, _MOST]
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    return {
        name: 100 * float(value)
        for name, value in zip(SCORES, evaluator.stats)
        if value >= 0  # -1: no true box of this size
    }


def _silent(*_):
    """Instead of the evaluator's prints."""


def _entries(images: Sequence[Boxes], classes: int, *, scored: bool) -> list[dict]:
    """COCO's annotations or results."""
    entries: list[dict] = []
    for i, image in enumerate(images):
        boxes = np.asarray(image.boxes, np.float64).reshape(-1, 4)
        labels = np.asarray(image.labels).reshape(-1)
        scores = np.zeros(len(boxes)) if image.scores is None else np.asarray(image.scores)
        crowd = np.zeros(len(boxes)) if image.crowd is None else np.asarray(image.crowd)
        if scored and image.scores is None:
            raise ValueError(f"predicted image {i} has no scores")
        if not len(boxes) == len(labels) == len(scores) == len(crowd):
            raise ValueError(
                f"image {i} has {len(boxes)} boxes, {len(labels)} labels, {len(scores)} scores and"
                f" {len(crowd)} crowd marks"
            )
        if len(labels) and not 0 <= labels.min() <= labels.max() < classes:
            raise ValueError(f"image {i} has labels outside of [0, {classes})")
        for (y, x, height, width), label, score, many in zip(boxes, labels, scores, crowd):
            entry = {
                "id": len(entries) + 1,
                "image_id": i + 1,
                "category_id": int(label) + 1,
                "bbox": [float(x), float(y), float(width), float(height)],
                "area": float(height * width),
            }
            entries.append(entry | ({"score": float(score)} if scored else {"iscrowd": int(many)}))
    return entries
