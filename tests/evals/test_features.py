"""Feature extraction: one trace, padding without effect, what is cut off, bad records; the
raw-pixel baseline.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.evals import features
from tests.evals import fakes


def test_padding_changes_no_feature_and_there_is_one_trace():
    source = fakes.Source(
        fakes.images(7), labels=np.arange(7) % 3, masks=np.zeros((7, 8, 8), np.uint8)
    )
    fn, shapes = fakes.counted_features()
    padded = features.extract(fn, source, batch_size=4, patches=True)
    assert shapes == [(4, 8, 8, 3)]
    whole = features.extract(fn, source, batch_size=7, patches=True)
    np.testing.assert_allclose(padded.image, whole.image, rtol=1e-6)
    np.testing.assert_allclose(padded.patches, whole.patches, rtol=1e-6)
    assert padded.image.shape == (7, 5) and padded.patches.shape == (7, 2, 2, 5)
    np.testing.assert_array_equal(padded.labels, np.arange(7) % 3)
    assert padded.masks.shape == (7, 8, 8) and padded.skipped == ()


def test_rows_follow_the_indices_and_pixels_are_in_0_1():
    pixels = fakes.images(6)
    seen = features.extract(
        lambda x: features.Pixels(jnp.asarray(x).reshape(len(x), -1), jnp.zeros((len(x), 1, 1, 1))),
        fakes.Source(pixels, labels=np.arange(6)),
        batch_size=2,
        indices=[4, 0, 3],
    )
    np.testing.assert_array_equal(seen.index, [4, 0, 3])
    np.testing.assert_array_equal(seen.labels, [4, 0, 3])
    np.testing.assert_array_equal(
        seen.image, pixels[[4, 0, 3]].reshape(3, -1).astype(np.float32) / np.float32(255)
    )
    assert seen.patches is None


def test_float_images_pass_unchanged():
    pixels = np.random.default_rng(0).random((2, 4, 4, 3)).astype(np.float32)
    got = features.images_of(fakes.Source(pixels), [1])
    np.testing.assert_array_equal(got, pixels[1:])


def test_image_and_mask_are_cut_alike_around_the_centre():
    masks = np.arange(2 * 10 * 13).reshape(2, 10, 13).astype(np.uint8)
    source = fakes.Source(fakes.images(2, 10, 13), masks=masks)
    fn, shapes = fakes.counted_features(patch=4)
    out = features.extract(fn, source, batch_size=2, patches=True, multiple=4)
    assert shapes == [(2, 8, 12, 3)]  # 10x13, reduced to a multiple of 4
    np.testing.assert_array_equal(out.masks, masks[:, 1:9, 0:12])
    cropped = features.extract(fn, source, batch_size=2, patches=True, crop=8, multiple=4)
    np.testing.assert_array_equal(cropped.masks, masks[:, 1:9, 2:10])
    np.testing.assert_allclose(
        cropped.patches, fn(features.images_of(source, [0, 1], crop=8)).patches, rtol=1e-6
    )


def test_unreadable_records_are_skipped_and_named():
    source = fakes.Source(fakes.images(6), labels=np.arange(6), broken=(1, 4, 5))
    fn, shapes = fakes.counted_features()
    out = features.extract(fn, source, batch_size=2)
    np.testing.assert_array_equal(out.labels, [0, 2, 3])
    assert out.skipped == ("record/1", "record/4", "record/5") and len(shapes) == 1
    everything = features.extract(fn, fakes.Source(fakes.images(6)), batch_size=2)
    np.testing.assert_allclose(out.image, everything.image[[0, 2, 3]], rtol=1e-6)


@pytest.mark.parametrize(
    "source, options, message",
    [
        (
            fakes.Source(fakes.images(2), size=None),
            {},
            "differ in size; set data.size of the evaluation",
        ),
        (fakes.Source(fakes.images(2), broken=(0, 1)), {}, "no readable image"),
        (fakes.Source(fakes.images(2)), {"crop": 9}, "crop is 9 pixels but the images are 8x8"),
        (fakes.Source(fakes.images(2)), {"multiple": 16}, "smaller than one patch"),
        (
            fakes.Source(np.full((2, 8, 8, 3), np.nan, np.float32)),
            {},
            r"not finite \(first: record/0\)",
        ),
    ],
)
def test_what_cannot_work_is_named(source, options, message):
    fn, _ = fakes.counted_features()
    with pytest.raises(InputError, match=message):
        features.extract(fn, source, batch_size=2, **options)


def test_subset_is_drawn_without_repetition_from_the_seed():
    a = features.subset(1000, 50, seed=3)
    assert len(np.unique(a)) == 50 and (np.diff(a) > 0).all() and a.max() > 700
    np.testing.assert_array_equal(a, features.subset(1000, 50, seed=3))
    assert not np.array_equal(a, features.subset(1000, 50, seed=4))
    np.testing.assert_array_equal(features.subset(5, 0, seed=0), np.arange(5))
    np.testing.assert_array_equal(features.subset(5, 9, seed=0), np.arange(5))


def test_raw_pixels_average_down_centre_and_cut_patches():
    x = np.random.default_rng(0).random((2, 32, 32, 3)).astype(np.float32)
    out = features.raw_pixels(8)(x)
    small = x.reshape(2, 16, 2, 16, 2, 3).mean(axis=(2, 4), dtype=np.float64)
    small -= small.mean(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(out.image, small.reshape(2, -1), atol=1e-6)
    assert out.patches.shape == (2, 4, 4, 192)
    np.testing.assert_allclose(
        out.patches[1, 2, 3], x[1, 16:24, 24:32].reshape(-1) - 0.5, atol=1e-6
    )


@pytest.mark.parametrize("size, cells", [(48, 16), (40, 16), (12, 16), (7, 3)])
def test_area_weights_keep_the_mean(size, cells):
    weights = features.area_weights(size, cells)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)  # each cell is an average
    np.testing.assert_allclose(
        weights.sum(axis=0), cells / size, rtol=1e-5
    )  # each pixel counts the same
