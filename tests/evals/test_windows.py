"""Which part of an image is kept, and its pixels as numbers."""

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.evals import windows


def test_the_middle_is_kept_in_whole_patches():
    assert windows.window((33, 66), 0, 16) == (0, 1, 32, 64)
    assert windows.window((40, 64), 36, 16) == (4, 16, 32, 32)
    image = np.arange(6 * 8).reshape(6, 8)
    np.testing.assert_array_equal(windows.cut(image, windows.window((6, 8), 4, 2)), image[1:5, 2:6])
    with pytest.raises(InputError, match="a.jpg"):
        windows.window((8, 12), 9, 1, "a.jpg")


def test_sides_are_multiples_of_the_patch():
    assert windows.floored((33, 64), 16) == (32, 64)
    with pytest.raises(InputError):
        windows.floored((15, 64), 16)
    np.testing.assert_array_equal(windows.unit(np.array([0, 255], np.uint8)), [0, 1])
    np.testing.assert_array_equal(windows.unit(np.array([0.25])), np.float32([0.25]))
