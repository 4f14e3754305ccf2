"""Photometric operations against Pillow, OpenCV, colorsys and float64 references; probabilities.

Pillow rounds to 8 bit after every operation, ours stays in float32.
"""

import colorsys
import functools

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from ssl_jax.config import InputError
from ssl_jax.views import photometric
from ssl_jax.views.photometric import Photometric

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (24, 20, 3)).astype(np.uint8)
IMAGE[0, :6] = [[0, 0, 0], [255, 255, 255], [128, 128, 128], [255, 0, 0], [0, 255, 255], [7, 7, 8]]
KINDS = [("BRIGHTNESS", "Brightness"), ("CONTRAST", "Contrast"), ("SATURATION", "Color")]
BLEND, HUE = jax.jit(photometric.blend), jax.jit(photometric.shift_hue)
JITTER = jax.jit(photometric.jitter)
BLUR = jax.jit(photometric.blur, static_argnames="radius")
AUGMENT = jax.jit(photometric.augment, static_argnums=2)
DINO = Photometric((0.4, 0.4, 0.2, 0.1), 0.8, 0.2, 0.5, (0.1, 2.0), 0.2)


def rows(image):
    return jnp.swapaxes(jnp.asarray(image, jnp.float32) / 255, -1, -2)


def pixels(rows):
    """[..., H, W, 3] in [0, 255]."""
    return np.swapaxes(np.asarray(rows), -1, -2) * 255


@pytest.mark.parametrize("factor", [0.0, 0.6, 1.0, 1.4])
@pytest.mark.parametrize("name, pillows", KINDS)
def test_blends_equal_pillow(name, pillows, factor):
    """Within 1.5/255: Pillow rounds the gray level and the result."""
    kind, enhance = getattr(photometric, name), getattr(ImageEnhance, pillows)
    got = pixels(BLEND(rows(IMAGE), jnp.float32(factor), jnp.int32(kind)))
    want = np.asarray(enhance(Image.fromarray(IMAGE)).enhance(factor), float)
    assert np.abs(got - want).max() <= 1.5
    if factor == 1.0:
        np.testing.assert_allclose(got, IMAGE, atol=1e-4)


def hue_reference(image, shift):
    """float64, colorsys, pixel by pixel."""
    out = np.empty(image.shape)
    for place in np.ndindex(image.shape[:2]):
        h, s, v = colorsys.rgb_to_hsv(*(image[place] / 255.0))
        out[place] = colorsys.hsv_to_rgb((h + shift) % 1.0, s, v)
    return out * 255


@pytest.mark.parametrize("shift", [-0.5, -0.1, 0.03, 0.1, 0.5])
def test_hue_equals_colorsys(shift):
    got = pixels(HUE(rows(IMAGE), jnp.float32(shift)))
    np.testing.assert_allclose(got, hue_reference(IMAGE, shift), atol=2e-3)


def test_grayscale_and_solarize_equal_pillow():
    want = np.asarray(Image.fromarray(IMAGE).convert("L"), float)[..., None]
    assert np.abs(pixels(photometric.grayscale(rows(IMAGE))) - want).max() <= 0.51
    want = np.asarray(ImageOps.solarize(Image.fromarray(IMAGE), threshold=128), float)
    np.testing.assert_allclose(pixels(photometric.solarize(rows(IMAGE))), want, atol=1e-4)


def opencv_blur(side, sigma):
    exact = IMAGE.astype(np.float64)
    return cv2.GaussianBlur(exact, (side, side), sigma, borderType=cv2.BORDER_REPLICATE)


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 2.0])
def test_blur_equals_opencv(sigma):
    """Same taps and border in float: 1e-3/255."""
    got = pixels(BLUR(rows(IMAGE), jnp.float32(sigma), radius=8))
    np.testing.assert_allclose(got, opencv_blur(17, sigma), atol=1e-2)


def jitter_reference(image, factors, shift, order):
    """float64, the four operations one after another in the given order."""
    x = image / 255.0
    blends, before = list(order[:3]), order[3]
    for op in [*blends[:before], 3, *blends[before:]]:
        luma = (x @ np.array([0.299, 0.587, 0.114]))[..., None]
        if op == 3:
            x = hue_reference(x * 255, shift) / 255
        else:
            toward = [0.0, luma.mean(), luma][op]
            x = np.clip(factors[op] * x + (1 - factors[op]) * toward, 0, 1)
    return x * 255


