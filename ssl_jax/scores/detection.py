"""Average precision of boxes as defined by COCO. Small, medium and large objects are told
apart by the area of their box; COCO's own files have that of the segment.
"""

import importlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ssl_jax import extras
from ssl_jax.config import InputError
from ssl_jax.scores import checked

# The summary of COCO's evaluator, in its order.
SCORES = ("ap", "ap50", "ap75", "ap_small", "ap_medium", "ap_large")
_MOST = 100  # predictions per image that count
NO_BOX = "average precision needs at least one true box that is not a crowd"


class Boxes(NamedTuple):
    """Objects in one image.

    boxes: [n, 4] (row and column of the upper left corner, height, width) in pixels.
    labels: [n] int in [0, classes).
    scores: [n], only of predictions. crowd: [n] bool, only of true boxes: whether the box is a
      region of many objects, where predictions count neither as right nor as wrong.
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
      predicted: one entry per image, whose 100 boxes with the highest scores count.
      true: one entry for each of the same images.

    Returns:
      {"ap": mean over the IoU thresholds .5, .55, ..., .95; "ap50", "ap75": at one threshold;
      "ap_small", "ap_medium", "ap_large": for true boxes of less than 32^2, up to 96^2 and more
      pixels}, without the sizes that no true box has.

    Raises:
      InputError: faster-coco-eval is not installed.
      ValueError: lengths do not fit, a number is not finite, a label is out of range, or all true
        boxes are crowds.
    """
    check_installed()
    from faster_coco_eval import COCO, COCOeval_faster

    if len(predicted) != len(true):
        raise ValueError(f"{len(predicted)} predicted images and {len(true)} true ones")
    annotations = _entries(true, classes, scored=False)
    if all(entry["iscrowd"] for entry in annotations):
        raise ValueError(NO_BOX)
    # Ids start at 1, because the evaluator reads 0 as no match.
    truth = COCO(
        {
            "images": [{"id": i + 1} for i in range(len(true))],
            "categories": [{"id": c + 1, "name": str(c)} for c in range(classes)],
            "annotations": annotations,
        }
    )
    detections = truth.loadRes(_entries(predicted, classes, scored=True))
    evaluator = COCOeval_faster(truth, detections, "bbox", print_function=lambda *_: None)
    evaluator.params.maxDets = [1, 10, _MOST]
    evaluator.evaluate()
    evaluator.accumulate()
    evaluator.summarize()
    return {
        name: 100 * float(value)
        for name, value in zip(SCORES, evaluator.stats)
        if value >= 0  # -1: no true box of this size
    }


def arrays(
    i: int, image: Boxes, *, scored: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Boxes [n, 4] float64, labels [n], scores [n] float64 and crowd marks [n] bool of image i.
    Raises ValueError."""
    if scored and image.scores is None:
        raise ValueError(f"predicted image {i} has no scores")
    boxes = np.asarray(image.boxes, np.float64).reshape(-1, 4)
    labels, scores, crowd = (
        np.zeros(len(boxes)) if x is None else np.asarray(x).reshape(-1)
        for x in (image.labels, image.scores, image.crowd)
    )
    if not len(boxes) == len(labels) == len(scores) == len(crowd):
        raise ValueError(
            f"image {i} has {len(boxes)} boxes, {len(labels)} labels, {len(scores)} scores and"
            f" {len(crowd)} crowd marks"
        )
    boxes, scores = (checked.finite(x, f"numbers of image {i}") for x in (boxes, scores))
    return boxes, labels, scores, crowd.astype(bool)


def _entries(images: Sequence[Boxes], classes: int, *, scored: bool) -> list[dict]:
    """Converts boxes to COCO's annotations or, if `scored`, results."""
    entries: list[dict] = []
    for i, image in enumerate(images):
        boxes, labels, scores, crowd = arrays(i, image, scored=scored)
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
