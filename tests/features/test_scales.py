"""Images at several scales."""

import numpy as np
import pytest
from PIL import Image

from ssl_jax.config import InputError
from ssl_jax.features import scales, windows
from ssl_jax.features.feed import View
from tests.evals import fakes


def test_images_are_shrunk_to_fit_and_never_enlarged():
    image = fakes.images(1, 60, 100)[0]
    assert scales.shrunk(image, 50).shape == (30, 50, 3)
    assert scales.shrunk(image, 100) is image and scales.shrunk(image, 0) is image
    small = Image.fromarray(image).resize((50, 30), Image.Resampling.LANCZOS)
    np.testing.assert_array_equal(scales.shrunk(image, 50), small)


def test_scaled_images_lose_what_fills_no_patch_at_the_bottom_and_the_right():
    image = windows.unit(fakes.images(1, 19, 30)[0])
    np.testing.assert_array_equal(scales.scaled(image, 1, 4), image[:16, :28])
    half = scales.scaled(image, 0.5, 4)
    assert half.shape == (8, 12, 3)
    # half-pixel centres: at scale 1/2, the mean of 2 x 2 pixels where the size is even
    means = image[:18].reshape(9, 2, 15, 2, 3).mean((1, 3))
    even = scales.scaled(image[:18], 0.5, 1)
    np.testing.assert_allclose(even, means, atol=1e-6)
    with pytest.raises(InputError, match="patch"):
        scales.scaled(image, 0.1, 4)


def test_vectors_are_summed_over_scales_whatever_the_sizes_of_images():
    images = [*fakes.images(3, 16, 24), *fakes.images(2, 20, 12, seed=1)]
    images += [*fakes.images(1, 16, 24)]
    encoder, shapes = fakes.counted_features()
    factors, numbers = (1.0, 2**-0.5, 0.5), np.array([0, 1, 2, 3, 4, 6, 5])
    source = fakes.Source([*images, images[0]], broken=[6])

    def show(row, record):
        return View(int(numbers[row]), record["image"])

    how = dict(scales=factors, patch=4, kind="image", batch_size=2)
    about, sums = scales.encoded(encoder, source, numbers, show, **how)
    assert about == [0, 1, 2, 3, 4, 5]  # but for the one that cannot be read
    assert len(set(shapes)) == len(shapes) == 6  # each shape is compiled once
    single = fakes.counted_features()[0]
    for image, vector in zip(images, sums, strict=True):
        views = (scales.scaled(windows.unit(image), factor, 4)[None] for factor in factors)
        expected = sum(np.asarray(single(view).image[0]) for view in views)
        np.testing.assert_allclose(vector, expected, atol=1e-5)
