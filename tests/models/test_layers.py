"""Layer numerics: normalisation of difficult rows, stochastic depth's distribution,
initialisation.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.models import fused, layers, stack


def test_layer_norm_survives_offsets_scales_and_constants():
    norm = layers.LayerNorm(64, 1e-6)
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


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 0.01)])
def test_gelu_and_its_derivative(dtype, tolerance, approximate):
    """In float64 by JAX; the input alone is kept for the backward pass."""
    x = jnp.concatenate([jnp.linspace(-9, 9, 301), jnp.array([0.0, -1e4, 1e4])]).astype(dtype)
    value, derivative = jax.vjp(lambda x: fused.gelu(x, approximate), x)
    assert [y.dtype for y in jax.tree.leaves(derivative) if y.ndim] == [x.dtype]
    with jax.enable_x64():
        exact = jnp.asarray(np.asarray(x, np.float64))
        want, exactly = jax.vjp(lambda x: jax.nn.gelu(x, approximate=approximate), exact)
        (slope,) = exactly(jnp.ones_like(exact))
    for got, wanted in ((value, want), (derivative(jnp.ones_like(x))[0], slope)):
        assert got.dtype == x.dtype
        np.testing.assert_allclose(np.asarray(got, np.float64), wanted, tolerance, tolerance)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("bfloat16", 0.01)])
def test_swiglu_and_its_derivative(dtype, tolerance):
    """As `test_gelu_and_its_derivative`."""
    numbers = np.random.default_rng(0).normal(size=(7, 10)) * 3
    numbers[0, :3] = 0.0, -1e4, 1e4
    x = jnp.asarray(numbers, dtype)
    value, derivative = jax.vjp(fused.swiglu, x)
    assert [y.shape for y in jax.tree.leaves(derivative) if y.ndim] == [x.shape]
    with jax.enable_x64():
        exact = jnp.asarray(np.asarray(x, np.float64))
        want, exactly = jax.vjp(lambda x: jax.nn.silu(x[:, :5]) * x[:, 5:], exact)
        (slope,) = exactly(jnp.ones_like(want))
    for got, wanted in ((value, want), (derivative(jnp.ones_like(value))[0], slope)):
        assert got.dtype == x.dtype
        np.testing.assert_allclose(np.asarray(got, np.float64), wanted, tolerance, tolerance)


def test_gradients_of_layer_norm():
    """JAX's in float64, of input, scale and bias."""
    rng = np.random.default_rng(0)
    shapes = ((3, 5, 64), (64,), (64,), (3, 5, 64))
    *arrays, cotangent = (rng.normal(size=shape) for shape in shapes)

    def plain(x, scale, bias):
        x = x - x.mean(-1, keepdims=True)
        return x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-3) * scale + bias

    with jax.enable_x64():
        want = jax.vjp(plain, *map(jnp.asarray, arrays))[1](jnp.asarray(cotangent))
    short = [x.astype(np.float32) for x in arrays]
    got = jax.vjp(lambda *x: fused.layer_norm(*x, 1e-3), *short)[1](cotangent.astype(np.float32))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=3e-6)


def test_drop_path_rates_rise_linearly_and_keep_the_mean():
    keys = jax.random.split(jax.random.key(0), 4000)
    scales = np.asarray(stack.drop_path_scales(keys, 0.4, 5))
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
