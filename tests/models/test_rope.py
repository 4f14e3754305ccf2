"""Rotary position embeddings against numbers worked out by hand, and what their draws depend on."""

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax.models import rope

KEYS = jax.random.split(jax.random.key(0), 3)


def test_a_grid_of_2_x_3():
    """Head width 8, base 100: periods 1 and 10."""
    rotation = rope.of_patches((2, 3), 8, rope.Settings())
    np.testing.assert_allclose(rope.centres((2, 3), rope.Settings())[0, 1], (-0.5, 0), atol=1e-7)
    q = jnp.broadcast_to(jnp.arange(1.0, 9.0), (1, 6, 1, 8))
    turned = rope.rotate(q, rotation)[0, :, 0]
    first = (-1, 3.756215, -7.562178, 6.908075, -5, 5.088305, -0.901924, 5.681417)
    last = (-1, 0.048011, 4.562178, 0.400289, -5, 6.324373, -6.098076, 8.935310)
    np.testing.assert_allclose(turned[0], first, atol=3e-6)
    np.testing.assert_allclose(turned[5], last, atol=3e-6)
    np.testing.assert_allclose(jnp.square(turned).sum(-1), 204, rtol=1e-6)


def test_periods_of_the_released_files():
    rounded = [1, 1.3359375, 1.78125, 2.375, 3.15625, 4.21875, 5.625, 7.5, 10, 13.3125, 17.75]
    rounded += [23.75, 31.625, 42.25, 56.25, 75]
    np.testing.assert_array_equal(rope.periods(64, 100.0, rounded=True), rounded)
    np.testing.assert_allclose(rope.periods(64, 100.0)[:3], (1, 1.3335214, 1.7782794), rtol=1e-7)


def test_products_of_patches_depend_on_distances_alone():
    """Not with tokens that do not turn."""
    rng = np.random.default_rng(0)
    q, k = (jnp.asarray(rng.normal(size=(1, 13, 2, 16)), jnp.float32) for _ in range(2))

    def products(shift):
        places = jnp.asarray(rope.centres((3, 4), rope.Settings()) + shift)
        turns = 2 * np.pi * places[..., None] / rope.periods(16, 100.0)
        angles = jnp.tile(turns.reshape(1, 12, 8), 2)
        plain = rope.Rotation(jnp.cos(angles), jnp.sin(angles))
        rotation = rope.among(plain, 1, 0)
        return jnp.einsum("bqhd,bkhd->qk", *(rope.rotate(x, rotation) for x in (q, k)))

    before, after = products(0.0), products(np.array([0.3, -0.2]))
    np.testing.assert_allclose(after[1:, 1:], before[1:, 1:], atol=2e-5)
    assert np.abs(after[0, 1:] - before[0, 1:]).max() > 0.1
    np.testing.assert_allclose(after[0, 0], before[0, 0], rtol=1e-6)


def test_draws_are_an_images_own():
    settings = rope.Settings(shift=0.1, jitter=1.5, rescale=2.0)
    plain = rope.centres((3, 5), rope.Settings())
    places = np.asarray(rope.centres((3, 5), settings, KEYS))
    np.testing.assert_allclose(rope.centres((3, 5), settings, KEYS[1:2])[0], places[1], rtol=1e-6)
    np.testing.assert_array_equal(rope.centres((3, 5), settings), plain)
    np.testing.assert_array_equal(rope.centres((3, 5), rope.Settings(), KEYS), plain)
    assert np.abs(places[0] - places[1]).max() > 1e-3


def test_ranges_of_the_draws():
    keys = jax.random.split(jax.random.key(1), 2000)
    ends = np.array([[0, 0], [2, 4]])  # of the grid, the first and last patch

    def steps(**settings):
        places = np.asarray(rope.centres((3, 5), rope.Settings(**settings), keys))
        corners = places.reshape(-1, 3, 5, 2)[:, ends[:, 0], ends[:, 1]]
        return corners.mean(1), (corners[:, 1] - corners[:, 0]) / (2 * np.array([2 / 3, 4 / 5]))

    middle, stretch = steps(shift=0.1)
    assert 0.09 < np.abs(middle).max() <= 0.1 and np.allclose(stretch, 1, atol=1e-5)
    middle, stretch = steps(jitter=1.5)
    assert 1.45 < stretch.max() <= 1.5001 and 1 / 1.5001 <= stretch.min() < 1 / 1.45
    assert np.abs(stretch[:, 0] - stretch[:, 1]).max() > 0.1 and np.allclose(middle, 0, atol=1e-6)
    _, stretch = steps(rescale=2.0)
    assert 1.95 < stretch.max() <= 2.0001 and np.allclose(stretch[:, 0], stretch[:, 1], rtol=1e-5)


def test_patches_that_are_kept():
    rotation = rope.of_patches((2, 3), 8, rope.Settings())
    kept = rope.keep(rotation, jnp.array([[5, 0], [2, 3]]))
    np.testing.assert_array_equal(kept.cos[1], rotation.cos[0][np.array([2, 3])])
    np.testing.assert_array_equal(kept.sin[0], rotation.sin[0][np.array([5, 0])])
