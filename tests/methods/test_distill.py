"""Distillation: what the teacher sees and says, from which files, and what stays of the method
beside it."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ssl_jax
from ssl_jax import api, losses, methods, settings
from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.convert import backbones
from ssl_jax.methods import distill, encoder
from ssl_jax.models import vit
from ssl_jax.runtime import sharding
from ssl_jax.train import checkpoint, loop, setup, step
from ssl_jax.views import recipe
from tests import tiny
from tests.contract import steps
from tests.convert import networks

OWN = [pytest.param(x, marks=[pytest.mark.slow] * (x != "sop")) for x in distill.OWN]


def beside(name, **changes):
    """Distillation with the tiny config of that method beside it."""
    own, c = tiny.config(name), settings.base_config("distill")
    sections = set(own) - {"method", "expected"}
    c.update({section: own[section] for section in sections})
    c.distill.update(dict(method=name, teacher="random"))
    c.update_from_flattened_dict({key.replace("__", "."): x for key, x in changes.items()})
    tiny.check(c)
    return own, c


def program(config):
    """Of initial weights and loss, as text."""
    config = tiny.resolved(config)
    method = methods.make(config)
    state = setup.on_mesh(method, config, sharding.make_mesh(1))[1]
    views = recipe.abstract_views(method.views, 4)
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4))

    def loss(state, views, keys):
        params, carry = method.init(keys[0])
        state = state._replace(carry=carry)
        progress = step.progress_at(state.step, config)
        return step.make_loss(method, 1)(params, state, views, (keys, keys[0]), progress)

    return jax.make_jaxpr(loss)(state, views, keys), state


@pytest.mark.parametrize("name", OWN)
def test_without_weight_it_is_the_method_itself(name):
    own, c = beside(name, distill__weight=0.0, distill__teacher="")
    (same, _), (want, _) = program(c), program(own)
    assert str(same) == str(want)


@pytest.mark.parametrize("name", OWN)
def test_every_method_can_be_beside_it(name):
    text, state = program(beside(name)[1])
    assert text.out_avals[0].shape == () and "teacher" in state.constants
    assert "distill" in state.params and "distill" not in (state.teacher or {})


def resize(maps, side):
    """[B, H, W, C] to side x side by a triangle, as wide as a source pixel or a target's."""
    for axis in (1, 2):
        n = maps.shape[axis]
        ratio = n / side
        places = (np.arange(side) + 0.5) * ratio
        gaps = np.abs(np.arange(n)[:, None] + 0.5 - places) / max(ratio, 1)
        weights = np.maximum(0, 1 - gaps)
        weights /= weights.sum(axis=0)
        maps = np.moveaxis(np.moveaxis(maps, axis, -1) @ weights, -1, axis)
    return maps


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 48])  # 32: its native size
def test_the_teacher_sees_the_view_at_its_own_size_and_patch(tmp_path, size):
    teacher = networks.network("registers")
    ssl_jax.save(teacher, tmp_path / "t.safetensors")
    c = tiny.config(
        "distill_alone", distill__teacher=str(tmp_path / "t.safetensors"), distill__size=size
    )
    tiny.check(c)
    method = methods.make(tiny.resolved(c))
    params, _ = jax.jit(method.init)(jax.random.key(0))
    views = recipe.prepare(method.views, tiny.random_batch(method.views), 0)
    encode = jax.jit(lambda p, k: method.encode(p, None, k, views, None, None))
    out = encode(params, method.constants())
    seen = np.asarray(views["global"].images[:, 0])
    want = teacher(resize(seen, size or 32).astype(np.float32))
    np.testing.assert_allclose(out.teacher["image"], want.cls, atol=2e-4)
    np.testing.assert_allclose(out.teacher["patches"], resize(want.patches, 4), atol=2e-4)
    own = method.features(params, seen)
    layer = params["distill"]["patches"]["linear"]
    mapped = own.patches @ layer["kernel"] + layer["bias"]
    np.testing.assert_allclose(out.student["patches"], mapped, atol=1e-5)
    assert out.student["image"].shape == (4, 32)


