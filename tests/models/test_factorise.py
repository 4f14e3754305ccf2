"""The factorisation Z = L S and the codes of places against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.models import factorise
from tests.models.reference import float64, linear, randomised


def test_projections_are_two_linear_maps_with_biases():
    project = factorise.projections(6)
    params = randomised(project, scale=1)
    rng = np.random.default_rng(1)
    patches, sparse = rng.normal(size=(2, 5, 6)), rng.normal(size=(2, 3, 6))
    for got, x, name in zip(
        project.apply(params, np.float32(patches), np.float32(sparse)),
        (patches, sparse),
        ("dense", "sparse"),
    ):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, linear(x, float64(params[name])), atol=1e-5)


def test_latent_is_the_tokens_weighted_by_their_maps():
    rng = np.random.default_rng(0)
    maps, sparse = rng.dirichlet(np.ones(3), (2, 12)), rng.normal(size=(2, 3, 8))
    latent = factorise.recompose(np.float32(maps), np.float32(sparse))
    np.testing.assert_allclose(latent, maps @ sparse, atol=1e-6)


def test_fourier_codes_by_hand():
    matrix = np.array([[0.3, -1.1, 0.7], [0.5, 0.2, -2.0]], np.float32)
    codes = np.asarray(factorise.fourier_codes(jnp.asarray(matrix), (2, 4)))
    assert codes.shape == (8, 6) and codes.dtype == np.float32
    for i in range(2):
        for j in range(4):
            x, y = (j + 0.5) / 4, (i + 0.5) / 2  # centre of the cell, x along the columns
            v = 2 * np.pi * (2 * np.array([x, y]) - 1) @ matrix.astype(np.float64)
            # Sine and cosine side by side.
            wanted = np.stack([np.sin(v), np.cos(v)], axis=1).reshape(-1)
            np.testing.assert_allclose(codes[4 * i + j], wanted, atol=2e-6)


def test_fourier_matrix_is_normal():
    draws = np.asarray(factorise.fourier_matrix(jax.random.key(1), 20000))
    assert draws.shape == (2, 10000)
    assert draws.std() == pytest.approx(1, rel=0.02) and abs(draws.mean()) < 0.02


def test_widths_that_are_refused():
    project = factorise.projections(6)
    with pytest.raises(ValueError, match="sparse"):
        jax.eval_shape(project.apply, randomised(project), jnp.ones((2, 4, 6)), jnp.ones((2, 3, 5)))
    with pytest.raises(ValueError, match="width"):
        factorise.projections(0)
    for width in (0, 1, 7):
        with pytest.raises(ValueError, match="width"):
            factorise.fourier_matrix(jax.random.key(0), width)
