"""Segmentation by retrieval against scikit-learn and brute force in NumPy."""

import numpy as np
import pytest
from sklearn.metrics import jaccard_score
from sklearn.neighbors import KNeighborsClassifier

from ssl_jax.features.store import Grids
from ssl_jax.scores import metrics, segmentation

_RNG = np.random.default_rng(0)
_CENTRES = _RNG.normal(size=(3, 6))


def _scenes(count, ignore=0.1):
    """Masks [count, 8, 8] of 2-px blocks and patch features [count, 4, 4, 6] that hint at the
    class.
    """
    blocks = _RNG.integers(0, 3, (count, 4, 4))
    masks = blocks.repeat(2, 1).repeat(2, 2).astype(np.uint8)
    masks[_RNG.random(masks.shape) < 0.15] = 1
    masks[_RNG.random(masks.shape) < ignore] = 255
    return (_CENTRES[blocks] + _RNG.normal(size=(count, 4, 4, 6))).astype(np.float32), masks


_TRAIN, _TRAIN_MASKS = _scenes(9)
_TEST, _TEST_MASKS = _scenes(4)


def _majority(masks):
    """Brute force: [N, 4, 4]; counts of 0, 1, 2 and then ignore, the first maximum wins."""
    out = np.empty((len(masks), 4, 4), int)
    for n, i, j in np.ndindex(*out.shape):
        block = masks[n, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
        out[n, i, j] = (0, 1, 2, 255)[np.argmax([(block == c).sum() for c in (0, 1, 2, 255)])]
    return out


def _unit(rows):
    rows = np.asarray(rows, np.float64).reshape(-1, 6)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _expected(k, rule):
    """By scikit-learn, in float64."""
    labels = _majority(_TRAIN_MASKS).ravel()
    weights = (lambda distance: np.exp((1 - distance) / 0.1)) if rule == "softmax" else "uniform"
    found = KNeighborsClassifier(k, metric="cosine", weights=weights)
    found.fit(_unit(_TRAIN)[labels != 255], labels[labels != 255])
    return found.predict(_unit(_TEST)).reshape(4, 4, 4)


def _miou(truth, predicted):
    known = truth != 255
    there = np.unique(truth[known])
    return jaccard_score(truth[known], predicted[known], labels=there, average="macro")


@pytest.mark.parametrize("rule", ["plain", "softmax"])
def test_equals_scikit_learn(rule):
    parts = _TRAIN, _TRAIN_MASKS, _TEST, _TEST_MASKS
    found = segmentation.segment(*parts, num_classes=3, k=15, rule=rule)
    for few in ((_TRAIN[:-1], *parts[1:]), (*parts[:3], _TEST_MASKS[:-1])):
        with pytest.raises(ValueError, match="masks"):
            segmentation.segment(*few, num_classes=3, k=15, rule=rule)
    expected = _expected(15, rule)
    np.testing.assert_array_equal(found.predicted, expected)
    np.testing.assert_array_equal(found.truth, _majority(_TEST_MASKS))
    assert metrics.mean_iou(found.patch_iou) == pytest.approx(_miou(found.truth, expected))
    pixels = expected.repeat(2, 1).repeat(2, 2)
    assert metrics.mean_iou(found.pixel_iou) == pytest.approx(_miou(_TEST_MASKS, pixels))
    assert 0.3 < metrics.mean_iou(found.patch_iou) < 1


def test_majority_label_and_its_ties():
    mask = np.array([[[2, 1, 255, 255], [1, 2, 255, 0], [255, 255, 0, 0], [0, 0, 2, 2]]], np.uint8)
    labels = segmentation.patch_labels(mask, (2, 2), num_classes=3)
    # A tie of 1 and 2 goes to 1; three ignored pixels win; of 0 and ignore: the class; 0 and 2: the
    # lower.
    np.testing.assert_array_equal(labels[0], [[1, 255], [0, 0]])
    wide = segmentation.patch_labels(mask.astype(np.int64), (2, 2), num_classes=3)
    np.testing.assert_array_equal(labels, wide)
    for grid, classes in (((3, 2), 3), ((2, 2), 2)):
        with pytest.raises(ValueError):
            segmentation.patch_labels(mask, grid, num_classes=classes)
    with pytest.raises(ValueError):  # a bank without labels
        segmentation.segment(
            _TRAIN, np.full_like(_TRAIN_MASKS, 255), _TEST, _TEST_MASKS, num_classes=3
        )
    found = segmentation.patch_labels(_TRAIN_MASKS, (4, 4), num_classes=3)
    np.testing.assert_array_equal(found, _majority(_TRAIN_MASKS))


def _grids(arrays):
    """The same values as Grids, in which the images could differ in size."""
    shapes = np.asarray([a.shape[:2] for a in arrays])
    return Grids(np.concatenate([a.reshape(-1, *a.shape[2:]) for a in arrays]), shapes)


def test_images_of_different_sizes_give_the_same():
    """The test images are cut to different sizes; each patch finds what it found before."""
    cuts = [(4, 4), (2, 3), (3, 4), (4, 1)]
    whole = segmentation.segment(_TRAIN, _TRAIN_MASKS, _TEST, _TEST_MASKS, num_classes=3, k=15)
    test = _grids([x[:h, :w] for x, (h, w) in zip(_TEST, cuts)])
    masks = _grids([x[: 2 * h, : 2 * w] for x, (h, w) in zip(_TEST_MASKS, cuts)])
    train, train_masks = _grids(_TRAIN), _grids(_TRAIN_MASKS)
    found = segmentation.segment(train, train_masks, test, masks, num_classes=3, k=15)
    counts = np.zeros((3, 3), int)
    for i, (h, w) in enumerate(cuts):
        np.testing.assert_array_equal(found.predicted[i], whole.predicted[i][:h, :w])
        np.testing.assert_array_equal(found.truth[i], whole.truth[i][:h, :w])
        counts += metrics.confusion(found.truth[i], found.predicted[i], num_classes=3)
    np.testing.assert_array_equal(found.patch_iou, metrics.class_iou(counts))


def test_a_class_that_is_only_predicted_counts_or_not():
    """Class 2 is predicted and its truth is ignored: with "zero" its 0 joins the mean of three."""
    masks = np.where(_TEST_MASKS == 2, 255, _TEST_MASKS)
    predicted, truth = _expected(15, "plain"), _majority(masks)
    assert (predicted[truth != 255] == 2).any()
    zero, skip = (
        metrics.mean_iou(
            segmentation.segment(
                _TRAIN, _TRAIN_MASKS, _TEST, masks, num_classes=3, k=15, absent=absent
            ).patch_iou
        )
        for absent in ("zero", "skip")
    )
    assert skip == pytest.approx(_miou(truth, predicted)) and zero == pytest.approx(skip * 2 / 3)
