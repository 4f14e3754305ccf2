"""Boxes and DETR's loss against cases worked by hand and loops in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.losses import detection


def test_conversions_by_hand():
    np.testing.assert_allclose(
        detection.corners(jnp.array([0.5, 0.4, 0.2, 0.6])), [0.4, 0.1, 0.6, 0.7], atol=1e-6
    )
    np.testing.assert_allclose(
        detection.centers(jnp.array([[0.4, 0.1, 0.6, 0.7]])), [[0.5, 0.4, 0.2, 0.6]], atol=1e-6
    )


HAND = {
    # first, second, IoU, area around both, union
    "same": ((0, 0, 2, 2), (0, 0, 2, 2), 1.0, 4, 4),
    "corner": ((0, 0, 2, 2), (1, 1, 3, 3), 1 / 7, 9, 7),
    "inside": ((0, 0, 4, 2), (1, 0, 2, 1), 1 / 8, 8, 8),
    "apart": ((0, 0, 1, 1), (0, 2, 1, 3), 0.0, 3, 2),
    "touching": ((0, 0, 1, 1), (1, 0, 2, 1), 0.0, 2, 2),
    "no area in one": ((0, 0, 2, 2), (1, 1, 1, 2), 0.0, 4, 4),
}


@pytest.mark.parametrize("first, second, share, around, union", HAND.values(), ids=HAND)
def test_overlap_by_hand(first, second, share, around, union):
    first, second = jnp.array(first, jnp.float32), jnp.array(second, jnp.float32)
    np.testing.assert_allclose(detection.iou(first, second), share, atol=1e-6)
    generalized = share - (around - union) / around
    for pair in ((first, second), (second, first)):
        np.testing.assert_allclose(detection.generalized_iou(*pair), generalized, atol=1e-6)


def test_overlap_counts_pixels():
    rng = np.random.default_rng(0)
    low = rng.integers(0, 12, (2, 30, 2))
    boxes = np.concatenate([low, low + rng.integers(1, 9, (2, 30, 2))], axis=-1)

    def pixels(box):
        grid = np.zeros((21, 21), bool)
        grid[box[0] : box[2], box[1] : box[3]] = True
        return grid

    pairs = detection.iou(
        jnp.asarray(boxes[0], jnp.float32)[:, None], jnp.asarray(boxes[1], jnp.float32)
    )
    for i, first in enumerate(map(pixels, boxes[0])):
        for j, second in enumerate(map(pixels, boxes[1])):
            wanted = (first & second).sum() / (first | second).sum()
            np.testing.assert_allclose(pairs[i, j], wanted, rtol=1e-5)


def test_boxes_without_area_are_finite_and_so_are_their_gradients():
    point = jnp.array([0.5, 0.5, 0.5, 0.5])
    for function in (detection.iou, detection.generalized_iou):
        value, gradient = jax.value_and_grad(function)(point, point)
        assert np.isfinite(value) and np.isfinite(gradient).all()


# --- the loss


def batch(seed=0, b=2, q=6, t=4, c=4):
    """Predictions and objects; the second image has one object, the third none."""
    rng = np.random.default_rng(seed)
    size = rng.uniform(0.1, 0.4, (b, q + t, 2))
    boxes = np.concatenate([rng.uniform(0.2, 0.8, (b, q + t, 2)), size], axis=-1)
    present = np.arange(t) < np.array([3, 1, 0])[:b, None]
    return dict(
        logits=rng.normal(size=(b, q, c)).astype(np.float32),
        boxes=boxes[:, :q].astype(np.float32),
        labels=rng.integers(0, c - 1, (b, t)),
        targets=boxes[:, q:].astype(np.float32),
        present=present,
    )


def softmax(x):
    e = np.exp(np.asarray(x, np.float64) - np.max(x))
    return e / e.sum()


def overlap(a, b):
    """GIoU of two boxes by centre, float64."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    low = np.maximum(a[:2] - a[2:] / 2, b[:2] - b[2:] / 2)
    high = np.minimum(a[:2] + a[2:] / 2, b[:2] + b[2:] / 2)
    shared = np.prod(np.maximum(high - low, 0))
    union = a[2] * a[3] + b[2] * b[3] - shared
    around = np.prod(
        np.maximum(a[:2] + a[2:] / 2, b[:2] + b[2:] / 2)
        - np.minimum(a[:2] - a[2:] / 2, b[:2] - b[2:] / 2)
    )
    return shared / union - (around - union) / around


