"""Scores of a segmentation against scikit-learn and by hand."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score, recall_score

from ssl_jax.scores import metrics

_RNG = np.random.default_rng(0)


def test_all_scores_equal_scikit_learn():
    truth, predicted = _RNG.integers(0, 5, (2, 3, 8, 9))
    predicted[truth == 2] = 2
    truth[_RNG.random(truth.shape) < 0.2] = 255
    counts = metrics.confusion(truth, predicted, num_classes=5)
    t, p = truth[truth != 255], predicted[truth != 255]
    np.testing.assert_array_equal(counts, confusion_matrix(t, p, labels=range(5)))
    np.testing.assert_allclose(metrics.class_iou(counts), jaccard_score(t, p, average=None))
    np.testing.assert_allclose(metrics.class_accuracy(counts), recall_score(t, p, average=None))
    assert metrics.accuracy(counts) == pytest.approx(accuracy_score(t, p))


def test_as_mmsegmentation_counts_absent_classes():
    """A class that is only predicted: IoU 0, and no part of mAcc; one that is nowhere: no part of
    either; ignored pixels count nowhere."""
    truth = np.array([0, 0, 0, 0, 1, 1, 255])
    predicted = np.array([0, 0, 0, 2, 1, 0, 2])
    counts = metrics.confusion(truth, predicted, num_classes=4)
    np.testing.assert_allclose(metrics.class_iou(counts), [3 / 5, 1 / 2, 0, np.nan])
    assert metrics.mean_iou(metrics.class_iou(counts)) == pytest.approx((0.6 + 0.5) / 3)
    skipped = metrics.class_iou(counts, "skip")  # only predicted: no part of either
    np.testing.assert_allclose(skipped, [3 / 5, 1 / 2, np.nan, np.nan])
    assert metrics.mean_iou(skipped) == pytest.approx((0.6 + 0.5) / 2)
    with pytest.raises(ValueError, match="none"):
        metrics.class_iou(counts, "none")
    np.testing.assert_allclose(metrics.class_accuracy(counts), [3 / 4, 1 / 2, np.nan, np.nan])
    assert metrics.mean_iou(metrics.class_accuracy(counts)) == pytest.approx(0.625)
    assert metrics.accuracy(counts) == pytest.approx(4 / 6)
    shares = counts / counts.sum()  # a normalised matrix has the same scores
    for score in (metrics.class_iou, metrics.class_accuracy):
        np.testing.assert_allclose(score(shares), score(counts))
    for bad in ([0, 4], [-1, 0], [0.5, 0]):
        for pair in (([0, 1], bad), (bad, [0, 1])):
            with pytest.raises(ValueError, match="classes"):
                metrics.confusion(*pair, num_classes=3)
    with pytest.raises(ValueError):  # nothing is labelled
        metrics.accuracy(np.zeros((2, 2)))
