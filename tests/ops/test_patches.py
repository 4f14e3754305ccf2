"""Cutting images into patches and joining them."""

import jax
import numpy as np
import pytest

from ssl_jax import ops


def test_patch_i_is_the_square_at_its_place():
    images = np.arange(2 * 6 * 9 * 3).reshape(2, 6, 9, 3)
    patches = np.asarray(jax.jit(ops.patchify, static_argnums=1)(images, 3))
    assert patches.shape == (2, 6, 27)
    for row in range(2):
        for column in range(3):
            square = images[:, 3 * row : 3 * row + 3, 3 * column : 3 * column + 3]
            np.testing.assert_array_equal(patches[:, 3 * row + column], square.reshape(2, -1))


@pytest.mark.parametrize("lead", [(), (2,), (2, 4)])
def test_there_and_back(lead):
    images = np.random.default_rng(0).integers(0, 255, (*lead, 8, 4, 3)).astype(np.uint8)
    back = ops.unpatchify(ops.patchify(images, 2), 2, np.array([4, 2]))
    assert back.dtype == np.uint8
    np.testing.assert_array_equal(back, images)
