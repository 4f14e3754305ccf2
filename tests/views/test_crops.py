"""Crops: host equals device equals jax.image.scale_and_translate; flips; NaN; errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.views import boxes as boxes_lib
from ssl_jax.views import crops

BOXES = np.array(
    [[0, 0, 40, 56], [5, 9, 20, 12], [30, 40, 6, 9], [3.25, 7.5, 21.5, 30.125]], np.float32
)
FLIPS = np.array([False, True, False, True])


def photograph():
    """A smooth image with edges, uint8 [40, 56, 3]."""
    y, x = np.mgrid[0:40, 0:56]
    disc = ((y - 18) ** 2 + (x - 30) ** 2 < 120)[..., None]
    ramp = np.stack([y * 6, x * 4, 120 + 60 * np.sin(x / 3)], -1)
    return np.where(disc, [200, 90, 30], ramp).clip(0, 255).astype(np.uint8)


def noise():
    return np.random.default_rng(0).integers(0, 256, (40, 56, 3)).astype(np.uint8)


def muted_noise():
    """Noise that no cubic brings beyond black or white."""
    return noise() // 2 + 64


def rows(image):
    return jnp.swapaxes(jnp.asarray(image, jnp.float32), -1, -2)


def on_device(image, box, flips, size):
    """float32 [V, size, size, 3] of one image in [0, 1]."""
    cut = jax.jit(crops.crops_device, static_argnums=3)
    return np.swapaxes(cut(rows(image)[None], box[None], flips[None], size)[0], -1, -2)


@pytest.mark.parametrize("make", [photograph, muted_noise])
@pytest.mark.parametrize("size", [8, 32])
def test_host_and_device_cut_the_same_view(make, size):
    """Within 1.1/255 at the worst pixel: Pillow rounds to 8 bit after each axis."""
    host = crops.crops_host(make(), BOXES, size, FLIPS)
    assert host.dtype == np.uint8 and host.shape == (4, size, size, 3)
    error = np.abs(on_device(make() / 255.0, BOXES, FLIPS, size) * 255 - host)
    assert error.max() <= 1.1 and error.mean() <= 0.35


def test_clipping_between_pillows_passes_matters_in_few_pixels_of_noise():
    host = crops.crops_host(noise(), BOXES, 32, FLIPS)
    error = np.abs(on_device(noise() / 255.0, BOXES, FLIPS, 32) * 255 - host)
    assert error.max() <= 16 and np.mean(error > 1.1) <= 0.01 and error.mean() <= 0.4


REFERENCE = functools.partial(
    jax.image.scale_and_translate, antialias=True, precision=jax.lax.Precision.HIGHEST
)


@pytest.mark.parametrize("size", [8, 32])
def test_device_equals_scale_and_translate(size):
    image = np.random.default_rng(1).random((40, 56, 3), np.float32)
    ours = on_device(image, BOXES, np.zeros(4, bool), size)
    for box, got in zip(BOXES, ours, strict=True):
        scale = size / box[2:]
        want = REFERENCE(image, (size, size, 3), (0, 1), scale, -box[:2] * scale, method="cubic")
        np.testing.assert_allclose(got, np.clip(want, 0, 1), atol=1e-5)


def test_a_crop_of_its_own_size_copies_the_pixels():
    image = photograph()
    box, wanted = np.array([[4, 6, 16, 16]], np.float32), image[4:20, 6:22][:, ::-1]
    np.testing.assert_array_equal(crops.crop_host(image, box[0], 16, True), wanted)
    copied = on_device(image / 255.0, box, np.array([True]), 16)[0]
    np.testing.assert_allclose(copied * 255, wanted, atol=1e-3)


def test_flips_mirror_exactly():
    ways = [np.full(4, flip) for flip in (False, True)]
    device = [on_device(photograph() / 255.0, BOXES, flips, 8) for flips in ways]
    np.testing.assert_allclose(device[1], device[0][:, :, ::-1], atol=1e-6)
    host = [crops.crops_host(photograph(), BOXES, 8, flips) for flips in ways]
    np.testing.assert_array_equal(host[1], host[0][:, :, ::-1])


def test_a_composed_crop_approximates_cropping_twice():
    y, x = np.mgrid[0:40, 0:56]
    # Linear: resampling is exact inside.
    image = np.stack([y / 40, x / 56, (x + y) / 96], -1).astype(np.float32)
    outer, inner = np.array([4, 6, 24, 32], np.float32), np.array([4, 3, 8, 10], np.float32)
    first = on_device(image, outer[None], np.array([True]), 16)[0]
    twice = on_device(first, inner[None], np.array([False]), 8)[0]
    box = boxes_lib.compose(outer, inner, (16, 16), np.array(True))
    once = on_device(image, box[None], np.array([True]), 8)[0]
    np.testing.assert_allclose(once, twice, atol=2e-3)


def test_rows_of_weights_sum_to_one_and_constant_images_stay():
    starts, lengths = jnp.array([0.0, 3.5]), jnp.array([40.0, 2.25])
    w = np.asarray(crops.weights(starts, lengths, 40, 16, jnp.array([False, True])))
    assert w.shape == (2, 16, 40)
    np.testing.assert_allclose(w.sum(-1), 1, atol=1e-6)
    assert np.all(np.diff(w[1].argmax(-1)) <= 0)  # reversed


def test_nan_reaches_all_views_of_its_image_and_no_other():
    image = np.full((2, 40, 3, 56), 0.5, np.float32)
    image[1, 39, 2, 55] = np.nan
    out = np.asarray(crops.crops_device(image, np.stack([BOXES] * 2), np.stack([FLIPS] * 2), 8))
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1]).reshape(4, -1).any(1).all()


def test_float_image_on_the_host_is_refused():
    with pytest.raises(InputError, match="data.crop_on"):
        crops.crop_host(np.zeros((8, 8, 3), np.float32), (0, 0, 8, 8), 4, False)
