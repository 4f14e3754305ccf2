"""The factorisation Z = L S against NumPy, and what must hold whatever the weights are."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ssl_jax import ops
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


def test_projections_start_as_torch_starts_linear_layers_and_differ():
    params = factorise.projections(64).init(jax.random.key(0))
    for name in ("dense", "sparse"):
        kernel = np.asarray(params[name]["kernel"])
        assert np.abs(kernel).max() <= 1 / 8 and kernel.std() == pytest.approx(
            1 / 8 / 3**0.5, rel=0.05
        )
        assert not np.any(params[name]["bias"])
    assert not np.array_equal(params["dense"]["kernel"], params["sparse"]["kernel"])


def test_projections_name_a_wrong_width():
    project = factorise.projections(6)
    with pytest.raises(ValueError, match="sparse"):
        jax.eval_shape(project.apply, randomised(project), jnp.ones((2, 4, 6)), jnp.ones((2, 3, 5)))
    with pytest.raises(ValueError, match="width"):
        factorise.projections(0)


@jax.jit
def maps_and_latent(params, patches, sparse, temperature):
    projected = factorise.projections(8).apply(params, patches, sparse)
    maps = ops.localization(*projected, temperature=temperature)
    return maps, factorise.recompose(maps, sparse)


@hypothesis.given(
    temperature=st.sampled_from((1e-3, 0.06, 1.0, 1e4)),
    r=st.sampled_from((1, 3)),
    seed=st.integers(0, 1000),
)
def test_latent_has_rank_r_and_lies_in_the_hull_of_the_tokens(temperature, r, seed):
    rng = np.random.default_rng(seed)
    params = randomised(factorise.projections(8), seed, scale=1)
    patches, sparse = (rng.normal(size=(2, n, 8)).astype(np.float32) for n in (12, r))
    maps, latent = map(np.float64, maps_and_latent(params, patches, sparse, temperature))
    np.testing.assert_allclose(latent, maps @ np.float64(sparse), atol=1e-5)
    assert np.all(np.linalg.matrix_rank(latent, tol=1e-3) <= r)
    low, high = sparse.min(axis=1, keepdims=True), sparse.max(axis=1, keepdims=True)
    assert np.all(latent >= low - 1e-5) and np.all(latent <= high + 1e-5)
    if temperature == 1e4:
        mean = np.broadcast_to(sparse.mean(axis=1, keepdims=True), latent.shape)
        np.testing.assert_allclose(latent, mean, atol=1e-3)
    if temperature == 1e-3 and r == 3:  # nearly one token per place (ties apart)
        assert np.median(maps.max(axis=-1)) > 0.99


@pytest.mark.parametrize("temperature", [0.06, 1.0, 1e4])
def test_order_of_the_tokens_moves_the_maps_and_not_the_latent(temperature):
    """A cosine is off by up to 1e-7 and a latent is of order 1; both over the temperature."""
    rng, params = np.random.default_rng(0), randomised(factorise.projections(8), scale=1)
    patches, sparse = (rng.normal(size=(2, n, 8)).astype(np.float32) for n in (12, 3))
    order = [2, 0, 1]
    maps, latent = maps_and_latent(params, patches, sparse, temperature)
    moved, again = maps_and_latent(params, patches, sparse[:, order], temperature)
    np.testing.assert_allclose(moved, maps[..., order], atol=3e-6)
    np.testing.assert_allclose(again, latent, atol=1e-5)


def test_gradient_reaches_maps_and_tokens():
    def loss(maps, sparse):
        return jnp.square(factorise.recompose(maps, sparse)).sum()

    maps = jax.nn.softmax(jax.random.normal(jax.random.key(0), (1, 5, 3)))
    sparse = jax.random.normal(jax.random.key(1), (1, 3, 4))
    check_grads(loss, (maps, sparse), order=1, modes=("rev",), atol=2e-2, rtol=2e-2)


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


def test_fourier_codes_tell_places_apart_and_do_not_depend_on_the_grid_but_on_the_place():
    matrix = factorise.fourier_matrix(jax.random.key(0), 64)
    assert matrix.shape == (2, 32)
    codes = np.asarray(factorise.fourier_codes(matrix, (7, 7)))
    gaps = np.linalg.norm(codes[:, None] - codes[None], axis=-1) + 10 * np.eye(49)
    assert gaps.min() > 1
    # The middle cell of any odd grid is the middle of the image.
    np.testing.assert_allclose(codes[24], factorise.fourier_codes(matrix, (3, 5))[7], atol=1e-6)
    draws = np.asarray(factorise.fourier_matrix(jax.random.key(1), 20000))
    assert draws.std() == pytest.approx(1, rel=0.02) and abs(draws.mean()) < 0.02


@pytest.mark.parametrize("width", [0, 1, 7])
def test_fourier_codes_need_an_even_width(width):
    with pytest.raises(ValueError, match="width"):
        factorise.fourier_matrix(jax.random.key(0), width)
