"""iBOT's objective: what masks may and may not change."""

import numpy as np

from ssl_jax import losses
from tests.losses import cases
from tests.losses.reference import close


def test_without_patches_the_numbers_are_dinos():
    x = cases.make("ibot")
    settings = {"teacher_temperatures": (0.04, 0.04), "weights": (1.0, 0.0)}
    terms, _ = cases.run("ibot", x, **settings)
    arrays = {f"{who}_logits": x[f"{who}_cls"] for who in ("student", "teacher")}
    dino, _ = cases.run("dino", arrays | {"center": x["cls_center"]}, teacher_temperature=0.04)
    assert terms["loss"] == dino["loss"]
    assert dino == {name: terms[f"cls_{name}"] for name in dino}


def test_only_masked_patches_matter_and_any_subset_that_holds_them_will_do():
    x = cases.make("ibot_patch")
    masks = x["masks"]
    terms, gradients = cases.run("ibot_patch", x)
    gradient = np.asarray(gradients["student_logits"])
    assert not np.any(gradient[~masks]) and np.all(np.any(gradient[masks], axis=-1))
    broken = np.where(masks[..., None], x["student_logits"], np.nan)
    same, again = cases.run("ibot_patch", x | {"student_logits": broken})
    assert same["loss"] == terms["loss"]
    np.testing.assert_array_equal(again["student_logits"], gradient)
    first = np.argsort(~masks, axis=-1, kind="stable")[..., : masks.sum(axis=-1).max()]

    def pick(x):
        return np.take_along_axis(x, first.reshape(*first.shape, *[1] * (x.ndim - 3)), axis=2)

    fewer = {name: value if name == "center" else pick(value) for name, value in x.items()}
    close(cases.run("ibot_patch", fewer)[0]["loss"], terms["loss"])


def test_views_and_images_are_averaged_not_pooled():
    """Each image weighs the same, however many of its patches are masked (eq. 2 in the published
    code).
    """
    x = cases.make("ibot_patch", views=1, batch=2)
    x["masks"][0] = [[True, False, False, False, False], [True, True, True, True, False]]

    def loss(images):
        part = {name: v if name == "center" else v[:, images] for name, v in x.items()}
        temperatures = {"student_temperature": 0.1, "teacher_temperature": 0.07}
        return losses.ibot_patch(**part, **temperatures)["loss"]

    close(loss(slice(None)), np.mean([loss(slice(b, b + 1)) for b in range(2)]))
