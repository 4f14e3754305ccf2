"""Clusters against masks: by hand and beside scikit-learn."""

import math

import numpy as np
import pytest
from sklearn import metrics

from ssl_jax.scores import clusters

_RNG = np.random.default_rng(0)


def test_modes_are_pure_within_regions_and_by_chance_without_them():
    labels = np.array([[0, 0, 0, 1, 1, 1]])
    towards = np.eye(2)[labels]  # one direction per region
    separate = clusters.modes(towards, labels)
    s = math.exp(clusters.SHARPNESS)
    share, chance = 2 * s / (2 * s + 3), 2 / 5
    assert separate == pytest.approx((share - chance) / (1 - chance))
    assert clusters.modes(np.ones((1, 6, 2)), labels) == pytest.approx(0)
    assert clusters.modes(towards, labels, 1000.0) == pytest.approx(1)
    mixed = clusters.modes(towards, np.array([[0, 1, 0, 1, 0, 1]]))
    assert mixed < 0 < separate
    wide = 300 * np.concatenate([towards, 0 * towards[:, :1]], axis=1)
    labels_of_wide = np.concatenate([labels, [[0]]], axis=1)  # a row of zeros, and large ones
    half = clusters.modes(wide.astype(np.float16), labels_of_wide)
    assert half == pytest.approx(clusters.modes(wide, labels_of_wide))
    # Patches without a label take no part, as if they were not there.
    more = np.concatenate([towards, 5 * towards[:, :2] - 2], axis=1)
    ignored = np.concatenate([labels, [[255, 255]]], axis=1)
    assert clusters.modes(more, ignored) == pytest.approx(separate)
    assert math.isnan(clusters.modes(towards, np.zeros((1, 6), int)))
    assert math.isnan(clusters.modes(towards[:0], labels[:0]))


def test_agreement_leaves_out_what_is_not_labelled():
    cells, labels = _RNG.integers(0, 4, (3, 5, 6)), _RNG.integers(0, 3, (3, 5, 6))
    labels[1][_RNG.random((5, 6)) < 0.4] = 255
    labels[2] = 255
    cells[0] = 10 - labels[0]  # another name for the same
    found = clusters.agreement(cells, labels)
    assert (found.purity[0], found.nmi[0], found.ari[0]) == pytest.approx((1, 1, 1))
    known = labels[1] != 255
    mine, truth = cells[1][known], labels[1][known]
    table = metrics.cluster.contingency_matrix(truth, mine)
    assert found.purity[1] == pytest.approx(table.max(axis=0).sum() / table.sum())
    assert found.ari[1] == pytest.approx(metrics.adjusted_rand_score(truth, mine))
    assert found.number[1] == len(np.unique(mine))
    assert found.nmi[1] == pytest.approx(metrics.normalized_mutual_info_score(truth, mine))
    assert all(math.isnan(column[2]) for column in found)


def test_kmeans_finds_directions_whatever_their_length():
    labels = np.arange(12).reshape(3, 4) % 3
    patches = np.eye(3, 5)[labels] * _RNG.uniform(0.1, 9, (2, 3, 4, 1))
    found = clusters.kmeans(patches, 3)
    assert found.shape == (2, 3, 4) and found.dtype == np.int32
    result = clusters.agreement(found, np.stack([labels] * 2))
    np.testing.assert_allclose(result.ari, 1)
    # No more clusters than there are different patches.
    assert len(np.unique(clusters.kmeans(patches, 8)[0])) == 3
    assert (clusters.kmeans(np.ones((1, 2, 2, 3)), 4) == 0).all()
