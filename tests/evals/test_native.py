"""Streams of images of many sizes: batches of one shape, each image with its own features."""

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.evals import native


def _stream(*widths):
    return [(i, np.full((2, width, 3), i, np.float32)) for i, width in enumerate(widths)]


def _read(shapes):
    def read(images):
        shapes.append(images.shape[:1] + images.shape[2:3])
        return images.mean(axis=(1, 2, 3))

    return read


def test_each_image_gets_its_own_features():
    shapes = []
    widths = [4, 5, 4, 4, 5, 4, 4, 6, 6, 6]
    found = list(native.encoded(_read(shapes), iter(_stream(*widths)), batch_size=4))
    assert sorted(found) == [(i, i) for i in range(len(widths))]
    # five of width 4: a whole batch and one that is filled up to it; others to a power of two
    assert shapes == [(4, 4), (2, 5), (4, 4), (4, 6)]


def test_images_of_one_shape_keep_their_order():
    found = native.encoded(_read([]), iter(_stream(*[4] * 7)), batch_size=3)
    assert [what for what, _ in found] == list(range(7))
    assert list(native.encoded(_read([]), iter(()), batch_size=3)) == []


def test_no_more_is_read_than_is_needed():
    read = []

    def images():
        for item in _stream(*[4] * 9):
            read.append(item[0])
            yield item

    found = native.encoded(_read([]), images(), batch_size=2)
    next(found)
    assert read == [0, 1, 2, 3]  # the batch that is worked on, and the one before


def test_sides_are_multiples_of_the_patch():
    assert native.floored((33, 64), 16) == (32, 64)
    with pytest.raises(InputError, match="15x64"):
        native.floored((15, 64), 16)
    np.testing.assert_array_equal(native.unit(np.array([0, 255], np.uint8)), [0, 1])
    np.testing.assert_array_equal(native.unit(np.array([0.25])), np.float32([0.25]))
