"""Adapters: what they add to the weights, what moves, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from ssl_jax import api, trees
from ssl_jax.config import InputError
from ssl_jax.convert import backbones
from ssl_jax.models import lora, vit
from ssl_jax.train import checkpoint, loop, resume, state
from tests import tiny

MODEL = ConfigDict(dict(lora=3, lora_on=("qkv", "fc2"), lora_alpha=6.0))
VIT = vit.ViTConfig(width=16, depth=2, heads=2, patch=4, image_size=16)
SWIN = vit.ViTConfig(width=32, depth=2, heads=2, patch=8, image_size=16, stages=(1, 1), cls=False)


def adapted(shape=VIT, model=MODEL):
    """A student's and a teacher's tree with adapters that are not zero."""
    backbone = vit.vit(shape).init(jax.random.key(0))
    params = {"backbone": lora.init(backbone, model, jax.random.key(1)), "head": jnp.ones(2)}
    rng = np.random.default_rng(0)

    def moved(path, x):
        noise = rng.standard_normal(x.shape).astype(np.float32)
        return x if path.startswith("backbone/") and not path.endswith(lora.B) else noise

    student = trees.map_with_path(moved, params)
    return (
        backbone,
        student,
        trees.nest(trees.split(trees.map_with_path(moved, params), lora.FROZEN)[1]),
    )


@pytest.mark.parametrize("shape", [VIT, SWIN])
def test_kernels_get_the_products(shape):
    backbone, student, teacher = adapted(shape)
    plain = trees.flatten({"backbone": backbone})
    for averaged, own in ((None, student), (teacher, teacher)):
        flat, count = trees.flatten(own), 0
        merged = trees.flatten(lora.network(student, averaged, MODEL))
        np.testing.assert_array_equal(merged.pop("head"), own["head"])
        assert merged.keys() == plain.keys()
        for path, x in merged.items():
            layer = path.removesuffix("kernel")
            want = np.asarray(plain[path], np.float64)
            if layer.endswith(("/qkv/", "/fc2/")):
                a, b = (np.asarray(flat[layer + name], np.float64) for name in (lora.A, lora.B))
                assert a.shape[-1] == b.shape[-2] == 3
                want, count = want + 6 / 3 * a @ b, count + 1
            np.testing.assert_allclose(x, want, rtol=1e-6, atol=1e-6)
        assert count == (2 if shape is VIT else 4)


def test_gradients_reach_adapters_and_heads_alone():
    _, student, _ = adapted()
    weights = jax.tree.map(lambda x: np.sin(np.arange(x.size)).reshape(x.shape), student)

    def loss(params):
        merged = trees.flatten(lora.network(params, None, MODEL))
        flat = trees.flatten(weights)
        return sum((flat[path] * x).sum() for path, x in merged.items())

    gradient = trees.flatten(jax.grad(loss)(student))
    frozen, trained = trees.split(student, lora.FROZEN)
    assert all(not gradient[path].any() for path in frozen)
    flat, layer = trees.flatten(weights), "backbone/blocks/mlp/fc2/"
    a, b, w = trained[layer + lora.A], trained[layer + lora.B], flat[layer + "kernel"]
    np.testing.assert_allclose(gradient[layer + lora.A], 2 * w @ b.swapaxes(1, 2), atol=1e-4)
    np.testing.assert_allclose(gradient[layer + lora.B], 2 * a.swapaxes(1, 2) @ w, atol=1e-4)
    np.testing.assert_allclose(gradient["head"], weights["head"], rtol=1e-6)


def test_the_first_network_is_the_one_without_adapters():
    backbone = vit.vit(VIT).init(jax.random.key(0))
    params = {"backbone": lora.init(backbone, MODEL, jax.random.key(1))}
    assert tiny.identical(lora.network(params, None, MODEL)["backbone"], backbone)
    a = np.asarray(params["backbone"]["blocks"]["attn"]["qkv"][lora.A])
    assert abs(a.std() - 16**-0.5) < 0.06  # 96 draws
    with pytest.raises(InputError, match="lora_on"):
        lora.init({"patch": backbone["patch"]}, MODEL, jax.random.key(1))


@pytest.mark.parametrize(
    "changes, name",
    [
        (dict(model__lora=2, init_from=""), "init_from"),
        (dict(model__lora=2, init_from="x", model__lora_on=()), "lora_on"),
        (dict(model__lora=-1), "model.lora"),
        (dict(model__lora_on=("fc3",)), "lora_on"),
    ],
)
def test_refused(changes, name):
    config = tiny.config("dino")
    config.update_from_flattened_dict({k.replace("__", "."): x for k, x in changes.items()})
    with pytest.raises(InputError, match=name):
        tiny.check(config)


@pytest.fixture(scope="module")
def run():
    return api.prepare(tiny.config("dino", model__lora=2))


@pytest.fixture(scope="module")
def start(run):
    return loop.fresh_state(run)


def test_moments_and_average_are_of_adapters_and_heads(run, start):
    frozen, trained = trees.split(start.params, lora.FROZEN)
    assert trees.flatten(start.teacher).keys() == trained.keys()
    shapes = sorted(x.shape for x in trained.values())
    moments = [x.shape for x in jax.tree.leaves(start.opt_state) if x.dtype == jnp.float32]
    # The gain of DINO's last layer does not learn and has none.
    assert len(moments) == 2 * (len(shapes) - 1)
    assert set(moments) <= set(shapes)


@pytest.mark.slow
def test_a_run_is_loaded_saved_and_continued_with_adapters_added(run, start, tmp_path):
    moved = jax.tree.map(lambda x: x + 0.1, start.teacher)
    at = start._replace(step=jnp.int32(4), teacher=moved)
    saved = checkpoint.Checkpoints(tmp_path / "run/checkpoints")
    saved.save(at, resume.meta(run.config, 4))
    saved.wait()
    saved.close()
    want = state.weights(at, run.config.model)
    assert not tiny.identical(want["backbone"], state.weights(start, run.config.model)["backbone"])
    encoder = api.load(tmp_path / "run")
    assert tiny.identical(encoder.params, want)
    backbone = backbones.load(tmp_path / "run").params  # as a teacher of `distill`
    assert tiny.identical(backbone, want["backbone"])
    api.save(encoder, tmp_path / "network.npz")
    assert tiny.identical(api.load(tmp_path / "network.npz").params, want)
    for source, rank in (("run", 3), ("network.npz", 0)):
        changes = dict(init_from=str(tmp_path / source), model__lora=rank)
        other = api.prepare(tiny.config("dino", **changes))
        assert tiny.identical(state.weights(loop.fresh_state(other), other.config.model), want)


def test_frozen_weights_are_never_random(tmp_path):
    plain = api.prepare(tiny.config("dino"))
    weights = state.weights(loop.fresh_state(plain), plain.config.model)
    del weights["backbone"]["cls"]
    api.save(api.Encoder(plain.config, weights), tmp_path / "network.npz")
    other = api.prepare(tiny.config("dino", model__lora=2, init_from=str(tmp_path / "network.npz")))
    with pytest.raises(InputError, match="backbone/cls"):
        loop.fresh_state(other)
