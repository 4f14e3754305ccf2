"""Streams of images of many sizes: batches of one shape, each image with its own features."""

import numpy as np

from ssl_jax.features import native


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


def test_few_images_wait_however_many_shapes_there_are():
    read = []

    def images():
        for item in _stream(*range(4, 44), *[4] * 3):  # forty shapes
            read.append(item[0])
            yield item

    found = native.encoded(_read([]), images(), batch_size=2)
    assert next(found) == (0, 0) and len(read) <= 18
    assert sorted([(0, 0), *found]) == [(i, i) for i in range(43)]
    assert list(native.encoded(_read([]), iter(()), batch_size=3)) == []
