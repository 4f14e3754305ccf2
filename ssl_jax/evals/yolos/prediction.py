"""Predicts the boxes of images with a detector."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ssl_jax.evals.case import Records
from ssl_jax.evals.yolos.detector import Detector
from ssl_jax.evals.yolos.settings import Settings
from ssl_jax.features.feed import feed
from ssl_jax.losses import detection as losses
from ssl_jax.scores.detection import Boxes
from ssl_jax.views import boxed


def predict(
    detector: Detector, records: Records, settings: Settings
) -> tuple[list[Boxes], list[Boxes], list[int]]:
    """(predicted boxes, true boxes, record numbers) of the readable records, with boxes in pixels
    of the stored image. Each query predicts one box of its most likely class."""
    multiple = math.lcm(settings.canvas, detector.patch)

    @jax.jit
    def apply(params, images):
        logits, boxes = detector.apply(params, images)
        scores = jax.nn.softmax(logits)[..., :-1]
        return losses.corners(boxes), scores.max(axis=-1), scores.argmax(axis=-1)

    def cut(row, record):
        view = boxed.plain(record, settings.test_size, settings.longest)
        yield int(records.indices[row]), record, view

    predicted, true, numbers = [], [], []
    size = settings.batch
    for batch in feed(records.source, records.indices, cut, size):
        if not batch.views:
            continue
        padded = [view for _, _, view in batch.views]
        padded += padded[-1:] * (size - len(padded))  # so that batches have one size
        images = boxed.batch(
            padded, most=settings.queries, multiple=multiple, fill=detector.fill
        ).image
        outputs = map(np.asarray, apply(detector.params, images))
        for (index, record, view), corners, scores, labels in zip(batch.views, *outputs):
            height, width = np.asarray(record["image"]).shape[:2]
            scale = np.array(images.shape[1:3]) * (height, width) / view.image.shape[:2]
            low = np.clip(corners[:, :2] * scale, 0, (height, width))
            high = np.clip(corners[:, 2:] * scale, 0, (height, width))
            inside = np.concatenate([low, high - low], axis=1)
            predicted.append(Boxes(inside, labels, scores))
            true.append(_true(record))
            numbers.append(index)
    return predicted, true, numbers


def _true(record: Mapping[str, Any]) -> Boxes:
    """The visible boxes of a record, with its crowds marked as such."""
    boxes, crowds = (
        np.asarray(record.get(name, ())).reshape(-1, 4) for name in ("boxes", "crowd_boxes")
    )
    labels = record.get("box_labels", np.zeros(len(boxes)))
    many = record.get("crowd_labels", np.zeros(len(crowds)))
    crowd = np.repeat([False, True], [len(boxes), len(crowds)])
    places, numbers = np.concatenate([boxes, crowds]), np.concatenate([labels, many])
    seen = boxed.visible(places)  # a resized image shows its central square
    return Boxes(places[seen], numbers[seen], crowd=crowd[seen])