def test_matching_costs_are_the_formula():
    x = batch()
    costs = detection.matching_costs(**x, class_weight=1.5, l1_weight=4.0, giou_weight=3.0)
    for i in range(2):
        for q in range(6):
            for t in range(4):
                wanted = 0.0
                if x["present"][i, t]:
                    wanted = (
                        -1.5 * softmax(x["logits"][i, q])[x["labels"][i, t]]
                        + 4 * np.abs(x["boxes"][i, q] - x["targets"][i, t]).sum()
                        - 3 * overlap(x["boxes"][i, q], x["targets"][i, t])
                    )
                np.testing.assert_allclose(costs[i, q, t], wanted, rtol=1e-4, atol=1e-5)


def test_loss_is_the_formula():
    x = batch()
    matched = np.array([[4, 0, 2, 1], [5, 0, 1, 2]])
    out = detection.detr(**x, matched=matched)
    total = weight = l1 = giou = 0.0
    for i in range(2):
        answers = {matched[i, t]: t for t in range(4) if x["present"][i, t]}
        for q in range(6):
            wanted, w = (x["labels"][i, answers[q]], 1.0) if q in answers else (3, 0.1)
            total -= w * np.log(softmax(x["logits"][i, q])[wanted])
            weight += w
        for q, t in answers.items():
            l1 += np.abs(x["boxes"][i, q] - x["targets"][i, t]).sum()
            giou += 1 - overlap(x["boxes"][i, q], x["targets"][i, t])
    np.testing.assert_allclose(out["class_loss"], total / weight, rtol=1e-5)
    np.testing.assert_allclose(out["l1_loss"], l1 / 4, rtol=1e-5)
    np.testing.assert_allclose(out["giou_loss"], giou / 4, rtol=1e-5)
    np.testing.assert_allclose(out["loss"], total / weight + 5 * l1 / 4 + 2 * giou / 4, rtol=1e-5)


def test_right_predictions_cost_nothing():
    x = batch()
    matched = np.array([[4, 0, 2, 1], [5, 0, 1, 2]])
    logits = np.full((2, 6, 4), -30.0, np.float32)
    logits[:, :, 3] = 30
    boxes = x["boxes"].copy()
    for i, t in zip(*np.nonzero(x["present"])):
        logits[i, matched[i, t]] = -30
        logits[i, matched[i, t], x["labels"][i, t]] = 30
        boxes[i, matched[i, t]] = x["targets"][i, t]
    out = detection.detr(**{**x, "logits": logits, "boxes": boxes}, matched=matched)
    assert all(abs(float(value)) < 1e-5 for value in out.values())


def test_images_without_objects_teach_that_nothing_is_there():
    x = batch(b=3)
    empty = {name: value[2:] for name, value in x.items()}
    matched = np.zeros((1, 4), int)

    def loss(logits, boxes, targets):
        x = {**empty, "logits": logits, "boxes": boxes, "targets": targets}
        return detection.detr(**x, matched=matched)["loss"]

    gradients = jax.grad(loss, (0, 1, 2))(empty["logits"], empty["boxes"], empty["targets"])
    assert (gradients[0][..., 3] < 0).all() and (gradients[0][..., :3] > 0).all()
    assert (gradients[1] == 0).all() and (gradients[2] == 0).all()


def test_objects_that_are_not_present_change_nothing():
    x, matched = batch(), np.array([[4, 0, 2, 1], [5, 0, 1, 2]])
    other = {**x, "targets": np.where(x["present"][..., None], x["targets"], 0.9)}
    other["labels"] = np.where(x["present"], x["labels"], 0)
    one, two = detection.detr(**x, matched=matched), detection.detr(**other, matched=matched)
    assert {k: float(v) for k, v in one.items()} == {k: float(v) for k, v in two.items()}


def test_shapes_that_do_not_fit_are_named():
    x = batch()
    with pytest.raises(ValueError, match="targets"):
        detection.matching_costs(**{**x, "targets": x["targets"][:, :2]})
