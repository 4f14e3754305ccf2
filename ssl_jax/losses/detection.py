"""Boxes, and DETR's loss on a set of them.

A box is (row, column, height, width): of its centre as a network predicts it, of its upper left
corner in data. `corners` makes (top, left, bottom, right) of the first.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Integer

from ssl_jax.ops.checked import NotNegative, checked
from ssl_jax.ops.numerics import wide

_LEAST_AREA = 1e-9  # keeps the share of two boxes without area, and its gradient, finite


@checked
def corners(boxes: Float[Array, "*b 4"]) -> Float[Array, "*b 4"]:
    """(centre row, centre column, height, width) to (top, left, bottom, right)."""
    return jnp.concatenate(
        [boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], axis=-1
    )


@checked
def centers(boxes: Float[Array, "*b 4"]) -> Float[Array, "*b 4"]:
    """(top, left, bottom, right) to (centre row, centre column, height, width)."""
    size = boxes[..., 2:] - boxes[..., :2]
    return jnp.concatenate([boxes[..., :2] + size / 2, size], axis=-1)


@checked
def iou(first: Float[Array, "*#b 4"], second: Float[Array, "*#b 4"]) -> Float[Array, "*b"]:
    """Intersection over union of boxes (top, left, bottom, right), in [0, 1]; 0 where neither has
    area. Leading axes broadcast: first [n, 1, 4] and second [m, 4] give all pairs."""
    shared, union = _shared_and_union(*jnp.broadcast_arrays(*wide(first, second)))
    return shared / jnp.maximum(union, _LEAST_AREA)


@checked
def generalized_iou(
    first: Float[Array, "*#b 4"], second: Float[Array, "*#b 4"]
) -> Float[Array, "*b"]:
    """IoU - (area of the smallest box around both - their union) / that area, in [-1, 1].

    Boxes and broadcasting as in `iou`. Source: Rezatofighi et al. 2019, algorithm 1.
    """
    first, second = jnp.broadcast_arrays(*wide(first, second))
    shared, union = _shared_and_union(first, second)
    around = _area(
        jnp.concatenate(
            [
                jnp.minimum(first[..., :2], second[..., :2]),
                jnp.maximum(first[..., 2:], second[..., 2:]),
            ],
            axis=-1,
        )
    )
    outside = (around - union) / jnp.maximum(around, _LEAST_AREA)
    return shared / jnp.maximum(union, _LEAST_AREA) - outside


def _shared_and_union(first, second):
    low = jnp.maximum(first[..., :2], second[..., :2])
    high = jnp.minimum(first[..., 2:], second[..., 2:])
    shared = jnp.prod(jnp.maximum(high - low, 0), axis=-1)
    return shared, _area(first) + _area(second) - shared


def _area(boxes):
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


@checked
def matching_costs(
    logits: Float[Array, "*b q c"],
    boxes: Float[Array, "*b q 4"],
    labels: Integer[Array, "*b t"],
    targets: Float[Array, "*b t 4"],
    present: Bool[Array, "*b t"],
    *,
    class_weight: NotNegative = 1.0,
    l1_weight: NotNegative = 5.0,
    giou_weight: NotNegative = 2.0,
) -> Float[Array, "*b q t"]:
    """What it costs to let query i answer for object j: -class_weight p_i(class j) + l1_weight
    |box_i - box_j|_1 - giou_weight GIoU(box_i, box_j).

    The cheapest assignment of objects to queries is DETR's matching. Objects that are not present
    cost 0 everywhere, so they take what the others leave. Source: Carion et al. 2020, eq. 1 and
    appendix A.2, probabilities instead of logarithms.

    Args:
      logits: of c - 1 classes, and "no object" last. boxes: predicted, targets: true; both (centre
        row, centre column, height, width) in [0, 1] of the image.
      labels: in [0, c - 1). present: which targets are there.
    """
    logits, boxes, targets = wide(logits, boxes, targets)
    probabilities = jax.nn.softmax(logits, axis=-1)
    index = jnp.broadcast_to(labels[..., None, :], (*logits.shape[:-1], labels.shape[-1]))
    of_class = jnp.take_along_axis(probabilities, index, axis=-1)
    pairs = boxes[..., :, None, :], targets[..., None, :, :]
    distance = jnp.abs(pairs[0] - pairs[1]).sum(axis=-1)
    overlap = generalized_iou(corners(pairs[0]), corners(pairs[1]))
    costs = l1_weight * distance - class_weight * of_class - giou_weight * overlap
    return jnp.where(present[..., None, :], costs, 0.0)


@checked
def detr(
    logits: Float[Array, "b q c"],
    boxes: Float[Array, "b q 4"],
    labels: Integer[Array, "b t"],
    targets: Float[Array, "b t 4"],
    present: Bool[Array, "b t"],
    matched: Integer[Array, "b t"],
    *,
    class_weight: NotNegative = 1.0,
    l1_weight: NotNegative = 5.0,
    giou_weight: NotNegative = 2.0,
    no_object_weight: NotNegative = 0.1,
) -> dict[str, Float[Array, ""]]:
    """DETR's loss of a batch, given which query answers for which object.

    class_loss: cross-entropy of all queries, weighted by no_object_weight where a query answers
    for nothing, over the sum of the weights. l1_loss and giou_loss (1 - GIoU): summed over the
    objects, over their number in the batch, at least 1. loss: their weighted sum.
    Source: Carion et al. 2020, eq. 2 and appendix A.2; YOLOS (Fang et al. 2021) uses the same.

    Args:
      matched: the query of each object, no query twice among those present. Others: see
        `matching_costs`.
    """
    queries, nothing = logits.shape[1], logits.shape[2] - 1
    logits, boxes, targets = wide(logits, boxes, targets)
    answers = jax.nn.one_hot(matched, queries, dtype=bool) & present[..., None]  # [b, t, q]
    busy = answers.any(axis=1)
    query_labels = jnp.where(busy, jnp.where(answers, labels[..., None], 0).sum(axis=1), nothing)
    log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), query_labels[..., None], axis=-1)[
        ..., 0
    ]
    weights = jnp.where(busy, 1.0, no_object_weight).astype(logits.dtype)
    matched_boxes = jnp.take_along_axis(boxes, matched[..., None], axis=1)
    count = jnp.maximum(present.sum(), 1).astype(boxes.dtype)
    distance = jnp.abs(matched_boxes - targets).sum(axis=-1)
    overlap = generalized_iou(corners(matched_boxes), corners(targets))
    terms = {
        "class_loss": -(weights * log_p).sum() / jnp.maximum(weights.sum(), _LEAST_AREA),
        "l1_loss": jnp.where(present, distance, 0).sum() / count,
        "giou_loss": jnp.where(present, 1 - overlap, 0).sum() / count,
    }
    loss = (
        class_weight * terms["class_loss"]
        + l1_weight * terms["l1_loss"]
        + giou_weight * terms["giou_loss"]
    )
    return {"loss": loss, **terms}
