"""Layer numerics: normalisation of difficult rows, stochastic depth's distribution,
initialisation.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.models import layers


def test_layer_norm_survives_offsets_scales_and_constants():
    norm = layers.layer_norm(64, 1e-6)
    rows = np.random.default_rng(0).normal(size=(4, 64))
    for scale, offset in ((1.0, 0.0), (1e4, 0.0), (1.0, 300.0)):
        x = rows * scale + offset
        want = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
        np.testing.assert_allclose(
            norm(jnp.asarray(x, jnp.float32)), want, atol=1e-3 if offset else 1e-5
        )
    constant = jnp.full((2, 64), 7.0)
    assert np.array_equal(norm(constant), np.zeros((2, 64)))
    assert np.all(np.isfinite(jax.grad(lambda x: norm(x)[0, 0])(constant)))


def test_drop_path_rates_rise_linearly_and_keep_the_mean():
    keys = jax.random.split(jax.random.key(0), 4000)
    scales = np.asarray(layers.drop_path_scales(keys, 0.4, 5))
    assert scales.shape == (5, 2, 4000)
    for block, rate in enumerate((0.0, 0.1, 0.2, 0.3, 0.4)):
        np.testing.assert_allclose(
            np.unique(scales[block]), [1] if rate == 0 else [0, 1 / (1 - rate)], rtol=1e-6
        )
        # 4 standard errors
        np.testing.assert_allclose((scales[block] == 0).mean(axis=-1), rate, atol=0.03)
        np.testing.assert_allclose(scales[block].mean(), 1, atol=0.05)
    dropped = scales == 0
    # Branches are drawn independently: 0.4 * 0.4.
    agreement = (dropped[4, 0] & dropped[4, 1]).mean()
    assert abs(agreement - 0.16) < 0.03


def test_init_distributions():
    values = np.asarray(layers.normal(jax.random.key(0), (400, 400), 0.02))
    assert abs(values.std() - 0.02) < 2e-4 and np.abs(values).max() < 0.12
    flat = np.asarray(layers.uniform(jax.random.key(0), (100, 400)))
    assert np.abs(flat).max() <= 0.1 and abs(flat.std() - 0.1 / np.sqrt(3)) < 1e-3
    with pytest.raises(ValueError, match="init_std"):
        layers.check_init_std(0)
