"""Clusters against masks: by hand, beside scikit-learn, and for networks whose answer is known."""

import dataclasses
import math

import numpy as np
import pytest
from sklearn import metrics

from ssl_jax import evals, settings
from ssl_jax.config import InputError
from ssl_jax.evals import purity
from ssl_jax.methods.base import Features
from tests.evals import fakes

_RNG = np.random.default_rng(0)


def test_modes_are_pure_within_regions_and_by_chance_without_them():
    labels = np.array([[0, 0, 0, 1, 1, 1]])
    towards = np.eye(2)[labels]  # one direction per region
    separate = purity.modes(towards, labels)
    s = math.exp(purity.SHARPNESS)
    share, chance = 2 * s / (2 * s + 3), 2 / 5
    assert separate == pytest.approx((share - chance) / (1 - chance))
    assert purity.modes(np.ones((1, 6, 2)), labels) == pytest.approx(0)
    assert purity.modes(towards, labels, 1000.0) == pytest.approx(1)
    mixed = purity.modes(towards, np.array([[0, 1, 0, 1, 0, 1]]))
    assert mixed < 0 < separate
    # Patches without a label take no part, as if they were not there.
    more = np.concatenate([towards, 5 * towards[:, :2] - 2], axis=1)
    ignored = np.concatenate([labels, [[255, 255]]], axis=1)
    assert purity.modes(more, ignored) == pytest.approx(separate)
    assert math.isnan(purity.modes(towards, np.zeros((1, 6), int)))


def test_agreement_leaves_out_what_is_not_labelled():
    clusters, labels = _RNG.integers(0, 4, (3, 5, 6)), _RNG.integers(0, 3, (3, 5, 6))
    labels[1][_RNG.random((5, 6)) < 0.4] = 255
    labels[2] = 255
    clusters[0] = 10 - labels[0]  # another name for the same
    found = purity.agreement(clusters, labels)
    assert (found.purity[0], found.nmi[0], found.ari[0]) == pytest.approx((1, 1, 1))
    known = labels[1] != 255
    mine, truth = clusters[1][known], labels[1][known]
    table = metrics.cluster.contingency_matrix(truth, mine)
    assert found.purity[1] == pytest.approx(table.max(axis=0).sum() / table.sum())
    assert found.ari[1] == pytest.approx(metrics.adjusted_rand_score(truth, mine))
    assert found.number[1] == len(np.unique(mine))
    assert found.nmi[1] == pytest.approx(metrics.normalized_mutual_info_score(truth, mine))
    assert all(math.isnan(column[2]) for column in found)


def test_kmeans_finds_directions_whatever_their_length():
    labels = np.arange(12).reshape(3, 4) % 3
    patches = np.eye(3, 5)[labels] * _RNG.uniform(0.1, 9, (2, 3, 4, 1))
    found = purity.kmeans(patches, 3)
    assert found.shape == (2, 3, 4) and found.dtype == np.int32
    result = purity.agreement(found, np.stack([labels] * 2))
    np.testing.assert_allclose(result.ari, 1)
    # No more clusters than there are different patches.
    assert len(np.unique(purity.kmeans(patches, 8)[0])) == 3
    assert (purity.kmeans(np.ones((1, 2, 2, 3)), 4) == 0).all()


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
    """Stands for a network of a method: its localization maps are the colours."""

    def __init__(self, method):
        self.config = settings.base_config(method)

    def __call__(self, images, *, extras=False):
        found = evals.raw_pixels(4)(images)
        b, h, w, _ = found.patches.shape
        colours = np.asarray(found.patches).reshape(b, h, w, 16, 3).mean(axis=3)
        maps = np.concatenate([colours, colours[..., :1] - 1], axis=-1)
        extras = {"localization": maps, "tokens": np.zeros((b, 4, 2))}
        return Features(found.image, None, found.patches, extras=extras)


def test_clusters_are_those_of_the_network_if_it_has_its_own():
    tokens = _case(Network("stellar"))
    assert purity.kind_of(tokens) == "tokens"
    scores = evals.TYPES["purity"].run(tokens)
    assert scores["purity_ari"] == 100 and scores["purity_clusters"] == 2
    cribo = _case(Network("cribo"))
    assert purity.kind_of(cribo) == "objects"
    scores = evals.TYPES["purity"].run(cribo)
    assert scores["purity"] > 95 and 2 <= scores["purity_clusters"] <= 12
    assert purity.kind_of(_case(Network("dino"))) == "kmeans"
    assert purity.kind_of(_case(evals.raw_pixels(4), clusters="objects")) == "kmeans"
    with pytest.raises(InputError, match="clusters"):
        purity.kind_of(_case(Network("stellar"), clusters="objects"))
