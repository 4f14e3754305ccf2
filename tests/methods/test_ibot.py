"""iBOT: DINO when patches are off, what the patch part reads, and what student and teacher own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import config as config_lib
from ssl_jax import losses, methods
from ssl_jax.config import InputError
from ssl_jax.evals import pictures
from ssl_jax.methods import base, ibot, multicrop
from ssl_jax.methods.encoder import Encoder
from ssl_jax.models import heads, vit, zoo
from ssl_jax.train import optim
from ssl_jax.views import recipe
from tests import tiny

SETTINGS = dict(
    views__mask_ratio=(0.2, 0.5),
    views__mask_prob=0.7,
    model__depth=1,
    model__drop_path=0.2,
    model__init_std=0.25,
    optim__batch_size=4,
    optim__epochs=10.0,
)


def unresolved(name="ibot", **changes):
    """One block, on views of 16 patches and local ones of 4; temperatures warm up as published."""
    section = {f"{name}__head_bottleneck": 8, f"{name}__teacher_temperature_epochs": 30.0}
    return tiny.config(name, **SETTINGS | section | changes)


def resolved(*arguments, **changes):
    return tiny.resolved(unresolved(*arguments, **changes), num_records=40)


@functools.cache
def bound(**changes):
    """The method of a resolved config."""
    return methods.make(resolved(**changes))


def batch_of(method):
    """Prepared views of random images."""
    return recipe.prepare(method.views, tiny.random_batch(method.views), 0)


def progress(epoch=0):
    return base.Progress(jnp.int32(10 * epoch), jnp.int32(epoch), jnp.float32(epoch), 10, 100)


def gradient(method):
    """((loss, Output), gradient, params) at initialisation; the teacher has parameters of
    its own.
    """
    init = jax.jit(lambda seed: method.init(jax.random.key(seed)))
    (params, carry), teacher = init(0), method.teacher_of(init(1)[0])
    keys, batch = jax.random.split(jax.random.key(2), 4), batch_of(method)

    def loss(params):
        outputs = method.encode(params, teacher, None, batch, keys, progress())
        return method.objective(params, teacher, outputs, carry, jax.random.key(3), progress())

    return *jax.jit(jax.value_and_grad(loss, has_aux=True))(params), params


@functools.cache
def default_run():
    return gradient(bound())


def identical(a, b):
    return jax.tree.structure(a) == jax.tree.structure(b) and tiny.identical(a, b)


def test_without_patches_it_is_dino_to_the_bit():
    ours = bound(ibot__patch__weight=0.0)  # masks are drawn and not used
    theirs = methods.make(resolved("dino", dino__norm_last_layer=False))
    (loss, output), grads, params = gradient(ours)
    (dino_loss, dino_output), dino_grads, dino_params = gradient(theirs)
    assert identical(params, dino_params) and identical(grads, dino_grads)
    assert (
        loss == dino_loss
        and identical(output.carry, dino_output.carry)
        and identical(output.metrics, dino_output.metrics)
    )
    rules = [
        optim.assign_rules(method.rules, tree)
        for method, tree in ((ours, params), (theirs, dino_params))
    ]
    assert rules[0] == rules[1]


def test_the_loss_is_that_of_all_patches():
    """Projecting masked patches only, and the centers' mean beside them, changes nothing."""
    config = resolved(model__drop_path=0.0)
    method = methods.make(config)
    init = jax.jit(lambda seed: method.init(jax.random.key(seed)))
    (params, carry), teacher = init(0), method.teacher_of(init(1)[0])
    batch, keys = batch_of(method), jax.random.split(jax.random.key(2), 4)
    assert batch["global"].masks.any() and not batch["global"].masks.any(axis=-1).all()

    @jax.jit
    def ours():
        outputs = method.encode(params, teacher, None, batch, keys, progress(2))
        return method.objective(params, teacher, outputs, carry, None, progress(2))

    @jax.jit
    def direct():
        student = vit.vit(zoo.vit_config(config.model, mask_token=True))
        clean = vit.vit(zoo.vit_config(config.model))
        head = heads.dino_head(16, 24, hidden=32, bottleneck=8, init_std=config.model.init_std)
        seen = multicrop.encode(student, params["backbone"], batch["global"], masked=True)
        local = multicrop.encode(student, params["backbone"], batch["local"])
        whole = multicrop.encode(clean, teacher["backbone"], batch["global"])

        def first(weights, x):
            return jnp.moveaxis(head.apply(weights["head"], x), 1, 0)

        # Epoch 2 of a linear warm-up whose last is epoch 29.
        tau = config.ibot.cls.teacher_temperature + 2 / 29 * 0.03
        cls, patches = first(teacher, whole.cls), first(teacher, whole.patches)
        terms = losses.ibot(
            jnp.concatenate([first(params, seen.cls), first(params, local.cls)]),
            cls,
            first(params, seen.patches),
            patches,
            jnp.moveaxis(batch["global"].masks, 1, 0),
            (carry["center"], carry["patch_center"]),
            student_temperature=0.1,
            teacher_temperatures=(tau, tau),
        )
        centers = {"center": 0.1 * cls.mean((0, 1)), "patch_center": 0.1 * patches.mean((0, 1, 2))}
        return terms | centers  # the old ones are 0

    (loss, output), want = ours(), direct()
    np.testing.assert_allclose(loss, want["loss"], rtol=1e-5)
    np.testing.assert_allclose(output.metrics["patch_loss"], want["patch_loss"], rtol=1e-5)
    for name in ("center", "patch_center"):
        np.testing.assert_allclose(output.carry[name], want[name], atol=1e-6)
    assert np.any(output.carry["center"]) and np.any(output.carry["patch_center"])


