"""COCO's average precision on cases worked by hand, and against the definition written as loops."""

import sys

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.scores.detection import Boxes, average_precision

pytest.importorskip("faster_coco_eval")


def image(boxes, labels=None, scores=None, crowd=None):
    boxes = np.asarray(boxes, float).reshape(-1, 4)
    labels = np.zeros(len(boxes), int) if labels is None else np.asarray(labels)
    return Boxes(boxes, labels, scores if scores is None else np.asarray(scores), crowd)


SQUARES = [(0, 0, 40, 40), (100, 0, 40, 40)]  # medium
FAR, TALL, WIDE = (300, 300, 40, 40), (0, 0, 20, 80), (0, 0, 80, 20)
SIZES = [(0, 0, 10, 10), (100, 100, 50, 50), (200, 200, 120, 120)]
CROWD = image([SQUARES[0], (190, 190, 200, 200)], crowd=[False, True])
WRONG = [(300 + 41 * i, 0, 40, 40) for i in range(100)]
HALF = 100 * (51 + 50 * 2 / 3) / 101  # precision 1 up to recall 1/2, 2/3 up to 1; of 101 points
CASES = {
    "nothing": (image([], scores=[]), image(SQUARES), dict(ap=0)),
    "right, wrong, right": (
        image([SQUARES[0], FAR, SQUARES[1]], scores=[0.9, 0.8, 0.7]), image(SQUARES), dict(ap=HALF),
    ),
    "rows are no columns": (image([WIDE], scores=[1]), image([TALL]), dict(ap=0)),
    "sizes": (
        image(SIZES[:2], scores=[0.9, 0.8]), image(SIZES),
        dict(ap_small=100, ap_medium=100, ap_large=0),
    ),
    "in a crowd": (image([SQUARES[0], FAR], scores=[0.5, 0.9]), CROWD, dict(ap=100)),
    "the 101st": (
        image([*WRONG, SQUARES[0]], scores=[*np.linspace(0.9, 0.5, 100), 0.1]),
        image(SQUARES[:1]), dict(ap=0),
    ),
    "the hundredth": (
        image([*WRONG[1:], SQUARES[0]], scores=[*np.linspace(0.9, 0.5, 99), 0.1]),
        image(SQUARES[:1]), dict(ap=1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_by_hand(name):
    found, true, expected = CASES[name]
    empty = image([], scores=[]), image([])  # an image with nothing in it
    scores = average_precision([found, empty[0]], [true, empty[1]], classes=2)
    assert {key: scores[key] for key in expected} == pytest.approx(expected)


@pytest.mark.parametrize("shift, thresholds", [(0, 10), (8, 4), (13, 1), (14, 0), (2, 9)])
def test_a_moved_box_counts_up_to_its_overlap(shift, thresholds):
    """IoU of a square of 40 moved by d is (40 - d) / (40 + d): .667 for 8, .509 for 13."""
    found = [image([(0, shift, 40, 40)], scores=[0.5])]
    scores = average_precision(found, [image(SQUARES[:1])], classes=1)
    assert scores["ap"] == pytest.approx(10 * thresholds)
    assert scores["ap50"] == (100 if thresholds else 0)
    assert scores["ap75"] == (100 if thresholds > 5 else 0)


def overlap(a, b):
    low = np.maximum(a[:2], b[:2])
    high = np.minimum(a[:2] + a[2:], b[:2] + b[2:])
    shared = np.prod(np.maximum(high - low, 0))
    return shared / (a[2] * a[3] + b[2] * b[3] - shared)


def by_definition(found, true, classes):
    """Greedy matching by score, precision made decreasing, 101 recalls, mean over thresholds and
    classes."""
    results = []
    for c in range(classes):
        total = sum((t.labels == c).sum() for t in true)
        if not total:
            continue
        for threshold in np.arange(0.5, 0.96, 0.05):
            ranked = []
            for f, t in zip(found, true):
                free = [box for box, label in zip(t.boxes, t.labels) if label == c]
                order = [i for i in np.argsort(-f.scores, kind="stable") if f.labels[i] == c]
                for i in order:
                    shares = [overlap(f.boxes[i], box) for box in free]
                    right = bool(shares) and max(shares) >= threshold
                    if right:
                        free.pop(int(np.argmax(shares)))
                    ranked.append((f.scores[i], right))
            ranked.sort(key=lambda pair: -pair[0])
            right = np.cumsum([r for _, r in ranked]) if ranked else np.zeros(0)
            recall, precision = right / total, right / np.arange(1, len(right) + 1)
            precision = [precision[i:].max() for i in range(len(precision))]
            places = np.searchsorted(recall, np.linspace(0, 1, 101), side="left")
            results.append(np.mean([precision[i] if i < len(right) else 0 for i in places]))
    return 100 * np.mean(results)


def test_perturbed_boxes_score_by_the_definition():
    rng = np.random.default_rng(0)
    true, found = [], []
    for _ in range(12):
        n = rng.integers(1, 7)
        boxes = np.concatenate([rng.uniform(0, 200, (n, 2)), rng.uniform(20, 90, (n, 2))], axis=1)
        labels = rng.integers(0, 3, n)
        true.append(Boxes(boxes, labels))
        moved = np.concatenate([boxes, boxes[:2]]) + rng.normal(0, 6, (n + len(boxes[:2]), 4))
        classes = np.concatenate([labels, rng.integers(0, 3, len(boxes[:2]))])
        found.append(Boxes(moved, classes, rng.random(len(moved))))
    scores = average_precision(found, true, classes=4)
    wanted = by_definition(found, true, 4)
    assert 10 < wanted < 90 and scores["ap"] == pytest.approx(wanted, abs=1e-6)


def test_what_does_not_fit_is_refused(monkeypatch):
    one, scored = [image(SQUARES)], [image(SQUARES, scores=[1, 1])]
    for predicted, true in (
        (scored * 2, one),
        (one, one),  # without scores
        ([image(SQUARES, [0, 1], [1, 1])], one),  # a class that there is not
        ([image(SQUARES, [0], [1, 1])], one),  # a label too few
        (scored, [image([])]),  # nothing to find
        (scored, [image(SQUARES, crowd=[True, True])]),
        ([image(SQUARES, scores=[1, np.nan])], one),
        ([image(np.array(SQUARES) * np.nan, scores=[1, 1])], one),
    ):
        with pytest.raises(ValueError):
            average_precision(predicted, true, classes=1)
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(InputError, match=r"\.\[eval\]"):
        average_precision(scored, one, classes=1)
