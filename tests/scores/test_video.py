"""J and F on masks made by hand, and F against a search through all pairs of boundary pixels."""

import numpy as np
import pytest

from ssl_jax.scores import video


def _square(top, left, side, size=40):
    mask = np.zeros((size, size), bool)
    mask[top : top + side, left : left + side] = True
    return mask


def test_region_similarity():
    a, b = _square(0, 0, 4), _square(0, 2, 4)
    assert video.region_similarity(a, b) == pytest.approx(8 / 24)
    assert video.region_similarity(a, a) == 1 and video.region_similarity(a, ~a) == 0
    assert video.region_similarity(a & ~a, a & ~a) == 1


def _naive(truth, predicted, tolerance=0.008):
    """F by the distances of all pairs of boundary pixels, each found by looking at its three
    neighbours."""

    def edge(mask):
        height, width = mask.shape
        found = []
        for y, x in np.ndindex(height, width):
            others = [(y, x + 1), (y + 1, x), (y + 1, x + 1)]
            if any(b < height and a < width and mask[b, a] != mask[y, x] for b, a in others):
                found.append((y, x))
        return np.array(found, float).reshape(-1, 2)

    ours, theirs = edge(predicted), edge(truth)
    if not len(ours) or not len(theirs):
        return float(len(ours) == len(theirs))
    far = np.ceil(tolerance * np.sqrt(truth.shape[0] ** 2 + truth.shape[1] ** 2))
    distance = np.sqrt(((ours[:, None] - theirs) ** 2).sum(-1))
    precision, recall = ((distance.min(axis) <= far).mean() for axis in (1, 0))
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


@pytest.mark.parametrize("seed", range(3))
def test_boundary_accuracy_equals_a_search_through_all_pairs(seed):
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:48, :70]
    truth = np.hypot(y - 20, x - 30) < 12 + 3 * np.sin(np.arctan2(y - 20, x - 30) * 4)
    shift = rng.integers(-4, 5, 2)
    predicted = np.roll(truth, shift, (0, 1)) ^ (rng.random(truth.shape) < 0.01 * (seed % 3))
    for tolerance in (0.008, 0.03):
        expected = _naive(truth, predicted, tolerance)
        assert video.boundary_accuracy(truth, predicted, tolerance) == pytest.approx(expected)
    assert 0 < _naive(truth, predicted) < 1


_NOTHING, _SOME = _square(0, 0, 0), _square(10, 10, 12)


@pytest.mark.parametrize(
    "truth, predicted, expected",
    [
        (_NOTHING, _NOTHING, 1),
        (_SOME, _NOTHING, 0),
        (_NOTHING, _SOME, 0),
        (_SOME, _square(28, 28, 9), 0),  # both exist, far apart
        (_SOME, _square(10, 11, 12), 1),  # one pixel is .008 of the diagonal
    ],
)
def test_boundary_accuracy_by_hand(truth, predicted, expected):
    assert video.boundary_accuracy(truth, predicted) == expected
    assert not video.boundary(np.ones((4, 4), bool)).any()  # the border of the image is none


def test_first_and_last_frame_do_not_count_and_objects_are_averaged_one_by_one():
    one, two = _square(2, 2, 8), _square(20, 20, 10)
    truth = np.stack([one + 2 * two] * 5).astype(np.uint8)
    predicted = truth.copy()
    predicted[0] = predicted[-1] = 0  # not looked at
    predicted[2][two] = 0  # the second object is lost in one of three frames
    first, second = video.measure(truth, predicted)
    assert first == video.Measured(1, 1, 1, 1)
    assert second == pytest.approx((2 / 3, 2 / 3, 2 / 3, 2 / 3))


def test_ignored_pixels_count_neither_way_and_objects_come_later_or_leave():
    truth = np.stack([_square(5, 5, 20)] * 3).astype(np.uint8)
    predicted = truth.copy()
    predicted[1, :, :10], truth[1, :, :10] = 1, 255
    assert video.measure(truth, predicted)[0][:2] == (1, 1)
    truth = np.zeros((4, 20, 20), np.uint8)
    truth[:2, 2:6, 2:6], truth[1:, 10:14, 10:14] = 1, 2
    first, second = video.measure(truth, np.where(truth == 2, 0, truth))
    assert (first.j, first.f) == (1, 1)  # gone in frame 2, and not predicted there
    assert (second.j, second.f) == (0, 0)


@pytest.mark.parametrize("numbers", [(1, 200), (128,), (2, 3)])
def test_only_numbers_that_occur_are_objects(numbers):
    truth = np.zeros((3, 20, 20), np.uint8)
    for i, number in enumerate(numbers):
        truth[:, 2:6, 6 * i : 6 * i + 4] = number
    assert video.measure(truth, truth) == [video.Measured(1, 1, 1, 1)] * len(numbers)
    assert video.measure(truth, 0 * truth) == [video.Measured(0, 0, 0, 0)] * len(numbers)


@pytest.mark.parametrize("frames, value", [(3, 0), (2, 1)])
def test_no_object_and_too_few_frames_are_refused(frames, value):
    truth = np.full((frames, 4, 4), value, np.uint8)
    with pytest.raises(ValueError):
        video.measure(truth, truth)
