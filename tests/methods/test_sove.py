"""SOP and SOVE: the whole objective against float64 references with the dense Y, and that the two
differ in their settings only.
"""

import jax
import numpy as np
import pytest

from ssl_jax import config as config_lib
from ssl_jax.methods import base, sop, sove
from tests.losses import reference
from tests.methods import embeddings_case as case

CASES = {
    "sove": ("sove", {}),
    "similarity": ("sop", {}),
    "smoothed, anchors support each other": (
        "sop",
        dict(section__contributions="smoothed", section__pool="self"),
    ),
    "one-hot": ("sop", dict(section__contributions="onehot")),
    "anchors alone": (
        "sop",
        dict(section__cls__members=1, section__patch__members=1, section__patch__tasks=3),
    ),
    "fixed anchors": ("sop", dict(section__anchors="fixed")),
    "classes alone": ("sop", dict(section__patch__weight=0.0)),
    "patches alone": ("sop", dict(section__cls__weight=0.0, section__patch__weight=0.5)),
}


@pytest.mark.parametrize(("name", "changes"), CASES.values(), ids=CASES)
def test_loss_and_gradient_equal_the_dense_reference(name, changes):
    """With anchors drawn by the key, or those of the carry; then memories take the second view and
    one patch, in order."""
    config = case.config_of(name, **changes)
    sop.check(config)
    c, method = config[name], sop.make(config)
    carry, outputs, key = case.carry_of(method), case.outputs_of(config), jax.random.key(2)
    (loss, output), (by_output, by_carry) = case.evaluate(method, outputs, carry, key)

    keys, tau = dict(zip(("cls", "patch"), jax.random.split(key))), case.temperatures(c)
    views = case.views_first(outputs)
    want, gradient, each, marginal = reference.sop(
        views["student"], views["teacher"], *case.sops(c.cls, carry["cls"], keys["cls"], c), *tau
    )
    total = c.cls.weight * want
    gradients = {"student": c.cls.weight * gradient}
    if "patch" in carry:
        members = case.sops(c.patch, carry["patch"], keys["patch"], c)
        want_patch, gradient, _ = reference.sop_patch(
            views["student_patches"], views["teacher_patches"], *members, views["masks"], *tau
        )
        total += c.patch.weight * want_patch
        gradients["student_patches"] = c.patch.weight * gradient
        reference.close(output.metrics["patch_loss"], want_patch)
    reference.close(loss, total)
    for name, value in (("loss", want), ("teacher_entropy", each), ("marginal_entropy", marginal)):
        reference.close(output.metrics[f"cls_{name}"], value)
    assert output.metrics["teacher_temperature"] == pytest.approx(tau[1])
    for name, value in by_output._asdict().items():
        if name in gradients:
            reference.close(np.moveaxis(np.asarray(value), 1, 0), gradients[name])
        else:
            assert value is None or not np.any(value), f"a gradient reaches {name}"
    assert not any(np.any(value) for value in jax.tree.leaves(by_carry)), "it reaches the memories"
    after = base.settle(output.carry, carry)
    for name, rows in (("cls", outputs.teacher[:, 1]), ("patch", outputs.memory_patch)):
        if name in carry:
            old, new = (x[name]["memory"]["rows"]["embedding"] for x in (carry, after))
            np.testing.assert_array_equal(new[: case.BATCH], rows)
            np.testing.assert_array_equal(new[case.BATCH :], old[case.BATCH :])
            assert int(after[name]["memory"]["cursor"]) == case.BATCH
        if "anchors" in carry.get(name, ()):
            np.testing.assert_array_equal(after[name]["anchors"], carry[name]["anchors"])
            norms = np.linalg.norm(carry[name]["anchors"], axis=-1)
            np.testing.assert_allclose(norms, 1, rtol=1e-6)


def test_sove_is_sop_with_other_settings():
    assert config_lib.changed(sop.defaults(), sove.defaults()) == ["cls.anchors"]
