"""What a detector finds in images, and what is in them."""

import math

import jax
import numpy as np

from ssl_jax.data.decode import Unreadable
from ssl_jax.evals.case import Records
from ssl_jax.evals.yolos import views
from ssl_jax.evals.yolos.detector import Detector
from ssl_jax.evals.yolos.settings import Settings
from ssl_jax.features.ahead import ahead
from ssl_jax.losses import detection as losses
from ssl_jax.scores.detection import Boxes


def predict(
    detector: Detector, records: Records, settings: Settings
) -> tuple[list[Boxes], list[Boxes], list[int]]:
    """(predicted, true, record) of each readable record: boxes in its pixels, one prediction a
    query, of the class with the highest score."""
    multiple = math.lcm(settings.canvas, detector.patch)

    @jax.jit
    def apply(params, images):
        logits, boxes = detector.apply(params, images)
        scores = jax.nn.softmax(logits)[..., :-1]
        return losses.corners(boxes), scores.max(axis=-1), scores.argmax(axis=-1)

    def viewed(index):
        try:
            record = records.source[int(index)]
        except Unreadable:
            return None
        return record, views.plain(record, settings.test_size, settings.longest)

    predicted, true, numbers = [], [], []
    size, indices = settings.batch, records.indices
    batches = [indices[i : i + size] for i in range(0, len(indices), size)]
    for views_of, rows in zip(ahead(viewed, batches, 1), batches):
        read = [(i, *pair) for i, pair in zip(rows, views_of) if pair]
        if not read:
            continue
        shown = [view for _, _, view in read]
        shown += shown[-1:] * (size - len(shown))  # one batch shape for each canvas
        images = views.batch(
            shown, most=settings.queries, multiple=multiple, fill=detector.fill
        ).image
        outputs = map(np.asarray, apply(detector.params, images))
        for (index, record, view), corners, scores, labels in zip(read, *outputs):
            height, width = np.asarray(record["image"]).shape[:2]
            scale = np.array(images.shape[1:3]) * (height, width) / view.image.shape[:2]
            low = np.clip(corners[:, :2] * scale, 0, (height, width))
            high = np.clip(corners[:, 2:] * scale, 0, (height, width))
            inside = np.concatenate([low, high - low], axis=1)
            predicted.append(Boxes(inside, labels, scores))
            boxes = np.asarray(record["boxes"]).reshape(-1, 4)
            true.append(Boxes(boxes, np.asarray(record.get("box_labels", np.zeros(len(boxes))))))
            numbers.append(int(index))
    return predicted, true, numbers