@pytest.mark.slow
def test_the_readers_of_init_from(tmp_path):
    teacher = networks.network("plain")
    for to, name in (("hf", "hf"), ("timm", "timm"), ("npz", "x.npz")):
        ssl_jax.export(teacher, tmp_path / name, to=to)
        read = backbones.load(tmp_path / name)
        chex.assert_trees_all_equal(read.params, jax.tree.map(np.asarray, teacher.backbone))
        rule = {"resize_kernel": read.shape.resize_kernel}  # each library's own
        assert dataclasses.replace(teacher.shape, **rule) == read.shape
    run = api.prepare(tiny.config("ibot"))
    state = loop.fresh_state(run)
    saved = checkpoint.Checkpoints(tmp_path / "run" / "checkpoints")
    saved.save(state, {"config": config_lib.to_json(run.config)}, whole=True)
    saved.close()
    read = backbones.load(tmp_path / "run")
    assert tiny.identical(read.params, state.teacher["backbone"])
    assert (read.shape.width, read.shape.drop_path, read.shape.mask_token) == (16, 0.0, False)
    # As the start of a student it leaves the frozen teacher alone.
    c = tiny.config("distill_alone", model__depth=2, init_from=str(tmp_path / "run"))
    run = api.prepare(c)
    started = loop.fresh_state(run)
    assert tiny.identical(started.constants, run.constants)
    assert tiny.identical(started.params["backbone"], state.teacher["backbone"])


def test_what_cannot_be_a_teacher(tmp_path):
    grey = dataclasses.replace(networks.PLAIN, in_channels=1, mean=(0.5,), std=(0.2,))
    shape = jax.eval_shape(vit.vit(grey).init, jax.random.key(0))
    params = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), shape)
    network = encoder.published(grey, params, "grey", "cls")
    network.image_token = "cls"  # which `save` would ask of the network
    ssl_jax.save(network, tmp_path / "grey.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no weights")
    (tmp_path / "empty").mkdir()
    for name in ("grey.safetensors", "broken.safetensors", "empty", "none.npz", "a/b"):
        place = str(tmp_path / name) if "/" not in name else name
        with pytest.raises(InputError, match=r"^distill\.teacher") as caught:
            tiny.check(tiny.config("distill", distill__teacher=place))
        assert len(str(caught.value).splitlines()) == 1 and name in str(caught.value)


def test_the_loss_is_the_weighted_sum():
    changes = dict(weight=2.0, image_weight=0.5, patch_weight=3.0, cosine=0.7, smooth_l1=0.2)
    changes = {f"distill__{name}": value for name, value in changes.items()}
    method = methods.make(tiny.resolved(tiny.config("distill_alone", **changes)))
    rng = np.random.default_rng(0)
    sizes = {"image": (3, 16), "patches": (3, 4, 4, 16)}
    pair = [
        {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in sizes.items()} for _ in "st"
    ]
    loss, out = method.objective({}, None, distill.Outputs(None, *pair), None, None, None)
    terms = {
        name: losses.distillation(pair[0][name], pair[1][name], cosine=0.7, smooth_l1=0.2)
        for name in sizes
    }
    want = 2 * (0.5 * terms["image"]["loss"] + 3 * terms["patches"]["loss"])
    np.testing.assert_allclose(loss, want, rtol=1e-6)
    assert out.metrics["distill_image_cosine"] == terms["image"]["cosine"]
    alike = jax.tree.map(lambda x: jnp.ones_like(x) * jnp.arange(16.0), pair[1])
    row = method.objective({}, None, distill.Outputs(None, pair[0], alike), None, None, None)[1]
    (warning,) = method.health({name: float(x) for name, x in row.metrics.items()})
    assert warning.startswith("constant teacher") and method.health(out.metrics) == []


@pytest.mark.slow
def test_it_learns_and_what_is_saved_holds_no_teacher(tmp_path):
    case = steps.Case("distill_alone")
    rows, state = case.one
    for name in ("distill_image_cosine", "distill_patches_cosine"):
        assert rows[-1][name] > rows[0][name] + 0.1
    network = encoder.Encoder(case.run.config, state.params, state.constants)
    ssl_jax.save(network, tmp_path / "student.npz")
    loaded = ssl_jax.load(tmp_path / "student.npz")
    assert network.constants is None and loaded.constants is None
    images = np.random.default_rng(0).random((2, 16, 16, 3), np.float32)
    np.testing.assert_array_equal(loaded(images).image, network(images).image)
