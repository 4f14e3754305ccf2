"""DINOv2: which loss sees what, centers, heads, learning rates by depth."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import losses, methods, ops, trees
from ssl_jax.methods import base, dinov2, multicrop
from ssl_jax.models import heads, vit, zoo
from ssl_jax.train import optim
from ssl_jax.views import recipe
from tests import tiny
from tests.losses.reference import close

pytestmark = pytest.mark.slow

BATCH, TAU = 4, 0.04 + 0.03 * 5 / 7  # of step 5 in a warm-up of 2 epochs of 4 steps
PROGRESS = base.Progress(jnp.int32(5), jnp.int32(1), jnp.float32(1.25), 4, 40)
EMA = dict(dinov2__centering="ema", dinov2__separate_head=False)
EMA |= dict(dinov2__patch__bottleneck=16, dinov2__patch__prototypes=24)


@functools.cache
def resolved(**changes):
    changes = {"model__depth": 1, "model__registers": 2, "model__drop_path": 0.0, **changes}
    return tiny.resolved(tiny.config("dinov2", **changes))


@functools.cache
def bound(**changes):
    return methods.make(resolved(**changes))


def shapes(**changes):
    return jax.eval_shape(lambda: bound(**changes).init(jax.random.key(0)))


def outputs(patches=12, seed=0):
    """Made-up scores, embeddings and tokens, [B, V, ...]; one view has no mask."""
    rng = np.random.default_rng(seed)
    sizes = (BATCH, 4, 24), (BATCH, 2, 24), (BATCH, 2, 5, patches), (BATCH, 2, 5, patches)
    scores = [rng.normal(size=size).astype(np.float32) for size in sizes]
    mask = rng.random((BATCH, 2, 5)) < 0.5
    mask[1, 0] = False
    tokens = rng.normal(size=(BATCH, 2, 16)).astype(np.float32)
    return dinov2.Outputs(*map(jnp.asarray, (*scores, mask, tokens)))


def drawn(method):
    """Parameters of student and teacher."""
    return [jax.jit(method.init)(jax.random.key(seed))[0] for seed in (0, 1)]


def scored(out, heads_of, prototypes):
    """The outputs, views first, with scores in place of embeddings."""
    last = heads.prototypes(out.student_patch.shape[-1], prototypes)
    own, theirs = (last.apply(head["last"]) for head in heads_of)
    first = dinov2.Outputs(*map(multicrop.views_first, out))
    return first._replace(
        student_patch=first.student_patch @ own, teacher_patch=first.teacher_patch @ theirs
    )


def test_the_loss_has_balanced_targets_and_all_three_weights():
    method = bound(dinov2__cls__weight=2.0, dinov2__patch__weight=0.5, dinov2__koleo=0.3)
    out, (params, teacher) = outputs(), drawn(method)
    loss, (carry, metrics) = method.objective(params, teacher, out, None, None, PROGRESS)
    first = scored(out, (params["patch_head"], teacher["patch_head"]), 20)
    want = losses.dinov2(
        *first, student_temperature=0.1, teacher_temperature=TAU, weights=(2.0, 0.5, 0.3)
    )
    assert carry is None
    close(metrics["teacher_temperature"], TAU)
    close(loss, want["loss"])
    for name in ("cls_loss", "cls_local_loss", "patch_loss", "koleo"):
        close(metrics[name], want[name])


def test_running_means_are_ibots_targets_and_follow_masked_patches():
    method, out = bound(**EMA), outputs(patches=16)
    params, teacher = drawn(method)
    rng = np.random.default_rng(1)
    carry = {name: jnp.asarray(rng.normal(size=24), jnp.float32) for name in shapes(**EMA)[1]}
    loss, (news, _) = method.objective(params, teacher, out, carry, None, PROGRESS)
    *first, tokens = scored(out, (params["head"], teacher["head"]), 24)
    want = losses.ibot(
        *first,
        (carry["center"], carry["patch_center"]),
        student_temperature=0.1,
        teacher_temperature=TAU,
    )
    close(loss, want["loss"] + 0.1 * ops.koleo(tokens).mean(axis=-1).sum())
    close(news["center"], 0.9 * carry["center"] + 0.1 * out.teacher.mean(axis=(0, 1)))
    masked = first[3][first[4]].mean(axis=0)
    close(news["patch_center"], 0.9 * carry["patch_center"] + 0.1 * masked)
    none = out._replace(mask=jnp.zeros_like(out.mask))
    still = method.objective(params, teacher, none, carry, None, PROGRESS)[1].carry
    close(still["patch_center"], carry["patch_center"])


def test_the_student_sees_masks_the_teacher_none_and_masked_patches_are_embedded():
    config, method = resolved(), bound()
    params, teacher = (method.init(jax.random.key(seed))[0] for seed in (0, 1))
    params["backbone"]["mask_token"] += 1.0  # zeros at the start
    rng = np.random.default_rng(0)
    masks = np.zeros((BATCH, 2, 16), bool)
    masks[:, 0, [2, 7, 11]] = True
    images = rng.random((BATCH, 2, 16, 16, 3), np.float32), rng.random((BATCH, 2, 8, 8, 3))
    views = {
        "global": recipe.Group(jnp.asarray(images[0]), None, None, jnp.asarray(masks), None),
        "local": recipe.Group(jnp.asarray(images[1], jnp.float32), None, None, None, None),
    }

    @jax.jit
    def both(params, teacher):
        keys = jax.random.split(jax.random.key(2), BATCH)
        out = method.encode(params, method.teacher_of(teacher), None, views, keys, PROGRESS)
        student = vit.vit(zoo.vit_config(config.model, mask_token=True))
        flat = images[0].reshape(-1, 16, 16, 3)
        seen = student.apply(params["backbone"], flat, masks=masks.reshape(-1, 16))
        clean = student.apply(teacher["backbone"], flat)
        return out, seen, clean

    out, seen, clean = both(params, teacher)
    close(out.tokens, np.reshape(seen.cls, (BATCH, 2, 16)))
    assert out.student.shape == (BATCH, 4, 24) and out.teacher.shape == (BATCH, 2, 24)
    assert out.mask.sum() == masks.sum() and not out.mask[:, 1].any()
    apply = heads.projection_head(16, hidden=32, out=12, init_std=0.02).apply
    for got, tokens, tree in (
        (out.student_patch, seen, params),
        (out.teacher_patch, clean, teacher),
    ):
        patches = np.reshape(tokens.patches, (BATCH, 2, 16, 16))[:, 0, [2, 7, 11]]
        close(got[:, 0, :3], apply({"mlp": tree["patch_head"]["mlp"]}, patches))


def test_heads_and_what_the_teacher_has():
    params, carry = shapes()
    assert set(params) == {"backbone", "head", "patch_head"} and carry is None
    assert params["head"]["last"]["direction"].shape == (16, 24)
    assert params["patch_head"]["last"]["direction"].shape == (12, 20)
    assert "mask_token" not in bound().teacher_of(params)["backbone"]
    assert params["backbone"]["registers"].shape == (2, 16)
    params, carry = shapes(**EMA)
    assert set(params) == {"backbone", "head"}
    assert {name: x.shape for name, x in carry.items()} == {"center": (24,), "patch_center": (24,)}


def test_learning_rates_fall_towards_the_input_and_networks_are_clipped_apart():
    params = shapes(model__depth=2)[0]
    rules = optim.assign_rules(bound(model__depth=2).rules, params)
    lr = {
        "backbone/patch/kernel": 0.2 * 0.9**3,
        "backbone/position": 0.9**3,
        "backbone/cls": 0.9**3,
        "backbone/mask_token": 0.9**3,
        "backbone/blocks/0/ls1/gamma": 0.9**2,
        "backbone/blocks/1/mlp/fc1/kernel": 0.9,
        "backbone/registers": 0.9**3,
        "backbone/norm/scale": 1.0,
        "head/mlp/0/kernel": 1.0,
        "patch_head/last/gain": 1.0,
    }
    assert {path: rules[path].lr for path in lr} == pytest.approx(lr)
    assert all(rule.clip_group == path.split("/")[0] for path, rule in rules.items())
    waiting = {path for path, rule in rules.items() if rule.freeze_epochs}
    last = {f"{head}/last" for head in ("head", "patch_head")}
    assert {path.rpartition("/")[0] for path in waiting} == last
    decayed = {p for p, leaf in trees.shapes(params).items() if optim.is_decayed(p, leaf, rules[p])}
    assert not [path for path in decayed if path.endswith(("gamma", "bias", "scale"))]
    assert {"backbone/position", "backbone/registers", "head/last/gain"} <= decayed
    by_tensor = bound(optim__clip_by="tensor").rules
    assert all(rule.clip_group is None for _, rule in by_tensor)
