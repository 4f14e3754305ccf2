"""SOP and SOVE: the whole objective against float64 references with the dense Y, and that the two
differ in their settings only.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import config as config_lib
from ssl_jax.config import InputError
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
    assert not any(np.any(value) for value in jax.tree.leaves(by_carry)), (
        "a gradient reaches the memories"
    )


def test_memories_take_the_second_view_and_one_patch_in_order_and_fixed_anchors_stay():
    config = case.config_of("sop", section__anchors="fixed")
    method, outputs = sop.make(config), case.outputs_of(config)
    carry = case.carry_of(method)
    (_, output), _ = case.evaluate(method, outputs, carry, jax.random.key(2))
    after = base.settle(output.carry, carry)
    for name, rows in (("cls", outputs.teacher[:, 1]), ("patch", outputs.memory_patch)):
        old, new = (x[name]["memory"]["rows"]["embedding"] for x in (carry, after))
        np.testing.assert_array_equal(new[: case.BATCH], rows)
        np.testing.assert_array_equal(new[case.BATCH :], old[case.BATCH :])
        assert int(after[name]["memory"]["cursor"]) == case.BATCH
        np.testing.assert_array_equal(after[name]["anchors"], carry[name]["anchors"])
        np.testing.assert_allclose(jnp.linalg.norm(carry[name]["anchors"], axis=-1), 1, rtol=1e-6)


def test_anchors_are_drawn_anew_with_every_key_unless_they_are_fixed():
    for anchors, changes in (("random", True), ("fixed", False)):
        config = case.config_of("sop", section__anchors=anchors)
        method, outputs = sop.make(config), case.outputs_of(config)
        carry, keys = case.carry_of(method), map(jax.random.key, range(3))
        losses = {float(case.objective(method, outputs, carry, key)[0]) for key in keys}
        assert (len(losses) == 3) == changes and (len(losses) == 1) != changes


def test_sove_is_sop_with_other_settings():
    changed = config_lib.changed(sop.defaults(), sove.defaults())
    section = config_lib.build(sove.defaults())
    assert changed == ["cls.anchors"] and section.cls.anchors == 8192
    assert (section.contributions, section.cls.members, section.patch.anchors) == (
        "similarity",
        9,
        512,
    )
    results = []
    for name, module in (("sop", sop), ("sove", sove)):
        config = case.config_of(name)
        method = module.make(config)
        outputs, carry = case.outputs_of(config), case.carry_of(method)
        results.append(case.objective(method, outputs, carry, jax.random.key(3)))
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["sop", "sove"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(section__contributions="onehott"),
            'NAME.contributions is "onehott"; it must be one of .*did you mean "onehot"',
        ),
        (dict(section__pool="all"), 'NAME.pool is "all"'),
        (dict(section__anchors="none"), 'NAME.anchors is "none"'),
        (dict(section__smoothing=1.0), "NAME.smoothing is 1.0; it must be above 0 and below 1"),
        (
            dict(section__cls__memory=6),
            (
                "NAME.cls.memory is 6, too small for 5 anchors with 2 further members each; it must"
                " be at least 7"
            ),
        ),
        (dict(section__patch__anchors=11), "NAME.patch.memory is 10, too small for 11 anchors"),
        (dict(section__patch__tasks=0), "NAME.patch.tasks is 0; it must be between 1 and 1000"),
        (dict(section__cls__anchors=1), "NAME.cls.anchors is 1; it must be between 2 and 16777216"),
        (
            dict(section__final_teacher_temperature=0.0),
            "NAME.final_teacher_temperature is 0.0; it must be above 0",
        ),
        (dict(section__global_token="patch"), 'NAME.global_token is "patch"'),
        (dict(model__cls=False), 'NAME.global_token is "cls" but model.cls is False'),
        (
            dict(views__mask="none"),
            (
                'views.mask is "none".* so no patch of a .* masked; mask some or set'
                " NAME.patch.weight=0"
            ),
        ),
        (dict(views__mask_prob=0.0), "mask_prob 0.0, so no patch"),
        (dict(views__mask_ratio=(0.0, 0.0)), r"mask_ratio \(0.0, 0.0\).* so no patch"),
        (dict(section__cls__weight=-1.0), "NAME.cls.weight is -1.0"),
        (dict(section__cls__weight=0.0, section__patch__weight=0.0), "are both 0"),
        (dict(views__global_count=1), "views.global_count is 1"),
    ],
)
def test_settings_that_cannot_work_are_named(name, changes, message):
    config = case.config_of(name, **changes)
    with pytest.raises(InputError, match=message.replace("NAME", name)):
        case.check(config)


def test_a_memory_just_large_enough_is_accepted():
    for changes in (
        dict(section__cls__memory=7),
        dict(section__cls__memory=5, section__cls__members=5, section__pool="self"),
        dict(section__cls__memory=5, section__cls__members=6, section__anchors="fixed"),
    ):
        config = case.config_of("sop", **changes)
        sop.check(config)
        method = sop.make(config)
        loss, _ = case.objective(
            method, case.outputs_of(config), case.carry_of(method), jax.random.key(2)
        )
        assert np.isfinite(loss)