def test_student_alone_owns_the_mask_vector_and_learns_it():
    (_, _), grads, params = default_run()
    assert "mask_token" in params["backbone"] and np.any(grads["backbone"]["mask_token"])
    method = bound()
    assert "mask_token" not in method.teacher_of(params)["backbone"]
    images = jnp.linspace(0, 1, 2 * 16 * 16 * 3).reshape(2, 16, 16, 3)
    features = jax.jit(lambda p: method.features(p, images))
    student, teacher = features(params), features(method.teacher_of(params))
    assert identical(student, teacher) and student.patches.shape == (2, 4, 4, 16)
    mean = jax.jit(lambda p: bound(ibot__global_token="mean").features(p, images).image)(params)
    np.testing.assert_allclose(mean, student.patches.mean(axis=(1, 2)), atol=1e-6)


@pytest.mark.parametrize(
    ("shared", "own"), [("all", None), ("mlp", {"last"}), ("none", {"mlp", "last"})]
)
def test_what_the_heads_share(shared, own):
    method = bound(
        ibot__shared_head=shared,
        ibot__patch__prototypes=24 if shared == "all" else 40,
        ibot__cls__weight=0.0,
    )
    (loss, output), grads, params = gradient(method)
    assert ("patch_head" in params) == (own is not None) and (
        own is None or set(params["patch_head"]) == own
    )
    assert output.carry["patch_center"].shape == (24 if shared == "all" else 40,) and np.isfinite(
        loss
    )
    # With the class token's loss off, only what patches use is trained.
    moved = {
        part
        for part, tree in grads["head"].items()
        if any(np.any(g) for g in jax.tree.leaves(tree))
    }
    assert moved == {"all": {"mlp", "last"}, "mlp": {"mlp"}, "none": set()}[shared]
    assert own is None or all(np.any(g) for g in jax.tree.leaves(grads["patch_head"]))
    assigned = optim.assign_rules(method.rules, params)
    frozen = {path for path, rule in assigned.items() if rule.freeze_epochs == 1}
    heads_ = ("head", "patch_head") if own else ("head",)
    assert frozen == {f"{head}/last/{leaf}" for head in heads_ for leaf in ("direction", "gain")}
    fixed = optim.assign_rules(bound(ibot__norm_last_layer=True).rules, params)
    assert {path for path, rule in fixed.items() if rule.freeze_epochs == base.NEVER} == {
        f"{head}/last/gain" for head in heads_
    }


def constant_outputs():
    """Scores that are all 1, and a center."""
    scores, patches = jnp.ones((4, 4, 24)), jnp.ones((4, 2, 8, 24))
    mask = jnp.ones((4, 2, 8), bool)
    return ibot.Outputs(scores, scores[:, :2], patches, patches, mask, jnp.ones((4, 24)))


def test_temperatures_warm_up_per_epoch_and_apart():
    method = bound(
        ibot__teacher_temperature_epochs=5.0, ibot__patch__final_teacher_temperature=0.05
    )
    centers = {name: jnp.zeros(24) for name in ("center", "patch_center")}

    @jax.jit
    def metrics(now):
        return method.objective(None, None, constant_outputs(), centers, None, now)[1].metrics

    def at(epoch, name):
        return float(metrics(progress(epoch))[name])

    np.testing.assert_allclose(
        [at(e, "teacher_temperature") for e in (0, 2, 4, 9)], [0.04, 0.055, 0.07, 0.07], rtol=1e-6
    )
    np.testing.assert_allclose(
        [at(e, "patch_teacher_temperature") for e in (0, 2, 4, 9)],
        [0.04, 0.045, 0.05, 0.05],
        rtol=1e-6,
    )


def test_without_centering_the_centers_stay():
    moved = default_run()[0][1].carry
    assert all(np.any(center) for center in moved.values())
    method, carry = bound(ibot__centering=False), jax.tree.map(jnp.zeros_like, moved)
    _, output = method.objective(None, None, constant_outputs(), carry, None, progress())
    assert identical(output.carry, carry)