def test_jitter_applies_the_four_operations_in_every_order():
    image, factors, shift = IMAGE[:6, :6], np.array([1.3, 1.4, 0.7]), 0.08
    assert len({tuple(order) for order in photometric.ORDERS}) == 24
    batch = jnp.broadcast_to(rows(image), (24, 6, 3, 6))
    orders = jnp.asarray(photometric.ORDERS)
    drawn = np.tile(np.float32(factors), (24, 1)), np.full(24, shift, np.float32)
    got = pixels(JITTER(batch, *drawn, orders))
    want = [jitter_reference(image, factors, shift, order) for order in photometric.ORDERS]
    np.testing.assert_allclose(got, want, atol=0.01)
    # Else the test could not tell orders apart.
    assert len({np.round(w, 3).tobytes() for w in want}) >= 12
    neutral = JITTER(batch, np.ones((24, 3), np.float32), np.zeros(24, np.float32), orders)
    np.testing.assert_array_equal(neutral, batch)


@functools.partial(jax.jit, static_argnums=(0, 1))
def uniforms(n, views=1):
    """[n, views, DRAWS]."""
    return photometric.uniforms(jax.random.split(jax.random.key(0), (n, views)))


def random_rows(n, v=1, size=6):
    return jnp.asarray(np.random.default_rng(1).random((n, v, size, 3, size), np.float32))


@pytest.mark.parametrize(
    "recipe, prob, tolerance, op",  # 4 sigma
    [
        (Photometric(gray_prob=0.2), 0.2, 0.042, photometric.grayscale),
        (Photometric(solarize_prob=0.2), 0.2, 0.042, photometric.solarize),
        (Photometric((0.4, 0.4, 0.2, 0.1), 0.8), 0.8, 0.052, None),
        (Photometric(blur_prob=0.5, blur_radius=(1.0, 2.0)), 0.5, 0.052, None),
    ],
)
def test_an_operation_happens_with_its_probability_or_not_at_all(recipe, prob, tolerance, op):
    x = random_rows(1500)
    out = np.asarray(AUGMENT(x, uniforms(1500), (recipe,)))
    changed = (out != np.asarray(x)).any((1, 2, 3, 4))
    assert changed.mean() == pytest.approx(prob, abs=tolerance)
    if op:
        np.testing.assert_allclose(out[changed], np.asarray(op(x))[changed], atol=1e-6)


def blurred_and_solarized(out, x):
    """Which of [n] views were blurred, which inverted; x has only values below 1/2."""
    solarized = np.asarray(out).min((1, 2, 3, 4)) > 0.5
    back = np.where(solarized[:, None, None, None, None], 1 - np.asarray(out), np.asarray(out))
    return (np.abs(back - np.asarray(x)) > 1e-3).any((1, 2, 3, 4)), solarized


def test_a_view_takes_one_pair_or_the_other():
    """FLSL's code: with 1/2 each either {blur .5} or {blur .1, then solarize .2}."""
    x = jnp.where(random_rows(1500) < 0.5, 0.25, 0.375)
    draw = functools.partial(
        Photometric, blur_radius=(1.0, 2.0), solarize_threshold=0.0, alternative_prob=0.5
    )
    certain = draw(blur_prob=1.0, alternative=(0.0, 1.0))
    blur, inverted = blurred_and_solarized(AUGMENT(x, uniforms(1500), (certain,)), x)
    np.testing.assert_array_equal(blur, ~inverted)  # never both, never none
    assert inverted.mean() == pytest.approx(0.5, abs=0.052)  # 4 sigma
    published = draw(blur_prob=0.5, alternative=(0.1, 0.2))
    blur, inverted = blurred_and_solarized(AUGMENT(x, uniforms(1500), (published,)), x)
    assert blur.mean() == pytest.approx(0.3, abs=0.048)
    assert inverted.mean() == pytest.approx(0.1, abs=0.031)
    assert (blur & inverted).mean() == pytest.approx(0.01, abs=0.0103)


