"""experiments/bounds.py: the two bounds are what they say, and train through the package."""

import importlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import api, methods, settings
from ssl_jax.methods.base import Progress
from ssl_jax.train import loop, step
from tests import tiny


@pytest.fixture(scope="module")
def bounds():
    before = dict(methods.METHODS)
    yield importlib.import_module("experiments.bounds")
    methods.METHODS.clear()
    methods.METHODS.update(before)


def configured(name, **changes):
    """A bound on the images, views and network of the tiny DINO."""
    source, config = tiny.config("dino"), settings.base_config(name)
    for section in ("data", "views", "model", "optim", "checkpoint", "log"):
        config[section].update(source[section])
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in changes.items()})
    return config


def test_infonce_is_the_cross_entropy_of_finding_the_other_view(bounds):
    method = methods.make(settings.resolve(configured("infonce"), num_records=35, num_devices=1))
    rows = np.random.default_rng(0).normal(size=(5, 2, 8))
    rows /= np.linalg.norm(rows, axis=-1, keepdims=True)
    progress = Progress(jnp.int32(0), jnp.int32(0), jnp.float32(0), 4, 12)

    @jax.jit
    def objective(rows):
        outputs = bounds.Outputs(rows, jnp.arange(5))
        loss, out = method.objective(None, None, outputs, None, None, progress)
        return loss, out.metrics["found"]

    loss, found = objective(np.float32(rows))
    both = rows.transpose(1, 0, 2).reshape(10, 8)
    terms = []
    for i in range(10):
        similar = [both[i] @ both[j] / 0.2 for j in range(10) if j != i]
        terms.append(math.log(np.exp(similar).sum()) - both[i] @ both[(i + 5) % 10] / 0.2)
    np.testing.assert_allclose(loss, np.mean(terms), rtol=1e-5)
    assert 0 <= found <= 1
    assert objective(np.float32(rows[:, [0, 0]]))[1] == 1


def test_patch_classes_follow_crop_and_flip(bounds):
    mask = np.add.outer(10 * np.arange(8), np.arange(8))
    boxes = jnp.array([[0, 0, 8, 8], [4, 0, 4, 4], [0, 0, 8, 8]], jnp.float32)
    flips = jnp.array([False, False, True])
    whole, corner, mirrored = np.asarray(bounds.patch_classes(mask, boxes, flips, 2))
    np.testing.assert_array_equal(whole, [22, 26, 62, 66])
    np.testing.assert_array_equal(corner, [51, 53, 71, 73])
    np.testing.assert_array_equal(mirrored, [26, 22, 66, 62])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("infonce", dict(model__init_std=0.2)),
        ("supervised", dict(data__kind="photos")),
        ("supervised", dict(supervised__truth="mask")),
    ],
)
def test_a_bound_learns(bounds, name, changes):
    """On one batch over and over."""
    run = api.prepare(configured(name, optim__lr=0.3, optim__warmup_epochs=0.0, **changes))
    train_step = jax.jit(step.make_step(run.method, run.optimizer, run.config))
    batches = loop.open_loader(run)
    batch = next(batches)
    batches.close()
    state, losses = loop.fresh_state(run), []
    for _ in range(20):
        state, metrics = train_step(state, batch)
        losses.append(float(metrics["loss"]))
    assert np.isfinite(losses).all() and losses[-1] < 0.9 * losses[0]