def test_metrics_and_health():
    (loss, output), _, _ = default_run()
    metrics = output.metrics
    np.testing.assert_allclose(loss, metrics["cls_loss"] + metrics["patch_loss"], rtol=1e-6)
    assert 0 < metrics["patch_masked"] < 1 and {
        "cls_local_loss",
        "teacher_temperature",
        "patch_teacher_temperature",
    } <= set(metrics)
    method, top = bound(), np.log(24)
    fine = {
        f"{part}_{name}_entropy": share * top
        for part in ("cls", "patch")
        for name, share in (("teacher", 0.5), ("marginal", 0.9))
    }
    assert method.health(fine) == []
    collapsed = method.health(fine | {"patch_marginal_entropy": 0.01})
    assert len(collapsed) == 1 and "collapse of patch targets" in collapsed[0]
    without = bound(ibot__patch__weight=0.0)
    assert without.health(fine | {"patch_marginal_entropy": 0.01}) == []


def test_pictures_colour_patches_by_prototype():
    params = default_run()[2]
    image = np.random.default_rng(0).random((16, 16, 3), np.float32)
    images = np.stack([image, image, image[::-1]])
    drawn = pictures.draw(Encoder(resolved(), params), images)["patch_prototypes"]
    first, second, third = (row[1].labels for row in drawn.rows)
    assert (
        first.shape == (4, 4)
        and np.array_equal(first, second)
        and np.array_equal(drawn.rows[0][0].image, image)
    )
    used = np.unique(np.stack([first, second, third]))
    assert np.array_equal(used, np.arange(len(used))) and f"{len(used)} of 24 in use" in drawn.title
    without = Encoder(resolved(ibot__patch__weight=0.0), params)
    assert pictures.draw(without, image[None]) == {}


def test_the_published_defaults():
    c = config_lib.build(ibot.defaults())
    assert (c.cls.prototypes, c.patch.prototypes, c.shared_head, c.cls.weight, c.patch.weight) == (
        8192,
        0,
        "all",
        1.0,
        1.0,
    )
    for part in (c.cls, c.patch):
        assert (part.teacher_temperature, part.final_teacher_temperature, part.center_momentum) == (
            0.04,
            0.07,
            0.9,
        )
    assert (c.student_temperature, c.teacher_temperature_epochs, c.freeze_last_layer_epochs) == (
        0.1,
        30.0,
        1,
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            dict(ibot__shared_head="some"),
            'ibot.shared_head is "some"; it must be one of all, mlp, none',
        ),
        (dict(ibot__global_token="clss"), 'ibot.global_token is "clss"'),
        (dict(ibot__student_temperature=0.0), "ibot.student_temperature is 0.0"),
        (dict(ibot__patch__teacher_temperature=-1.0), "ibot.patch.teacher_temperature is -1.0"),
        (
            dict(ibot__cls__center_momentum=1.0),
            "ibot.cls.center_momentum is 1.0; it must be at least 0 and below 1",
        ),
        (dict(ibot__cls__weight=-1.0), "ibot.cls.weight is -1.0"),
        (dict(ibot__cls__weight=0.0, ibot__patch__weight=0.0), "are both 0"),
        (dict(ibot__cls__prototypes=1), "ibot.cls.prototypes is 1"),
        (dict(ibot__patch__prototypes=1), "ibot.patch.prototypes is 1"),
        (
            dict(ibot__patch__prototypes=12),
            (
                "ibot.patch.prototypes is 12 but ibot.cls.prototypes is 24, and ibot.shared_head is"
                ' "all"'
            ),
        ),
        (dict(model__cls=False), 'ibot.global_token is "cls" but model.cls is False'),
        (dict(views__mask="none"), 'views.mask is "none".*no patch of a 16 px view is masked'),
        (dict(views__mask_prob=0.0), "mask_prob 0.0, so no patch"),
        (dict(views__mask_ratio=(0.01, 0.05)), r"mask_ratio \(0.01, 0.05\).*no patch"),
    ],
)
def test_impossible_settings_are_refused_by_name(changes, message):
    with pytest.raises(InputError, match=message):
        tiny.check(unresolved(**changes))


def test_possible_settings_pass():
    tiny.check(unresolved())
    tiny.check(unresolved(views__mask="none", ibot__patch__weight=0.0))
    tiny.check(
        unresolved(ibot__shared_head="mlp", ibot__patch__prototypes=12, views__local_count=0)
    )


def test_the_last_layers_wait_an_epoch_and_all_else_moves():
    (_, _), grads, params = default_run()
    optimizer = optim.make(resolved().optim, bound().rules, params)
    state = optimizer.init(params)
    for epoch in (0, 1):
        new, _, _ = optimizer.update(
            grads, state, params, lr=0.1, weight_decay=0.0, epoch=jnp.int32(epoch)
        )
        moved = not np.array_equal(
            new["head"]["last"]["direction"], params["head"]["last"]["direction"]
        )
        assert moved == (epoch == 1)
        assert not np.array_equal(
            new["head"]["mlp"]["0"]["kernel"], params["head"]["mlp"]["0"]["kernel"]
        )