def test_jitter_strengths_are_the_stated_ones():
    """On a gray image only brightness acts: factors U(0.6, 1.4)."""
    x = jnp.full((1500, 1, 6, 3, 6), 0.5)
    out = AUGMENT(x, uniforms(1500), (Photometric((0.4, 0.4, 0.2, 0.1), 1.0),))
    factor = np.asarray(out)[:, 0, 0, 0, 0] / 0.5
    assert 0.6 - 1e-6 <= factor.min() < 0.61 and 1.39 < factor.max() <= 1.4 + 1e-6
    assert factor.mean() == pytest.approx(1, abs=0.024)


def test_blur_strengths_are_the_stated_ones_and_the_kernel_is_wide_enough():
    """Radius (2, 2) against a kernel of 8 standard deviations: 0.1/255."""
    x = jnp.broadcast_to(rows(IMAGE), (1, 1, 24, 3, 20))
    recipe = Photometric(blur_prob=1.0, blur_radius=(2.0, 2.0))
    got = pixels(AUGMENT(x, uniforms(1), (recipe,)))[0, 0]
    np.testing.assert_allclose(got, opencv_blur(33, 2.0), atol=0.1)


def test_views_have_their_own_recipes_and_an_empty_recipe_keeps_every_bit():
    x = random_rows(8, 3)
    u = uniforms(8, 3)
    out = AUGMENT(x, u, (Photometric(), Photometric(gray_prob=1.0), Photometric(solarize_prob=1.0)))
    np.testing.assert_array_equal(out[:, 0], x[:, 0])
    np.testing.assert_allclose(out[:, 1], photometric.grayscale(x[:, 1]), atol=1e-6)
    third = np.asarray(x[:, 2])
    np.testing.assert_allclose(out[:, 2], np.where(third >= 0.5, 1 - third, third), atol=1e-6)


def test_channels_that_are_no_colours_are_changed_one_by_one():
    """Brightness, contrast about the channel's own mean, and solarisation; colours are refused."""
    image = np.random.default_rng(1).uniform(0, 1, (1, 1, 8, 5, 6)).astype(np.float32)
    order = jnp.asarray(photometric.ORDERS[:1])[None]  # brightness, contrast, saturation
    factors = jnp.asarray([[[0.8, 1.3, 1.0]]], jnp.float32)
    got = JITTER(jnp.asarray(image), factors, jnp.zeros((1, 1), jnp.float32), order)
    bright = np.clip(0.8 * image.astype(np.float64), 0, 1)
    mean = bright.mean(axis=(-3, -1), keepdims=True)
    np.testing.assert_allclose(got, np.clip(1.3 * bright - 0.3 * mean, 0, 1), atol=1e-6)
    u = jnp.zeros((1, 1, photometric.DRAWS), jnp.float32)
    turned = AUGMENT(jnp.asarray(image), u, (Photometric(solarize_prob=1.0),))
    np.testing.assert_allclose(turned, np.where(image >= 0.5, 1 - image, image), atol=1e-6)
    for colours in (Photometric(gray_prob=0.1), Photometric((0, 0, 0.1, 0), 0.5)):
        with pytest.raises(InputError, match="gray_prob=0.0"):
            photometric.augment(jnp.asarray(image), u, (colours,))


def test_range_and_constant_images():
    levels = np.array([0.0, 1.0, 0.5, 0.25] * 16, np.float32)[:, None, None, None, None]
    x = np.broadcast_to(levels, (64, 2, 6, 3, 6))
    out = np.asarray(AUGMENT(x, uniforms(64, 2), (DINO, DINO)))
    assert np.isfinite(out).all() and out.min() >= 0 and out.max() <= 1
    # No operation makes texture (up to rounding) or colour out of nothing.
    assert np.ptp(out, axis=(2, 3, 4)).max() < 1e-5


def test_nan_stays_in_its_view_and_is_not_hidden():
    x = np.array(random_rows(64, 2))
    x[:, 1, 2, 1, 3] = np.nan
    out = np.asarray(AUGMENT(x, uniforms(64, 2), (DINO, DINO)))
    assert np.isfinite(out[:, 0]).all()
    assert np.isnan(out[:, 1]).any((1, 2, 3)).all()
