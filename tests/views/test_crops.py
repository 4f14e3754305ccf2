"""Crops: host equals device equals jax.image.scale_and_translate."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.config import InputError
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


def muted_noise():
    """Noise that no cubic brings beyond black or white."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 56, 3))
    return noise.astype(np.uint8) // 2 + 64


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


def test_the_area_filter_takes_means_of_whole_source_pixels():
    """Mirrored, and of a box that ends at the image's edge; a box of less than a pixel has one."""
    image = muted_noise()
    boxes = np.array([[8, 16, 32, 40], [39.7, 55.6, 0.3, 0.4]], np.float32)
    views = crops.crops_host(image, boxes, 8, np.array([True, False]), area=True)
    means = image[8:, 16:].reshape(8, 4, 8, 5, 3).mean((1, 3))[:, ::-1]
    assert np.abs(views[0] - means).max() <= 0.5
    np.testing.assert_array_equal(views[1], np.broadcast_to(image[39, 55], (8, 8, 3)))


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


@pytest.mark.parametrize("size", [8, 32])
def test_bilinear_crops_equal_scale_and_translate(size):
    image = np.random.default_rng(1).random((40, 56, 3), np.float32)
    ours = crops.crops_host(image, BOXES, size, np.zeros(4, bool), bilinear=True)
    for box, got in zip(BOXES, ours, strict=True):
        scale = size / box[2:]
        want = REFERENCE(image, (size, size, 3), (0, 1), scale, -box[:2] * scale, method="linear")
        np.testing.assert_allclose(got, want, atol=1e-5)


def test_a_crop_of_its_own_size_copies_the_pixels():
    image = photograph()
    box, wanted = np.array([[4, 6, 16, 16]], np.float32), image[4:20, 6:22][:, ::-1]
    np.testing.assert_array_equal(crops.crop_host(image, box[0], 16, True), wanted)
    copied = on_device(image / 255.0, box, np.array([True]), 16)[0]
    np.testing.assert_allclose(copied * 255, wanted, atol=1e-3)


@pytest.mark.parametrize("area", [False, True])
def test_channels_are_cut_as_colours_are(area):
    """Five channels and one have the bits that they would have as RGB; floats lie as near."""
    image = muted_noise()
    five = np.concatenate([image[..., 1:], image], axis=-1)
    cut = crops.crops_host(five, BOXES, 8, FLIPS, area)
    rgb = crops.crops_host(image, BOXES, 8, FLIPS, area)
    np.testing.assert_array_equal(cut, np.concatenate([rgb[..., 1:], rgb], axis=-1))
    one = crops.crops_host(image[..., :1], BOXES, 8, FLIPS, area)
    np.testing.assert_array_equal(one, rgb[..., :1])
    floats = crops.crops_host((five / 255).astype(np.float32), BOXES, 8, FLIPS, area)
    assert floats.dtype == np.float32 and np.abs(floats * 255 - cut).max() <= 1.1


def test_five_float_channels_are_cut_alike_on_host_and_device():
    image = np.random.default_rng(0).uniform(0, 1, (40, 56, 5)).astype(np.float32)
    host = crops.crops_host(image, BOXES, 8, FLIPS)
    np.testing.assert_allclose(on_device(image, BOXES, FLIPS, 8), host, atol=1e-4)


def test_other_numbers_on_the_host_are_refused():
    with pytest.raises(InputError, match="data.crop_on"):
        crops.crop_host(np.zeros((8, 8, 3), np.uint16), (0, 0, 8, 8), 4, False)
