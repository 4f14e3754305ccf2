"""iBOT's objective: what masks may and may not change."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


@pytest.mark.parametrize("prototypes", ["float64", "float32"])
def test_the_fused_loss_in_float64(prototypes):
    x = cases.make("ibot_patch_fused")
    x["masks"][0, 0] = [True, True, True, False, False]  # a third has no exact float32
    want, slopes = cases.wanted("ibot_patch_fused", x)
    with jax.enable_x64(True):
        wide = {name: np.float64(v) if v.dtype == np.float32 else v for name, v in x.items()}
        wide["student_prototypes"] = wide["student_prototypes"].astype(prototypes)
        terms, gradients = cases.run("ibot_patch_fused", wide)
        np.testing.assert_allclose(terms["loss"], want["loss"], rtol=1e-13)
        np.testing.assert_allclose(gradients["student"], slopes["student"], atol=1e-13)


def test_the_size_of_the_fused_gradient_in_bfloat16():
    """Means over 6 images of views; a sixth, rounded to bfloat16, would be .2 % too large."""
    x = cases.make("ibot_patch_fused", patches=40)
    rounded = [name for name in x if name not in ("masks", "center")]
    low = x | {name: jnp.asarray(x[name], "bfloat16") for name in rounded}
    _, slopes = cases.wanted("ibot_patch_fused", low)
    got = np.float64(cases.run("ibot_patch_fused", low)[1]["student"])
    assert abs((got * slopes["student"]).sum() / (slopes["student"] ** 2).sum() - 1) < 1e-3


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
