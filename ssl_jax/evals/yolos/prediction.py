"""What a detector finds in images, and what is in them."""

import math
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from ssl_jax.data.decode import Unreadable
from ssl_jax.evals.yolos import views
from ssl_jax.evals.yolos.detector import Detector
from ssl_jax.features.ahead import ahead
from ssl_jax.losses import detection as losses
from ssl_jax.scores.detection import Boxes


def predict(
    detector: Detector, source: Any, indices: np.ndarray, config: ConfigDict, batch_size: int
) -> tuple[list[Boxes], list[Boxes], list[int]]:
    """(predicted, true, record) of each readable record: boxes in its pixels, one prediction a
    query, of the class with the highest score."""
    multiple = math.lcm(config.canvas, detector.patch)

    @jax.jit
    def apply(params, images):
        logits, boxes = detector.apply(params, images)
        scores = jax.nn.softmax(logits)[..., :-1]
        return losses.corners(boxes), scores.max(axis=-1), scores.argmax(axis=-1)

    def viewed(index):
        try:
            record = source[int(index)]
        except Unreadable:
            return None
        return record, views.plain(record, config.test_size, config.longest)

    predicted, true, kept = [], [], []
    batches = [indices[i : i + batch_size] for i in range(0, len(indices), batch_size)]
    for views_of, rows in zip(ahead(viewed, batches, 1), batches):
        read = [(i, *pair) for i, pair in zip(rows, views_of) if pair]
        if not read:
            continue
        made = [view for _, _, view in read]
        # one batch shape for each canvas
        filled = made + made[-1:] * (batch_size - len(made))
        images = views.batch(
            filled, most=config.queries, multiple=multiple, fill=detector.fill
        ).image
        found = map(np.asarray, apply(detector.params, images))
        for (index, record, view), corners, scores, labels in zip(read, *found):
            height, width = np.asarray(record["image"]).shape[:2]
            scale = np.array(images.shape[1:3]) * (height, width) / view.image.shape[:2]
            low = np.clip(corners[:, :2] * scale, 0, (height, width))
            high = np.clip(corners[:, 2:] * scale, 0, (height, width))
            inside = np.concatenate([low, high - low], axis=1)
            predicted.append(Boxes(inside, labels, scores))
            boxes = np.asarray(record["boxes"]).reshape(-1, 4)
            true.append(Boxes(boxes, np.asarray(record.get("box_labels", np.zeros(len(boxes))))))
            kept.append(int(index))
    return predicted, true, kept
