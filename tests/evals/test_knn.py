"""Scores of the evaluation `knn`."""

import numpy as np
import pytest

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.evals.case import Labelled
from ssl_jax.scores import neighbours
from tests.evals import fakes

_RNG = np.random.default_rng(0)


def _part(count):
    labels = _RNG.integers(0, 5, count)
    vectors = np.eye(5, 12)[labels] + 0.7 * _RNG.normal(size=(count, 12))
    return Labelled(vectors.astype(np.float32), labels, np.arange(count))


def test_a_label_that_is_no_class_is_named():
    train, test = _part(50), _part(20)
    few = fakes.Source(fakes.images(50), labels=[3])  # classes 0 to 3
    with pytest.raises(InputError, match="record/.* label 4"):
        evals.TYPES["knn"].run(fakes.case("knn", train, test, source=few))


def test_scores_hold_each_k_the_first_and_the_best():
    train, test = _part(150), _part(70)
    scores = evals.TYPES["knn"].run(fakes.case("knn", train, test, k=(10, 1, 200)))
    assert list(scores) == ["knn", "knn_best", "knn_k1", "knn_k10", "knn_k150"]
    found = neighbours.classify(*train[:2], test.image, num_classes=5, ks=(1, 10, 200))
    for k, predicted in found.predictions.items():
        assert scores[f"knn_k{k}"] == 100 * np.mean(predicted == test.labels)
    assert scores["knn_best"] == max(scores[f"knn_k{k}"] for k in (1, 10, 150))
    assert scores["knn"] == scores["knn_k10"] != scores["knn_k1"]
    least = evals.TYPES["knn"].run(fakes.case("knn", train, test, k=(500, 1)))
    assert least["knn"] == scores["knn_k150"]
