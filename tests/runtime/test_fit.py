"""The trainer of heads: against a loop by hand, several trainings at once, what it refuses."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ssl_jax.config import InputError
from ssl_jax.runtime import sharding
from ssl_jax.runtime.fit import fit

_RNG = np.random.default_rng(0)
_BATCHES = [(_RNG.normal(size=(8, 3)).astype("f4"), _RNG.normal(size=8).astype("f4"))] * 5
_START = {"kernel": jnp.asarray(_RNG.normal(size=3), jnp.float32)}


def _loss(params, carry, inputs):
    x, y, drawn = inputs
    terms = {"loss": jnp.square(x @ params["kernel"] - y).mean() + 0 * drawn, "draw": drawn}
    return terms, carry + x.sum()


def _prepare(scale, batch, index):
    x, y = batch
    return scale * x, y, jax.random.uniform(jax.random.key(index))


def _sgd(step, lr):
    return optax.sgd(lr / (1 + step), momentum=0.5)


def _fit(lr, batches=_BATCHES, devices=8, **options):
    mesh = sharding.make_mesh(devices=jax.devices()[:devices])
    how = dict(params=_START, carry=jnp.float32(0), constants=jnp.float32(0.5), prepare=_prepare)
    how |= dict(points=(np.asarray(lr, np.float32),), name="test")
    return fit(_loss, _sgd, batches, mesh, len(_BATCHES), **how | options)


def test_steps_are_those_of_a_loop_by_hand_for_each_learning_rate(monkeypatch, capsys):
    monkeypatch.setattr("ssl_jax.runtime.fit._SECONDS", -1.0)
    kernel, speed, losses, total = np.float64(_START["kernel"]), 0.0, [], 0.0
    for step, (x, y) in enumerate(_BATCHES):
        x, y = 0.5 * np.float64(x), np.float64(y)
        error = x @ kernel - y
        losses.append(np.square(error).mean())
        speed = 2 * x.T @ error / len(y) + 0.5 * speed
        kernel, total = kernel - 0.3 / (1 + step) * speed, total + x.sum()
    expected = {"kernel": kernel}, np.float64(total), np.array(losses)
    for fitted in (_fit(0.3), _fit(0.3, devices=1), _fit((0.1, 0.3)).each()[1]):
        chex.assert_trees_all_close(tuple(fitted), expected, rtol=1e-4)
    assert "test: step 5 of 5" in capsys.readouterr().out


@pytest.mark.parametrize("batches", [[], [(np.full((8, 3), np.inf, "f4"), _BATCHES[0][1])]])
def test_no_batch_and_a_loss_that_is_not_finite_are_refused(batches):
    with pytest.raises(InputError, match="test"):
        _fit(0.3, batches)
    if batches:
        assert not np.isfinite(_fit(0.3, batches, finite=False).losses).any()
