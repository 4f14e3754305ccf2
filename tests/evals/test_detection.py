"""COCO's average precision on cases worked by hand, and against the definition written as loops."""

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.evals.detection import Boxes, average_precision

pytest.importorskip("faster_coco_eval")


def image(boxes, labels=None, scores=None, crowd=None):
    boxes = np.asarray(boxes, float).reshape(-1, 4)
    labels = np.zeros(len(boxes), int) if labels is None else np.asarray(labels)
    return Boxes(boxes, labels, scores if scores is None else np.asarray(scores), crowd)


SQUARES = [(0, 0, 40, 40), (100, 0, 40, 40)]  # medium


def test_right_boxes_score_100_and_none_0():
    true = [image(SQUARES, [0, 1]), image(SQUARES[:1], [1]), image([])]
    right = [Boxes(t.boxes, t.labels, np.ones(len(t.boxes))) for t in true]
    scores = average_precision(right, true, classes=2)
    assert scores == pytest.approx(dict(ap=100, ap50=100, ap75=100, ap_medium=100))
    nothing = [image([], scores=[])] * 3
    assert average_precision(nothing, true, classes=2)["ap"] == 0


def test_ranking_by_hand():
    """Right, wrong, right: precision 1 up to recall 1/2, 2/3 up to 1; 101 points of recall."""
    found = [image([SQUARES[0], (300, 300, 40, 40), SQUARES[1]], scores=[0.9, 0.8, 0.7])]
    scores = average_precision(found, [image(SQUARES)], classes=1)
    assert scores["ap"] == pytest.approx(100 * (51 + 50 * 2 / 3) / 101)


@pytest.mark.parametrize("shift, thresholds", [(0, 10), (8, 4), (13, 1), (14, 0), (2, 9)])
def test_a_moved_box_counts_up_to_its_overlap(shift, thresholds):
    """IoU of a square of 40 moved by d is (40 - d) / (40 + d): .667 for 8, .509 for 13."""
    found = [image([(0, shift, 40, 40)], scores=[0.5])]
    scores = average_precision(found, [image(SQUARES[:1])], classes=1)
    assert scores["ap"] == pytest.approx(10 * thresholds)
    assert scores["ap50"] == (100 if thresholds else 0)
    assert scores["ap75"] == (100 if thresholds > 5 else 0)


def test_rows_are_rows_and_heights_are_heights():
    true = [image([(0, 0, 20, 80)])]
    assert average_precision([image([(0, 0, 20, 80)], scores=[1])], true, classes=1)["ap"] == 100
    assert average_precision([image([(0, 0, 80, 20)], scores=[1])], true, classes=1)["ap"] == 0


def test_a_second_box_on_an_object_is_wrong_and_so_is_another_class():
    twice = [image([SQUARES[0], SQUARES[0], SQUARES[1]], scores=[0.9, 0.8, 0.7])]
    scores = average_precision(twice, [image(SQUARES)], classes=1)
    assert scores["ap"] == pytest.approx(100 * (51 + 50 * 2 / 3) / 101)
    confused = [image(SQUARES, [0, 0], [0.9, 0.8])]
    scores = average_precision(confused, [image(SQUARES, [0, 1])], classes=2)
    assert scores["ap"] == pytest.approx(50)


def test_sizes_and_crowds():
    sizes = [(0, 0, 10, 10), (100, 100, 50, 50), (200, 200, 120, 120)]
    found = [image(sizes[:2], scores=[0.9, 0.8])]
    scores = average_precision(found, [image(sizes)], classes=1)
    assert (scores["ap_small"], scores["ap_medium"], scores["ap_large"]) == (100, 100, 0)
    inside = [image([SQUARES[0], (200, 200, 40, 40)], scores=[0.5, 0.9])]
    region = (190, 190, 200, 200)
    with_crowd = [image([SQUARES[0], region], crowd=[False, True])]
    assert average_precision(inside, with_crowd, classes=1)["ap"] == 100
    assert average_precision(inside, [image([SQUARES[0]])], classes=1)["ap"] == pytest.approx(50)


def test_the_hundred_highest_count():
    wrong = [(300 + 41 * i, 0, 40, 40) for i in range(100)]
    scores = np.linspace(0.9, 0.5, 100)
    found = [image([*wrong, SQUARES[0]], scores=[*scores, 0.1])]
    assert average_precision(found, [image(SQUARES[:1])], classes=1)["ap"] == 0
    found = [image([*wrong[1:], SQUARES[0]], scores=[*scores[1:], 0.1])]
    assert average_precision(found, [image(SQUARES[:1])], classes=1)["ap"] == pytest.approx(1)


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
    one = [image(SQUARES)]
    scored = [image(SQUARES, scores=[1, 1])]
    for predicted, true, classes, message in (
        (scored * 2, one, 1, "2 predicted images and 1 true"),
        (one, one, 1, "has no scores"),
        ([image(SQUARES, [0, 1], [1, 1])], one, 1, r"outside of \[0, 1\)"),
        ([image(SQUARES, [0], [1, 1])], one, 1, "2 boxes, 1 labels"),
        (scored, [image([])], 1, "at least one true box"),
    ):
        with pytest.raises(ValueError, match=message):
            average_precision(predicted, true, classes=classes)
    monkeypatch.setitem(__import__("sys").modules, "faster_coco_eval", None)
    with pytest.raises(InputError, match=r"pip install 'ssl-jax\[eval\]'"):
        average_precision(scored, one, classes=1)
