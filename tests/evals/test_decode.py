"""New decoders on frozen features, scores of networks that rebuild, and the pictures of both."""

from types import SimpleNamespace

import numpy as np
import pytest
from ml_collections import ConfigDict

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.features.latents import latents
from ssl_jax.features.network import adopt
from ssl_jax.methods.base import Features
from ssl_jax.models import tokenizer
from ssl_jax.scores import rebuild
from tests.evals import fakes

_RNG = np.random.default_rng(0)
_PATCH = 4
_SMALL = dict(width=16, depth=1, heads=2)


def _smooth(count, side=12):
    """uint8 images that a small decoder can learn: a colour in each corner, blended."""
    y, x = np.mgrid[:side, :side][..., None] / (side - 1)
    a, b, c, d = _RNG.integers(0, 256, (4, count, 1, 1, 3))
    blended = (1 - y) * ((1 - x) * a + x * b) + y * ((1 - x) * c + x * d)
    return blended.round().astype(np.uint8)


_IMAGES = fakes.Source(_smooth(160))


def _case():
    section = evals.new("decode", **_SMALL, epochs=12, batch=16, lr=1e-2)
    network = Network(evals.raw_pixels(_PATCH))
    return evals.Case(network, section, _IMAGES, _IMAGES, patch=_PATCH, batch_size=48)


class Network:
    """Patches are the pixels; or with tokens, one sparse token per column of the grid."""

    def __init__(self, function):
        self._function, self.calls = function, 0

    def __call__(self, images, *, extras=False):
        self.calls += 1
        found = self._function(images)
        return Features(found.image, None, found.patches, extras={} if extras else None)


def _baseline():
    """PSNR of the mean image."""
    images = np.stack([_IMAGES[i]["image"] for i in range(160)]) / 255
    return rebuild.psnr(images, np.broadcast_to(images.mean(axis=0), images.shape)).mean()


def test_a_decoder_learns_to_rebuild_what_the_features_hold():
    """The picture is of the same decoder, without new training."""
    scores = evals.TYPES["decode"].run(case := _case())
    assert scores.keys() == {"decode", "decode_ssim"}
    assert scores["decode"] > _baseline() + 6
    assert 0.5 < scores["decode_ssim"] <= 1
    calls = case.encoder.calls
    (picture,) = evals.TYPES["decode"].figures(case).values()
    assert case.encoder.calls == calls + 1
    pairs = [[panel.image for panel in row[:2]] for row in picture.rows]
    shown = [rebuild.psnr(*(np.asarray(x)[None] for x in pair)) for pair in pairs]
    assert len(shown) == 6 and np.mean(shown) == pytest.approx(scores["decode"], abs=4)


