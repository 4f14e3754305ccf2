"""The evaluation `purity`, for networks whose answer is known."""

import dataclasses

import numpy as np
import pytest

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.methods.base import Features
from tests.evals import fakes

_RNG = np.random.default_rng(0)


def _scenes(count=5):
    """Images [count, 16, 16, 3] of two halves in two colours that differ from image to image, and
    their masks."""
    images, masks = np.empty((count, 16, 16, 3), np.uint8), np.zeros((count, 16, 16), np.uint8)
    for image, mask in zip(images, masks):
        edge = 4 * _RNG.integers(1, 4)
        mask[:, edge:] = 1
        image[:] = np.where(mask[..., None] == 1, (250, 5, 10), (5, 240, 20))
        mask[:4, :4] = 255
    return images, masks


def _case(encoder, **changes):
    images, masks = _scenes()
    source = fakes.Source(images, masks=masks)
    section = evals.new("purity", k=2, **changes)
    return evals.Case(encoder, section, source, source, patch=4, batch_size=2)


def test_raw_pixels_tell_two_colours_apart():
    case = _case(evals.raw_pixels(4))
    scores = evals.TYPES["purity"].run(case)
    assert scores["purity"] == scores["purity_ari"] == scores["purity_nmi"] == 100
    assert scores["purity_clusters"] == 2 and scores["purity_modes"] > 40
    drawn = evals.TYPES["purity"].figures(case)
    truth = drawn["clusters"].rows[0][1].labels
    assert truth[0, 0] == -1 and set(truth.ravel()) == {-1, 0, 1}
    source = fakes.Source(fakes.images(3, 16, 16), masks=np.full((3, 16, 16), 255, np.uint8))
    with pytest.raises(InputError):  # no patch has a label
        evals.TYPES["purity"].run(dataclasses.replace(case, test=source, extracted={}))


class Network:
    """Stands for a network of a method that shows localization maps, which are the colours, or
    clusters, which are told from them."""

    def __init__(self, *shown):
        self.config, self._shown = {}, shown

    def __call__(self, images, *, extras=False):
        features = evals.raw_pixels(4)(images)
        b, h, w, _ = features.patches.shape
        maps = features.patches.reshape(b, h, w, 16, 3).mean(axis=3)
        every = {"localization": maps, "clusters": maps.argmax(axis=-1) * 2}
        shown = {name: every[name] for name in self._shown}
        return Features(features.image, None, features.patches, extras=shown)


@pytest.mark.parametrize(
    "name, kind", [("localization", "tokens"), ("clusters", "objects"), (None, "kmeans")]
)
def test_clusters_are_those_of_the_network_if_it_shows_its_own(name, kind):
    network = Network(*[name] if name else [])
    for choice in ("auto", kind):
        scores = evals.TYPES["purity"].run(_case(network, clusters=choice))
        assert scores["purity_ari"] == 100 and scores["purity_clusters"] == 2
    drawn = evals.TYPES["purity"].figures(_case(network))
    assert kind in drawn["clusters"].title
    for other in {"objects", "tokens"} - {kind}:
        with pytest.raises(InputError, match="clusters"):
            evals.TYPES["purity"].run(_case(network, clusters=other))
    raw = evals.TYPES["purity"].run(_case(evals.raw_pixels(4), clusters="objects"))
    assert raw["purity_clusters"] == 2  # k-means of what has no method
