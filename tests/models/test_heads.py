"""Projection heads against NumPy float64, and their behaviour at the origin."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.models import heads
from tests.models.reference import float64, mlp, randomised

X = np.random.default_rng(1).normal(size=(4, 8))


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def dino_head(**options):
    return heads.dino_head(8, 7, hidden=16, bottleneck=5, **options)


@pytest.mark.parametrize("layers", [1, 3])
def test_projection_head_matches_numpy(layers):
    head = heads.projection_head(8, hidden=16, out=5, layers=layers)
    params = randomised(head)
    assert len(params["mlp"]) == layers
    x = X.reshape(2, 2, 8)
    got = head.apply(params, jnp.asarray(x, jnp.float32))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, unit(mlp(float64(params["mlp"]), x)), atol=1e-6)


def test_dino_head_matches_numpy():
    head = dino_head()
    params = randomised(head)
    p = float64(params)
    direction = p["last"]["direction"] / np.linalg.norm(p["last"]["direction"], axis=0)
    want = unit(mlp(p["mlp"], X)) @ (p["last"]["gain"] * direction)
    np.testing.assert_allclose(head.apply(params, jnp.asarray(X, jnp.float32)), want, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_prototypes_are_the_last_layer_of_the_dino_head(dtype):
    head = dino_head(dtype=dtype)
    trunk = heads.projection_head(8, hidden=16, out=5, dtype=dtype)
    last = heads.prototypes(5, 7, dtype=dtype)
    params = randomised(head)
    fresh, kernel = last.init(jax.random.key(1)), last.apply(params["last"])
    chex.assert_trees_all_equal_shapes_and_dtypes(fresh, params["last"])
    np.testing.assert_array_equal(fresh["gain"], 1)
    assert kernel.shape == (5, 7) and kernel.dtype == dtype
    x = jnp.asarray(X, jnp.float32)
    rows = trunk.apply({"mlp": params["mlp"]}, x).astype(dtype)
    logits = jnp.matmul(rows, kernel, preferred_element_type=jnp.float32)
    # Few rows: the results are scaled; as many as the matrix has: the matrix is.
    few, many = head.apply(params, x), head.apply(params, jnp.tile(x, (5, 1)))[: len(x)]
    for scaled in (few, many):
        np.testing.assert_allclose(logits, scaled, atol=1e-6 if dtype == "float32" else 5e-3)


def test_l2_normalize_is_finite_with_finite_gradient():
    @jax.jit
    def rows_and_gradient(x):
        def total(x):
            return (heads.l2_normalize(x) * jnp.arange(3.0)).sum()

        return heads.l2_normalize(x), jax.grad(total)(x)

    for scale in (0.0, 1e-30, 1e-4, 1.0, 1e4):
        rows, gradient = rows_and_gradient(np.float32(scale) * np.float32([[3, 4, 0], [1, -2, 2]]))
        chex.assert_tree_all_finite((rows, gradient))
        if scale >= 1e-4:
            np.testing.assert_allclose(np.linalg.norm(rows, axis=-1), 1, rtol=1e-6)


@pytest.mark.parametrize("head", [heads.projection_head(8, hidden=16, out=5), dino_head()])
def test_zero_tokens_give_finite_gradients_everywhere(head):
    gradient = jax.jit(jax.grad(lambda p, x: head.apply(p, x).sum(), argnums=(0, 1)))
    chex.assert_tree_all_finite(gradient(head.init(jax.random.key(0)), jnp.zeros((1, 8))))


def test_bfloat16_compute_stays_close_and_float32_outside():
    params, x = randomised(dino_head()), np.float32(X)
    got = dino_head(dtype="bfloat16").apply(params, x)
    assert got.dtype == jnp.float32
    assert 0 < np.abs(got - dino_head().apply(params, x)).max() < 0.1


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match="layers"):
        heads.projection_head(8, layers=0)
    with pytest.raises(ValueError, match="init_std"):
        heads.dino_head(8, 7, init_std=0.5)
    with pytest.raises(ValueError, match="out"):
        heads.prototypes(5, 0)
    with pytest.raises(ValueError, match="last axis"):
        jax.eval_shape(dino_head().apply, randomised(dino_head()), jnp.ones((2, 9)))
