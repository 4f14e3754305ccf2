"""Weighted k-NN against scikit-learn in float64."""

from types import SimpleNamespace

import chex
import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from ssl_jax import evals
from ssl_jax.evals import box_knn, knn
from tests.evals import fakes

_RNG = np.random.default_rng(0)
_CENTRES = _RNG.normal(size=(5, 12))
_BANK_LABELS = _RNG.integers(0, 5, 150)
_BANK = _CENTRES[_BANK_LABELS] + 1.5 * _RNG.normal(size=(150, 12))
_QUERY_LABELS = _RNG.integers(0, 5, 70)
_QUERIES = _CENTRES[_QUERY_LABELS] + 1.5 * _RNG.normal(size=(70, 12))


def _expected(k):
    """By scikit-learn, in float64: protocol A1."""
    knn = KNeighborsClassifier(k, metric="cosine", weights=lambda d: np.exp((1 - d) / 0.07))
    return knn.fit(_BANK, _BANK_LABELS).predict(_QUERIES)


def test_equals_scikit_learn_k_is_limited_to_the_bank_and_chunks_change_nothing():
    found = knn.classify(_BANK, _BANK_LABELS, _QUERIES, num_classes=5, chunk=32)
    assert list(found.predictions) == [10, 20, 100, 150]
    for k, predicted in found.predictions.items():
        np.testing.assert_array_equal(predicted, _expected(k))
    assert found.similarity.shape == found.index.shape == (70, 150)
    assert (np.diff(found.similarity, axis=1) <= 0).all()
    whole = knn.classify(_BANK, _BANK_LABELS, _QUERIES, num_classes=5, chunk=1000)
    chex.assert_trees_all_equal(found.predictions, whole.predictions)
    zero = knn.classify(_BANK, _BANK_LABELS, np.zeros((1, 12)), num_classes=5)
    assert np.isfinite(zero.similarity).all()
    for labels, queries in (
        (_BANK_LABELS, _QUERIES[:, :3]),
        (_BANK_LABELS[:3], _QUERIES),
        (_BANK_LABELS + 9, _QUERIES),
    ):
        with pytest.raises(ValueError):
            knn.classify(_BANK, labels, queries, num_classes=5)


def test_weights_matter_and_equal_scores_go_to_the_lowest_class():
    # One very near neighbour of class 1 outvotes two far ones of class 0.
    bank = np.array([[1.0, 0.02], [0.6, 0.8], [0.6, -0.8]])
    predicted = knn.classify(bank, [1, 0, 0], [[1.0, 0.0]], num_classes=2, ks=(3,)).predictions[3]
    assert predicted[0] == 1
    # However sharp: the weights are not infinite.
    for temperature in (1e-2, 1e-6):
        cold = dict(num_classes=2, ks=(3,), temperature=temperature)
        assert knn.classify(bank, [1, 0, 0], [[1.0, 0.0]], **cold).predictions[3] == 1
        found = box_knn.classify(bank[:, None], [1, 0, 0], np.array([[[1.0, 0.0]]]), **cold)
        assert found[3] == 1
    bank = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert knn.classify(bank, [3, 2], [[1.0, 0.0]], num_classes=4, ks=(2,)).predictions[2][0] == 2


def test_metrics_hold_each_k_the_first_and_the_best():
    train = SimpleNamespace(image=_BANK, labels=_BANK_LABELS, index=None)
    test = SimpleNamespace(image=_QUERIES, labels=_QUERY_LABELS, index=None)
    metrics = evals.TYPES["knn"].run(fakes.case("knn", train, test, k=(10, 1, 200)))
    assert list(metrics) == ["knn", "knn_best", "knn_k1", "knn_k10", "knn_k150"]
    assert metrics["knn_k10"] == pytest.approx(100 * np.mean(_expected(10) == _QUERY_LABELS))
    assert metrics["knn_best"] == max(metrics[f"knn_k{k}"] for k in (1, 10, 150))
    assert metrics["knn_k10"] != metrics["knn_k1"] and metrics["knn"] == metrics["knn_k10"]
    assert (
        evals.TYPES["knn"].run(fakes.case("knn", train, test, k=(1, 10)))["knn"]
        == metrics["knn_k1"]
    )
