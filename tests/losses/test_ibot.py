"""iBOT's objective: what masks may and may not change."""

import numpy as np

from ssl_jax import losses
from tests.losses import cases
from tests.losses.reference import close


def test_any_subset_that_holds_the_masked_patches_will_do():
    x = cases.make("ibot_patch")
    masks = x["masks"]
    terms, _ = cases.run("ibot_patch", x)
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