def test_random_crops_are_rebuilt():
    """STELLAR's: other crops in each epoch, the same in each test."""
    section = evals.new("decode", **_SMALL, epochs=2, batch=16, crop=12, crop_scale=(0.4, 1.0))
    network = Network(evals.raw_pixels(_PATCH))
    case = evals.Case(network, section, _IMAGES, _IMAGES, patch=_PATCH, batch_size=48)
    scores = evals.TYPES["decode"].run(case)
    assert np.isfinite(scores["decode"])
    scale = section.crop_scale
    first, again = (np.concatenate(list(case.batches(scale=scale))) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert first.shape == (160, 12, 12, 3)
    center = np.concatenate(list(case.batches()))
    assert np.abs(first - center).mean() > 0.02
    record = _IMAGES[0]
    one, other = (case.crop_of(record, scale, 0, epoch) for epoch in (0, 1))
    assert not np.array_equal(one, other)
    for changes in (dict(crop=0), dict(crop_scale=(1.0, 0.4)), dict(crop_scale=(0.5,))):
        bad = ConfigDict(section.to_dict() | changes)
        with pytest.raises(InputError, match="crop"):
            evals.TYPES["decode"].run(evals.Case(network, bad, _IMAGES, _IMAGES, patch=_PATCH))


class Sparse(Network):
    """Two tokens and their maps."""

    def __call__(self, images, *, extras=False):
        maps = np.zeros((len(images), 3, 3, 2))
        maps[:, :, :2, 0] = maps[:, :, 2, 1] = 1
        tokens = np.stack([np.full((len(images), 4), 3.0), np.full((len(images), 4), 7.0)], axis=1)
        patches = np.zeros((len(images), 3, 3, 4))
        shown = {"tokens": tokens, "localization": maps} if extras else None
        return Features(None, None, patches, extras=shown)


def test_what_the_decoder_gets():
    images = np.zeros((2, 12, 12, 3), np.float32)
    low_rank = np.asarray(latents(adopt(Sparse(None)), images, "sparse"))
    assert low_rank.shape == (2, 3, 3, 4)
    np.testing.assert_array_equal(low_rank[..., 0], [[[3, 3, 7]] * 3] * 2)
    np.testing.assert_array_equal(latents(adopt(Sparse(None)), images), low_rank)
    assert not np.any(latents(adopt(Sparse(None)), images, "dense"))
    dense = Network(evals.raw_pixels(_PATCH))
    assert latents(adopt(dense), images).shape == (2, 3, 3, 48)
    with pytest.raises(InputError, match="tokens"):
        latents(adopt(dense), images, "sparse")


class Rebuilder:
    """Rebuilds images a little darker."""

    config = None

    def __call__(self, images, *, extras=False):
        return Features(None, None, None, extras={"rebuilt": np.clip(images - 0.1, 0, 1)})


def test_reconstruct_says_all_that_psnr_says_and_more():
    images = fakes.Source(fakes.images(5, 12, 12))
    found = {}
    for type in ("psnr", "reconstruct"):
        section = evals.new(type)
        case = evals.Case(Rebuilder(), section, images, images, patch=4, batch_size=3)
        found |= evals.TYPES[type].run(case)
    raw = np.stack([images[i]["image"] for i in range(5)]) / np.float32(255)
    darker = np.clip(raw - 0.1, 0, 1)
    assert found["psnr"] == found["reconstruct"]
    assert found["psnr"] == pytest.approx(rebuild.psnr(raw, darker).mean(), abs=1e-4)
    assert found["reconstruct_ssim"] == pytest.approx(rebuild.ssim(raw, darker).mean(), abs=1e-5)
    (picture,) = evals.TYPES["reconstruct"].figures(case).values()
    assert len(picture.rows) == 3  # of the first batch
    np.testing.assert_allclose(picture.rows[2][1].image, darker[2])
    other = evals.Case(Network(evals.raw_pixels(4)), evals.new("psnr"), images, images, patch=4)
    with pytest.raises(InputError, match="psnr"):  # does not rebuild
        evals.TYPES["psnr"].run(other)


def test_codes_are_scored_at_the_size_of_the_tokenizer(monkeypatch):
    """Patches of 12 pixels and cells of 16, which are white."""
    config = ConfigDict(dict(method="m", model=dict(patch=12), m=dict(tokenizer="")))

    class Coded:
        def __call__(self, images, *, extras=False):
            codes = np.zeros((len(images), 1, 1), int)
            return Features(None, None, None, extras={"rebuilt": codes})

    def decode(path, codes, whole):
        return np.ones((len(codes), *(2 * (16 if whole else 12,)), 3), np.float32)

    Coded.config = config
    monkeypatch.setattr(tokenizer, "target", lambda *_: SimpleNamespace(decode=decode))
    images = fakes.Source(fakes.images(3, 12, 12))
    pixels = np.stack([images[i]["image"] for i in range(3)]) / np.float32(255)
    larger = np.clip(np.asarray(tokenizer.resize(pixels, 16, 16)), 0, 1)
    for whole, shown in ((False, pixels), (True, larger)):
        section = evals.new("reconstruct", whole=whole)
        case = evals.Case(Coded(), section, images, images, patch=12, batch_size=3)
        wanted = rebuild.psnr(shown, np.ones_like(shown)).mean()
        assert evals.TYPES["reconstruct"].run(case)["reconstruct"] == pytest.approx(wanted, 1e-5)
