"""erasing.py: where, how large and by what a view is erased."""

import jax
import numpy as np
import pytest

from ssl_jax.views.erasing import Erasing, erase, rectangle

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.1)
HALF = Erasing(0.5, mean=MEAN, std=STD)


def rows(count, height=16, width=12):
    """[count, 1, height, 3, width], all 2.0, so that what is erased shows."""
    return np.full((count, 1, height, 3, width), 2.0, np.float32)


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)[:, None]


def test_a_rectangle_of_every_other_view_becomes_noise():
    out = np.asarray(erase(rows(600), keys(600), HALF))[:, 0]
    gone = (out != 2.0).all(axis=2)  # [600, 16, 12]
    np.testing.assert_array_equal(gone, (out != 2.0).any(axis=2))
    some = gone.any(axis=(1, 2))
    assert some.mean() == pytest.approx(0.5, abs=0.07)
    tall, wide = gone.any(axis=2).sum(1)[some], gone.any(axis=1).sum(1)[some]
    np.testing.assert_array_equal(tall * wide, gone.sum(axis=(1, 2))[some])  # full rectangles
    area = tall * wide / (16 * 12)
    assert area.min() < 0.06 and 0.28 < area.max() < 0.40
    assert area.mean() == pytest.approx((0.02 + 1 / 3) / 2, abs=0.02)
    ratio = tall / wide
    assert ratio.min() < 0.5 and ratio.max() > 2
    assert abs(np.log(ratio).mean()) < 0.2
    assert gone[some][:, 0, 0].any() and gone[some][:, -1, -1].any()  # up to the corners
    noise = np.moveaxis(out, 2, -1)[gone]
    np.testing.assert_allclose(noise.mean(0), MEAN, atol=0.02)
    np.testing.assert_allclose(noise.std(0), STD, atol=0.02)


def test_a_view_depends_on_its_own_key():
    images = np.random.default_rng(0).random(rows(600).shape, np.float32)
    whole = np.asarray(erase(images, keys(600), HALF))
    turned = np.asarray(erase(images[::-1], keys(600)[::-1], HALF))
    np.testing.assert_array_equal(turned[::-1], whole)


def test_what_does_not_fit_is_left_alone():
    erasing = Erasing(1.0, area=(0.9, 0.9), ratio=(3.0, 3.0))  # always taller than the view
    assert float(rectangle(jax.random.key(0), 16, 12, erasing)[3]) == 0  # no row is erased
