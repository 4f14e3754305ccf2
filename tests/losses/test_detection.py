"""Boxes against cases worked by hand, and what DETR's loss counts."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.losses import detection
from tests.losses import cases


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


def test_boxes_without_area_are_finite_and_so_are_their_gradients():
    point = jnp.array([0.5, 0.5, 0.5, 0.5])
    for function in (detection.iou, detection.generalized_iou):
        value, gradient = jax.value_and_grad(function)(point, point)
        assert np.isfinite(value) and np.isfinite(gradient).all()


def test_right_predictions_cost_nothing():
    x = cases.make("detr")
    matched = x["matched"]
    logits = np.full(x["logits"].shape, -30.0, np.float32)
    logits[:, :, 3] = 30
    boxes = x["boxes"].copy()
    for i, t in zip(*np.nonzero(x["present"])):
        logits[i, matched[i, t]] = -30
        logits[i, matched[i, t], x["labels"][i, t]] = 30
        boxes[i, matched[i, t]] = x["targets"][i, t]
    out, _ = cases.run("detr", x | {"logits": logits, "boxes": boxes})
    assert all(abs(float(value)) < 1e-5 for value in out.values())


def test_images_without_objects_teach_that_nothing_is_there():
    _, gradients = cases.run("detr", cases.nothing(cases.make("detr")))
    by_logits = gradients["logits"]
    assert (by_logits[..., 3] < 0).all() and (by_logits[..., :3] > 0).all()
    assert not np.any(gradients["boxes"])


def test_objects_that_are_not_present_change_nothing():
    x = cases.make("detr")
    other = {"targets": np.where(x["present"][..., None], x["targets"], np.float32(0.9))}
    other["labels"] = np.where(x["present"], x["labels"], 0)
    chex.assert_trees_all_equal(cases.run("detr", x | other), cases.run("detr", x))
