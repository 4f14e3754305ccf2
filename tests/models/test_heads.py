"""Projection heads against NumPy float64, and their behaviour at the origin."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from ssl_jax.models import heads


def mlp64(params, x):
    for i in range(len(params)):
        if i:
            x = 0.5 * x * (1 + erf(x / np.sqrt(2)))
        x = x @ np.asarray(params[str(i)]["kernel"], np.float64) + np.asarray(
            params[str(i)]["bias"], np.float64
        )
    return x


def randomised(params, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape) * 0.3, jnp.float32), params)


def test_projection_head_matches_numpy():
    head = heads.projection_head(8, hidden=16, out=5)
    params = randomised(jax.eval_shape(head.init, jax.random.key(0)))
    x = np.random.default_rng(1).normal(size=(2, 3, 8))
    want = mlp64(params["mlp"], x)
    want /= np.linalg.norm(want, axis=-1, keepdims=True)
    got = head.apply(params, jnp.asarray(x, jnp.float32))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, atol=1e-6)


def test_dino_head_matches_numpy():
    head = heads.dino_head(8, 7, hidden=16, bottleneck=5)
    params = randomised(jax.eval_shape(head.init, jax.random.key(0)))
    x = np.random.default_rng(1).normal(size=(4, 8))
    z = mlp64(params["mlp"], x)
    z /= np.linalg.norm(z, axis=-1, keepdims=True)
    direction = np.asarray(params["last"]["direction"], np.float64)
    want = z @ (np.asarray(params["last"]["gain"]) * direction / np.linalg.norm(direction, axis=0))
    np.testing.assert_allclose(head.apply(params, jnp.asarray(x, jnp.float32)), want, atol=1e-6)


def test_dino_last_layer_shapes_and_cosines():
    head = heads.dino_head(8, 7, hidden=16, bottleneck=5)
    params = head.init(jax.random.key(0))
    assert params["last"]["direction"].shape == (5, 7)
    assert params["last"]["gain"].shape == (
        1,
        7,
    )  # two-dimensional: decayed when it learns (rules go by rank)
    assert np.all(np.asarray(params["last"]["gain"]) == 1)
    x = 100 * jax.random.normal(jax.random.key(1), (50, 8))
    assert np.abs(head.apply(params, x)).max() <= 1 + 1e-6
    doubled = params | {"last": params["last"] | {"direction": 2 * params["last"]["direction"]}}
    np.testing.assert_allclose(head.apply(doubled, x), head.apply(params, x), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_prototypes_are_the_last_layer_of_the_dino_head(dtype):
    head = heads.dino_head(8, 7, hidden=16, bottleneck=5, dtype=dtype)
    trunk, last = (
        heads.projection_head(8, hidden=16, out=5, dtype=dtype),
        heads.prototypes(5, 7, dtype=dtype),
    )
    params = randomised(jax.eval_shape(head.init, jax.random.key(0)))
    fresh, kernel = last.init(jax.random.key(1)), last.apply(params["last"])
    assert jax.tree.map(jnp.shape, fresh) == jax.tree.map(jnp.shape, params["last"]) and np.all(
        np.asarray(fresh["gain"]) == 1
    )
    assert kernel.shape == (5, 7) and kernel.dtype == dtype
    x = jnp.asarray(np.random.default_rng(1).normal(size=(4, 8)), jnp.float32)
    logits = jnp.matmul(
        trunk.apply({"mlp": params["mlp"]}, x).astype(dtype),
        kernel,
        preferred_element_type=jnp.float32,
    )
    np.testing.assert_array_equal(logits, head.apply(params, x))
    with pytest.raises(ValueError, match="out is 0"):
        heads.prototypes(5, 0)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-4, 1.0, 1e4])
def test_l2_normalize_is_finite_with_finite_gradient(scale):
    x = scale * jnp.asarray([[3.0, 4.0, 0.0], [1.0, -2.0, 2.0]])
    value, gradient = jax.value_and_grad(lambda x: (heads.l2_normalize(x) * jnp.arange(3.0)).sum())(
        x
    )
    assert np.isfinite(value) and np.all(np.isfinite(gradient))
    if scale >= 1e-4:
        np.testing.assert_allclose(np.linalg.norm(heads.l2_normalize(x), axis=-1), 1, rtol=1e-6)


def test_zero_tokens_give_finite_gradients_everywhere():
    for head in (
        heads.projection_head(8, hidden=16, out=5),
        heads.dino_head(8, 7, hidden=16, bottleneck=5),
    ):
        params = head.init(jax.random.key(0))
        grads = jax.jit(jax.grad(lambda p, x, head=head: head.apply(p, x).sum(), argnums=(0, 1)))(
            params, jnp.zeros((1, 8))
        )
        assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(grads))


def test_bfloat16_compute_stays_close_and_float32_outside():
    kwargs = dict(hidden=32, bottleneck=16)
    exact, rounded = (
        heads.dino_head(8, 7, **kwargs),
        heads.dino_head(8, 7, dtype="bfloat16", **kwargs),
    )
    params = randomised(jax.eval_shape(exact.init, jax.random.key(0)))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(6, 8)), jnp.float32)
    got = rounded.apply(params, x)
    assert got.dtype == jnp.float32
    assert 0 < np.abs(got - exact.apply(params, x)).max() < 0.1


def test_layers_one_is_a_single_linear_map():
    params = jax.eval_shape(
        heads.projection_head(8, hidden=16, out=5, layers=1).init, jax.random.key(0)
    )
    assert list(params["mlp"]) == ["0"] and params["mlp"]["0"]["kernel"].shape == (8, 5)


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match="layers is 0"):
        heads.projection_head(8, layers=0)
    with pytest.raises(ValueError, match="init_std is 0.5"):
        heads.dino_head(8, 7, init_std=0.5)
    head = heads.projection_head(8, hidden=16, out=5)
    with pytest.raises(ValueError, match=r"shape \(2, 9\); its last axis must be 8"):
        jax.eval_shape(head.apply, jax.eval_shape(head.init, jax.random.key(0)), jnp.ones((2, 9)))
