"""One patch per window, in the right place with the right probability."""

import hypothesis
import hypothesis.strategies as st
import jax
import numpy as np
import pytest

from ssl_jax.views import windows

sample = jax.jit(windows.sample, static_argnums=(1, 2), static_argnames="random_position")


@hypothesis.given(
    size=st.sampled_from(((14, 3), (7, 2), (6, 4), (5, 1), (5, 5))),
    random=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_one_patch_per_window_inside_a_square_in_a_corner(size, random, seed):
    grid, window = size
    index = sample(jax.random.key(seed), grid, window, random_position=random)
    rows, columns = np.divmod(np.asarray(index), grid)
    side, rest = grid // window, grid % window
    squares = []
    for top in {0, rest}:
        for left in {0, rest}:
            y, x = rows - top, columns - left
            squares.append([*zip(y // window, x // window)] == [*np.ndindex(side, side)])
    assert any(squares)
    if not random:
        assert {int(rows.min()), int(columns.min())} <= {0, rest}
        for places in (rows, columns):
            assert not ((places - places.min()) % window).any()


def test_every_patch_of_a_window_and_every_corner_has_the_same_chance():
    keys = jax.random.split(jax.random.key(1), 4000)
    index = np.asarray(sample(keys, 4, 2))  # 2 x 2 windows of 2 x 2, no corner to choose
    assert index.shape == (4000, 4)
    four = pytest.approx([0.25] * 4, abs=0.028)  # 4 sigma
    windows_ = ((0, 1, 4, 5), (2, 3, 6, 7), (8, 9, 12, 13), (10, 11, 14, 15))
    for corner, patches in zip(index.T, windows_):
        assert [np.mean(corner == patch) for patch in patches] == four
    # Positions of different windows are independent, and so are views.
    assert np.mean((index[:, 0] == 0) & (index[:, 3] == 10)) == pytest.approx(1 / 16, abs=0.016)
    # One window, upper left of four places.
    first = np.asarray(sample(keys, 5, 4, random_position=False))[:, 0]
    assert [np.mean(first == patch) for patch in (0, 1, 5, 6)] == four


def test_any_shape_of_keys_and_a_pure_function_of_each():
    keys = jax.random.split(jax.random.key(2), (3, 2))
    index = sample(keys, 7, 3)
    assert index.shape == (3, 2, 4)
    np.testing.assert_array_equal(index[2, 1], sample(keys[2, 1], 7, 3))


@pytest.mark.parametrize("window", [0, 6])
def test_a_window_that_does_not_fit_is_refused(window):
    with pytest.raises(ValueError, match="window"):
        windows.sample(jax.random.key(0), 5, window)
