"""The accuracy of a network's own classifier: against a count by hand, and what it refuses."""

from types import SimpleNamespace

import numpy as np
import pytest

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.evals import classify
from tests.evals import fakes

LABELS = np.arange(11) % 7
# Images that say which they are, and the scores of a network that is wrong about three of them:
# there the truth is third.
IMAGES = np.broadcast_to(np.arange(11, dtype=np.uint8)[:, None, None, None], (11, 8, 8, 3))
WRONG = np.isin(np.arange(11), (0, 5, 9))
SCORES = np.zeros((11, 7), np.float32)
for row, label, wrong in zip(SCORES, LABELS, WRONG):
    row[[(label + 1) % 7, (label + 2) % 7, label]] = 2.0, 1.5, 1.0 if wrong else 3.0


def test_accuracies_count_the_best_scores_and_equal_ones_are_at_chance():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(200, 12)), rng.integers(0, 12, 200)
    ranked = np.argsort(-scores, axis=1)
    for k in (1, 3, 12):
        by_hand = np.mean([label in row[:k] for label, row in zip(labels, ranked)])
        assert classify.accuracies(scores, labels, (k,)) == [pytest.approx(by_hand)]
    for bad in (labels - 1, labels + 9, labels[:3]):
        with pytest.raises(ValueError, match="labels"):
            classify.accuracies(scores, bad)
    labels = np.arange(20) % 10
    assert classify.accuracies(np.zeros((20, 10)), labels) == [pytest.approx(0.1), 0.5]
    # Of a first and two equal second ones, the label is among the best two half of the time.
    assert classify.accuracies([[3.0, 1.0, 1.0, 0.0]], [2], (1, 2, 3)) == [0.0, 0.5, 1.0]


def case(scores=SCORES, labels=LABELS):
    def encoder(images, *, extras):
        rows = np.round(images[:, 0, 0, 0] * 255).astype(int)
        return SimpleNamespace(extras={} if scores is None else {"logits": scores[rows]})

    source = fakes.Source(IMAGES, labels=labels)
    return evals.Case(encoder, evals.new("classify"), source, source, batch_size=4)


def test_scores_of_a_network_in_percent():
    scores = evals.TYPES["classify"].run(case())
    assert scores == {"classify": pytest.approx(100 * 8 / 11), "classify_top5": 100.0}
    values = evals.TYPES["classify"].figures(case())["classify_classes"].values
    for label in range(7):
        assert values[label] == pytest.approx(np.mean(~WRONG[LABELS == label]))
    # With five classes or fewer the top 5 say nothing.
    assert set(evals.TYPES["classify"].run(case(SCORES[:, :5], LABELS % 5))) == {"classify"}


@pytest.mark.parametrize("scores", [SCORES[:, :6], None])
def test_networks_of_other_classes_or_without_a_classifier_are_refused(scores):
    with pytest.raises(InputError):
        evals.TYPES["classify"].run(case(scores))
