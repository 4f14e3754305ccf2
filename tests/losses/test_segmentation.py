"""Losses of segmentation: places that are ignored, and the lowest value."""

import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.losses import segmentation
from tests.losses import cases
from tests.losses.reference import close


@pytest.mark.parametrize("name", ["pixel_cross_entropy", "dice"])
def test_ignored_places_and_empty_masks_have_no_gradient(name):
    x = cases.make(name)
    there = x["labels"] != 255
    slopes = np.asarray(cases.run(name, x)[1]["logits"])
    assert np.abs(slopes)[there].max() > 0 and not np.any(slopes[~there])
    terms, gradients = cases.run(name, cases.unlabelled(x))
    assert terms["loss"] == 0 and not np.any(gradients["logits"])


def test_dice_of_right_predictions_is_0():
    x = cases.make("dice")
    right = np.eye(4, dtype=np.float32)[np.where(x["labels"] == 255, 0, x["labels"])]
    close(cases.run("dice", x | {"logits": 50 * right})[0]["loss"], 0)


@pytest.mark.parametrize("label", [-1, 4])
def test_labels_that_are_no_class_are_refused(label):
    labels = jnp.array([0, label, 255])
    for loss in (segmentation.pixel_cross_entropy, segmentation.dice):
        with pytest.raises(ValueError, match="label"):
            loss(jnp.zeros((3, 4)), labels)
