"""Centered targets and the running center against float64 references."""

import jax
import numpy as np
import pytest

from ssl_jax import ops


def arrays(seed=0, lead=(2, 5), width=7):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(*lead, width)).astype(np.float32), rng.normal(size=width)


@pytest.mark.parametrize("lead", [(), (5,), (2, 5)])
@pytest.mark.parametrize("temperature", [0.04, 1.0])
def test_targets_equal_the_formula(lead, temperature):
    logits, center = arrays(1, lead)
    scores = (logits.astype(np.float64) - center.astype(np.float32)) / temperature
    want = np.exp(scores - scores.max(axis=-1, keepdims=True))
    want /= want.sum(axis=-1, keepdims=True)
    got = jax.jit(ops.centered_softmax)(logits, center, temperature=temperature)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-7)
    log = ops.centered_softmax(logits, center, temperature=temperature, log=True)
    np.testing.assert_allclose(np.exp(np.asarray(log)), want, rtol=2e-5, atol=1e-7)


def test_center_moves_to_the_mean_of_all_leading_axes():
    logits, center = arrays(2)
    want = 0.9 * center + 0.1 * logits.astype(np.float64).mean(axis=(0, 1))
    np.testing.assert_allclose(ops.ema_center(center, logits, momentum=0.9), want, rtol=1e-5)
    np.testing.assert_allclose(ops.ema_center(center, logits[0, 0], momentum=0), logits[0, 0])
    np.testing.assert_allclose(ops.ema_center(center, logits, momentum=1), center, rtol=1e-6)
