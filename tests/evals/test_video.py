"""J and F on masks made by hand, and F against a search through all pairs of boundary pixels."""

import os

import numpy as np
import pytest

from ssl_jax.data.source import make_source
from ssl_jax.evals import video


def _square(top, left, side, size=40):
    mask = np.zeros((size, size), bool)
    mask[top : top + side, left : left + side] = True
    return mask


def test_region_similarity():
    a, b = _square(0, 0, 4), _square(0, 2, 4)
    assert video.region_similarity(a, b) == pytest.approx(8 / 24)
    assert video.region_similarity(a, a) == 1 and video.region_similarity(a, ~a) == 0
    assert video.region_similarity(a & ~a, a & ~a) == 1


def test_boundary_is_the_pixel_before_a_change():
    mask = np.zeros((5, 6), bool)
    mask[1:3, 2:4] = True
    expected = np.zeros((5, 6), bool)
    expected[0, 1:4] = expected[1, 1] = expected[1, 3] = True
    expected[2, 1:4] = True
    np.testing.assert_array_equal(video.boundary(mask), expected)
    # the border of the image is none
    assert not video.boundary(np.ones((4, 4), bool)).any()
    edge = np.zeros((4, 4), bool)
    edge[2:, 2:] = True
    np.testing.assert_array_equal(
        np.argwhere(video.boundary(edge)), [[1, 1], [1, 2], [1, 3], [2, 1], [3, 1]]
    )


def _naive(truth, predicted, tolerance=0.008):
    """F by the distances of all pairs of boundary pixels, each found by looking at its three
    neighbours."""

    def edge(mask):
        height, width = mask.shape
        found = []
        for y in range(height):
            for x in range(width):
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


@pytest.mark.parametrize("seed", range(6))
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


def test_a_real_sequence_perturbed():
    """Masks of DAVIS as "predictions" of the frames after them, and moved by some pixels."""
    folder = os.environ.get("SSL_JAX_DATA", "")
    if not os.path.isdir(os.path.join(folder, "DAVIS")):
        pytest.skip("set SSL_JAX_DATA to a folder that holds DAVIS")
    places = dict(kind="davis", dir=os.path.join(folder, "DAVIS"), split="2016/val")
    source = make_source(places)
    records = list(source.sequences.values())[0]
    masks = [source[i]["mask"] == 1 for i in list(records)[:9:4]]
    for truth, later in zip(masks, masks[1:]):
        for predicted in (later, np.roll(truth, (3, -5), (0, 1)), truth):
            union = (truth | predicted).sum()
            assert video.region_similarity(truth, predicted) == pytest.approx(
                (truth & predicted).sum() / union
            )
            expected = _naive(truth, predicted)
            assert video.boundary_accuracy(truth, predicted) == pytest.approx(expected)
        assert 0 < _naive(truth, later) < 1 == _naive(truth, truth)


def test_boundary_accuracy_of_nothing():
    nothing, square = _square(0, 0, 0), _square(5, 5, 9)
    assert video.boundary_accuracy(nothing, nothing) == 1
    assert video.boundary_accuracy(square, nothing) == 0
    assert video.boundary_accuracy(nothing, square) == 0
    assert video.boundary_accuracy(square, _square(28, 28, 9)) == 0  # both exist, far apart


def test_tolerance_is_a_share_of_the_diagonal():
    # diagonal 56.6: .008 is one pixel, .06 four
    truth, moved = _square(10, 10, 12), _square(10, 14, 12)
    assert video.boundary_accuracy(truth, _square(10, 11, 12)) == 1
    assert video.boundary_accuracy(truth, moved) < 0.8
    assert video.boundary_accuracy(truth, moved, 0.06) == 1


def test_first_and_last_frame_do_not_count_and_objects_are_averaged_one_by_one():
    one, two = _square(2, 2, 8), _square(20, 20, 10)
    truth = np.stack([one + 2 * two] * 5).astype(np.uint8)
    predicted = truth.copy()
    predicted[0] = predicted[-1] = 0  # not looked at
    predicted[2][two] = 0  # the second object is lost in one of three frames
    first, second = video.measure(truth, predicted)
    assert first == video.Measured(1, 1, 1, 1)
    assert second == pytest.approx((2 / 3, 2 / 3, 2 / 3, 2 / 3))


def test_ignored_pixels_count_neither_way():
    one = _square(5, 5, 20)
    truth = np.stack([one] * 3).astype(np.uint8)
    predicted = truth.copy()
    predicted[1, :, :10] = 1
    truth[1, :, :10] = 255
    assert video.measure(truth, predicted)[0].j == 1
    assert video.measure(truth, predicted)[0].f == 1


def test_an_object_that_comes_later_or_leaves():
    truth = np.zeros((4, 20, 20), np.uint8)
    truth[:2, 2:6, 2:6], truth[1:, 10:14, 10:14] = 1, 2
    first, second = video.measure(truth, np.where(truth == 2, 0, truth))
    assert (first.j, first.f) == (1, 1)  # gone in frame 2, and not predicted there
    assert (second.j, second.f) == (0, 0)


def test_refuses():
    truth = np.zeros((3, 4, 4), np.uint8)
    with pytest.raises(ValueError, match="no object"):
        video.measure(truth, truth)
    with pytest.raises(ValueError, match="at least 3"):
        video.measure(truth[:2], truth[:2])
