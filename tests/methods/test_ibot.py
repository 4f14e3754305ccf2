"""iBOT: DINO when patches are off, what the patch part reads, and what student and teacher own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import losses, methods
from ssl_jax.evals import pictures
from ssl_jax.methods import base, ibot, multicrop
from ssl_jax.methods.encoder import Encoder
from ssl_jax.models import heads, vit, zoo
from ssl_jax.train import optim
from ssl_jax.views import recipe
from tests import tiny

pytestmark = pytest.mark.slow

SETTINGS = tiny.values("""
    views.mask_ratio=(0.2,0.5) views.mask_prob=0.7 model.depth=1 model.drop_path=0.2
    model.init_std=0.25 optim.batch_size=4 optim.epochs=10.0
""")


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
    ours = bound(ibot__patch__weight=0.0)
    assert ours.views["global"].mask is None and bound().views["global"].mask is not None
    theirs = methods.make(resolved("dino", dino__norm_last_layer=False))
    (loss, output), grads, params = gradient(ours)
    (dino_loss, dino_output), dino_grads, dino_params = gradient(theirs)
    assert identical(params, dino_params) and identical(grads, dino_grads)
    assert loss == dino_loss and identical(output.carry, dino_output.carry)
    assert identical(output.metrics, dino_output.metrics)
    rules = optim.assign_rules(ours.rules, params)
    assert rules == optim.assign_rules(theirs.rules, dino_params)


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
            teacher_temperature=tau,
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
    ("shared", "own", "moved"),
    [("all", None, {"mlp", "last"}), ("mlp", {"last"}, {"mlp"}), ("none", {"mlp", "last"}, set())],
)
def test_what_the_heads_share(shared, own, moved):
    """With the class token's loss off, only what patches use is trained."""
    count = 24 if shared == "all" else 40
    changes = dict(ibot__shared_head=shared, ibot__patch__prototypes=count)
    method = bound(**changes, ibot__cls__weight=0.0)
    (_, output), grads, params = gradient(method)
    assert set(params.get("patch_head", {})) == (own or set())
    assert output.carry["patch_center"].shape == (count,)
    assert {part for part, tree in grads["head"].items() if trained(tree)} == moved
    assert all(np.any(g) for g in jax.tree.leaves(grads.get("patch_head", {})))
    names = ("head", "patch_head") if own else ("head",)
    fixed = bound(ibot__norm_last_layer=True).rules
    frozen, never = (
        frozen_until(n, r, params) for n, r in ((1, method.rules), (base.NEVER, fixed))
    )
    assert frozen == {f"{head}/last/{leaf}" for head in names for leaf in ("direction", "gain")}
    assert never == {f"{head}/last/gain" for head in names}


def frozen_until(epoch, rules, params):
    assigned = optim.assign_rules(rules, params)
    return {path for path, rule in assigned.items() if rule.freeze_epochs == epoch}


def trained(tree):
    return any(np.any(g) for g in jax.tree.leaves(tree))


def test_temperatures_warm_up_per_epoch_and_apart_and_centers_stay_without_centering():
    method = bound(
        ibot__teacher_temperature_epochs=5.0,
        ibot__patch__final_teacher_temperature=0.05,
        ibot__centering=False,
    )
    scores, patches = jnp.ones((4, 4, 24)), jnp.ones((4, 2, 8, 8))
    mask, params = jnp.ones((4, 2, 8), bool), default_run()[2]
    out = ibot.Outputs(scores, scores[:, :2], patches, patches, mask, jnp.ones((4, 8)))
    centers = {name: jnp.zeros(24) for name in ("center", "patch_center")}
    step = jax.jit(lambda now: method.objective(params, params, out, centers, None, now)[1])
    results = [step(progress(epoch)) for epoch in (0, 2, 4, 9)]
    for name, want in (
        ("teacher_temperature", [0.04, 0.055, 0.07, 0.07]),
        ("patch_teacher_temperature", [0.04, 0.045, 0.05, 0.05]),
    ):
        np.testing.assert_allclose([r.metrics[name] for r in results], want, rtol=1e-6)
    assert identical(results[0].carry, centers)
    assert all(np.any(center) for center in default_run()[0][1].carry.values())  # with centering


def test_pictures_colour_patches_by_prototype():
    params = default_run()[2]
    image = np.random.default_rng(0).random((16, 16, 3), np.float32)
    images = np.stack([image, image, image[::-1]])
    rows = pictures.draw(Encoder(resolved(), params), images)["patch_prototypes"].rows
    first, second, third = (row[1].labels for row in rows)
    assert first.shape == (4, 4)
    np.testing.assert_array_equal(first, second)
    used = np.unique([first, second, third])
    np.testing.assert_array_equal(used, np.arange(len(used)))
    without = Encoder(resolved(ibot__patch__weight=0.0), params)
    assert pictures.draw(without, image[None]) == {}
