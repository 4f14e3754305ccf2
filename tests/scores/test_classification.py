"""Accuracies, and logistic regression on features: what is chosen, and what it is worth."""

from types import SimpleNamespace

import numpy as np
import pytest

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.scores.classification import accuracies, logistic, split
from tests.evals import fakes

_RNG = np.random.default_rng(0)
_CENTRES = _RNG.normal(size=(3, 10))


def _draw(count, scale=1.0):
    labels = _RNG.integers(0, 3, count)
    return scale * (_CENTRES[labels] + _RNG.normal(size=(count, 10))), labels


_TRAIN, _LABELS = _draw(300)
_TEST, _TEST_LABELS = _draw(3000)


def test_near_the_best_possible_classifier():
    """With equal priors and unit covariance the nearest centre is the best there is."""
    distance = np.square(_TEST[:, None] - _CENTRES).sum(-1)
    best = np.mean(distance.argmin(1) == _TEST_LABELS)
    accuracy, _ = logistic(_TRAIN, _LABELS, _TEST, _TEST_LABELS)
    assert best - 0.03 < accuracy < best + 0.01


def test_features_of_any_scale_are_standardised():
    plain = logistic(_TRAIN, _LABELS, _TEST, _TEST_LABELS)
    assert logistic(1e3 * _TRAIN + 5, _LABELS, 1e3 * _TEST + 5, _TEST_LABELS) == plain


def test_the_penalty_is_chosen_without_the_test_set():
    """Many noise dimensions and few images want a strong penalty, whatever the test labels are."""
    rng = np.random.default_rng(1)
    train = np.concatenate([_TRAIN[:60], rng.normal(size=(60, 200))], axis=1)
    test = np.concatenate([_TEST[:200], rng.normal(size=(200, 200))], axis=1)
    one = logistic(train, _LABELS[:60], test, _TEST_LABELS[:200])
    other = logistic(train, _LABELS[:60], test, 2 - _TEST_LABELS[:200])
    assert one[1] == other[1] < 10 and one[0] != other[0]


def test_few_images_of_many_classes():
    """A tenth of them has no image of each class."""
    for counts in ((3,) * 5, (2, 2), (1, 2, 9), (1, 1)):
        labels = np.repeat(np.arange(len(counts)), counts)
        rows = _RNG.normal(size=(len(labels), 4)) + 20 * np.eye(len(counts), 4)[labels]
        if counts != (1, 1):
            assert logistic(rows, labels, rows, labels)[0] >= 0.75
    with pytest.raises(InputError, match="c"):
        logistic(rows, labels, rows, labels)


def test_scores_and_training_images_of_one_class():
    train = SimpleNamespace(image=_TRAIN, labels=_LABELS, index=None)
    test = SimpleNamespace(image=_TEST, labels=_TEST_LABELS, index=None)
    scores = evals.TYPES["logistic"].run(fakes.case("logistic", train, test, c=(1.0,)))
    assert scores["logistic_c"] == 1.0 and 50 < scores["logistic"] <= 100
    same = SimpleNamespace(image=_TRAIN, labels=np.zeros(300, int), index=None)
    with pytest.raises(InputError):
        evals.TYPES["logistic"].run(fakes.case("logistic", same, test))


@pytest.mark.parametrize(
    ("rows", "share", "choosing"), [(10, 0, 0), (10, 0.25, 2), (10, 0.01, 1), (2, 0.9, 1)]
)
def test_a_part_of_the_rows_chooses_and_the_others_are_learned_from(rows, share, choosing):
    learn, choose = split(np.arange(rows), share)
    assert len(choose) == choosing and sorted([*learn, *choose]) == list(range(rows))


def test_accuracies_count_the_best_scores_and_equal_ones_are_at_chance():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(200, 12)), rng.integers(0, 12, 200)
    ranked = np.argsort(-scores, axis=1)
    for k in (1, 3, 12):
        by_hand = np.mean([label in row[:k] for label, row in zip(labels, ranked)])
        assert accuracies(scores, labels, (k,)) == [pytest.approx(by_hand)]
    for bad in (labels - 1, labels + 9, labels[:3]):
        with pytest.raises(ValueError, match="labels"):
            accuracies(scores, bad)
    for value in (np.nan, np.inf):
        with pytest.raises(ValueError, match="logits"):
            accuracies(np.where(scores > 2, value, scores), labels)
    without = np.where(np.arange(12) == 11, -np.inf, scores)  # a class that cannot be
    in_others = np.minimum(labels, 10)
    assert accuracies(without, in_others, (1,)) == accuracies(scores[:, :11], in_others, (1,))
    labels = np.arange(20) % 10
    assert accuracies(np.zeros((20, 10)), labels.astype(float)) == [pytest.approx(0.1), 0.5]
    assert accuracies(np.zeros((20, 10)), labels) == [pytest.approx(0.1), 0.5]
    # Of a first and two equal second ones, the label is among the best two half of the time.
    assert accuracies([[3.0, 1.0, 1.0, 0.0]], [2], (1, 2, 3)) == [0.0, 0.5, 1.0]
