"""Dense retrieval against brute force in NumPy; mIoU by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.evals import dense
from tests.evals import fakes

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


def _brute_force(k, rule):
    labels = _majority(_TRAIN_MASKS).ravel()

    def unit(x):
        return x.reshape(-1, 6) / np.linalg.norm(x.reshape(-1, 6), axis=1, keepdims=True)

    bank, queries = unit(_TRAIN.astype(np.float64))[labels != 255], unit(_TEST.astype(np.float64))
    labels, predicted = labels[labels != 255], []
    for row in queries @ bank.T:
        near = np.argsort(-row)[:k]
        weights = np.exp(row[near] / 0.1) if rule == "softmax" else np.ones(k)
        predicted.append(np.argmax([weights[labels[near] == c].sum() for c in range(3)]))
    return np.reshape(predicted, (4, 4, 4))


def _miou(truth, predicted):
    values = []
    for c in np.unique(truth[truth != 255]):
        valid = truth != 255
        hit = (truth == c) & (predicted == c) & valid
        values.append(hit.sum() / (((truth == c) | (predicted == c)) & valid).sum())
    return np.mean(values)


@pytest.mark.parametrize("rule", ["plain", "softmax"])
def test_equals_brute_force(rule):
    found = dense.segment(
        _TRAIN,
        _TRAIN_MASKS,
        _TEST,
        _TEST_MASKS,
        num_classes=3,
        k=15,
        rule=rule,
        query_chunk=24,
        bank_chunk=40,
    )
    expected = _brute_force(15, rule)
    np.testing.assert_array_equal(found.predicted, expected)
    np.testing.assert_array_equal(found.truth, _majority(_TEST_MASKS))
    assert dense.mean_iou(found.patch_iou) == pytest.approx(_miou(found.truth, expected))
    pixels = expected.repeat(2, 1).repeat(2, 2)
    assert dense.mean_iou(found.pixel_iou) == pytest.approx(_miou(_TEST_MASKS, pixels))
    assert 0.3 < dense.mean_iou(found.patch_iou) < 1


@pytest.mark.parametrize("query_chunk, bank_chunk", [(7, 11), (64, 30), (1000, 1000), (5, 2)])
def test_the_running_top_k_is_exact_for_any_chunks(query_chunk, bank_chunk):
    rng = np.random.default_rng(1)
    bank, queries = rng.normal(size=(95, 6)), rng.normal(size=(33, 6))
    similarity, index = dense.nearest_streamed(
        queries, bank, k=8, query_chunk=query_chunk, bank_chunk=bank_chunk
    )
    exact = (queries / np.linalg.norm(queries, axis=1)[:, None]) @ (
        bank / np.linalg.norm(bank, axis=1)[:, None]
    ).T
    order = np.argsort(-exact, axis=1)[:, :8]
    np.testing.assert_array_equal(index, order)
    np.testing.assert_allclose(similarity, np.take_along_axis(exact, order, 1), atol=1e-6)


def test_equal_similarities_keep_the_order_of_the_bank_across_chunks():
    bank = np.tile([[1.0, 0.0], [0.0, 1.0]], (10, 1))
    _, index = dense.nearest_streamed(np.array([[1.0, 0.0]]), bank, k=6, bank_chunk=7)
    np.testing.assert_array_equal(index[0], [0, 2, 4, 6, 8, 10])


def test_more_neighbours_than_patches_and_negative_similarities():
    similarity, index = dense.nearest_streamed(
        np.array([[1.0, 0.0]]), np.array([[-1.0, 0.0], [0.0, -1.0]]), k=50
    )
    np.testing.assert_array_equal(index, [[1, 0]])
    np.testing.assert_allclose(similarity, [[0, -1]], atol=1e-7)


def test_rows_that_only_fill_up_a_chunk_are_never_found():
    bank = np.array([[-1.0, 0.2], [-1.0, 0.1], [-1.0, 0.0]])  # all less similar than a row of zeros
    similarity, index = dense.nearest_streamed(np.array([[1.0, 0.0]]), bank, k=2, bank_chunk=2)
    np.testing.assert_array_equal(index, [[0, 1]])
    assert (similarity < 0).all()


def test_majority_label_and_its_ties():
    mask = np.array([[[2, 1, 255, 255], [1, 2, 255, 0], [255, 255, 0, 0], [0, 0, 2, 2]]], np.uint8)
    labels = dense.patch_labels(mask, (2, 2), num_classes=3)
    # A tie of 1 and 2 goes to 1; three ignored pixels win; of 0 and ignore: the class; 0 and 2: the
    # lower.
    np.testing.assert_array_equal(labels[0], [[1, 255], [0, 0]])
    np.testing.assert_array_equal(
        labels, dense.patch_labels(mask.astype(np.int64), (2, 2), num_classes=3)
    )
    with pytest.raises(ValueError, match="equal patches"):
        dense.patch_labels(mask, (3, 2), num_classes=3)
    with pytest.raises(ValueError, match="label 2"):
        dense.patch_labels(mask, (2, 2), num_classes=2)


def test_majority_equals_brute_force():
    np.testing.assert_array_equal(
        dense.patch_labels(_TRAIN_MASKS, (4, 4), num_classes=3), _majority(_TRAIN_MASKS)
    )


def test_iou_by_hand():
    truth = np.array([0, 0, 0, 1, 1, 255, 255])
    predicted = np.array([0, 0, 1, 1, 2, 0, 2])
    counts = dense.confusion(truth, predicted, num_classes=4)
    np.testing.assert_array_equal(counts[:2, :3], [[2, 1, 0], [0, 1, 1]])
    # Class 0: 2 of 3. Class 1: 1 hit, 1 false alarm, 1 miss. Class 2 is only predicted; class 3
    # neither.
    skipped = dense.class_iou(counts, "skip")
    np.testing.assert_allclose(skipped, [2 / 3, 1 / 3, np.nan, np.nan])
    assert dense.mean_iou(skipped) == pytest.approx(0.5)
    counted = dense.class_iou(counts)
    np.testing.assert_allclose(counted, [2 / 3, 1 / 3, 0, np.nan])
    assert dense.mean_iou(counted) == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="zero, skip, got 'none'"):
        dense.class_iou(counts, "none")
    with pytest.raises(ValueError, match="ignored"):
        dense.mean_iou(dense.class_iou(np.zeros((2, 2))))


def test_enlarge_is_nearest():
    grid = np.array([[[1, 2], [3, 4]]])
    np.testing.assert_array_equal(dense.enlarge(grid, (4, 2))[0], [[1, 2], [1, 2], [3, 4], [3, 4]])


def _case(train_masks=_TRAIN_MASKS, test_masks=_TEST_MASKS, **changes):
    train = SimpleNamespace(patches=_TRAIN, masks=train_masks)
    test = SimpleNamespace(patches=_TEST, masks=test_masks)
    return fakes.case("dense", train, test, k=15, **changes)


def test_metrics_are_in_percent():
    metrics = dense.run(_case())
    expected = _brute_force(15, "plain")
    assert metrics["dense"] == pytest.approx(100 * _miou(_majority(_TEST_MASKS), expected))
    assert metrics["dense_pixel"] == pytest.approx(
        100 * _miou(_TEST_MASKS, expected.repeat(2, 1).repeat(2, 2))
    )
    with pytest.raises(InputError, match="needs masks"):
        dense.run(_case(train_masks=None))


def test_subsampled_banks_are_averaged_and_follow_the_seed():
    metrics = dense.run(_case(subsample=(3, 1), runs=2))
    singles = []
    for seed in (0, 1):
        rows = dense.features.subset(9, 3, seed)
        found = dense.segment(
            _TRAIN[rows], _TRAIN_MASKS[rows], _TEST, _TEST_MASKS, num_classes=3, k=15
        )
        singles.append(dense.mean_iou(found.patch_iou))
    assert metrics["dense"] == pytest.approx(100 * np.mean(singles))
    assert metrics["dense_sd"] == pytest.approx(100 * np.std(singles, ddof=1))
    assert singles[0] != singles[1]
    whole = dense.run(_case())
    assert metrics["dense_1in1"] == whole["dense"] != metrics["dense"]
    assert metrics["dense_1in1_pixel"] == whole["dense_pixel"]


def _grids(arrays):
    """The same values as Grids, in which the images could differ in size."""
    shapes = np.asarray([a.shape[:2] for a in arrays])
    return dense.Grids(np.concatenate([a.reshape(-1, *a.shape[2:]) for a in arrays]), shapes)


def test_images_of_different_sizes_give_the_same():
    """The test images are cut to different sizes; each patch finds what it found before."""
    cuts = [(4, 4), (2, 3), (3, 4), (4, 1)]
    whole = dense.segment(_TRAIN, _TRAIN_MASKS, _TEST, _TEST_MASKS, num_classes=3, k=15)
    test = _grids([x[:h, :w] for x, (h, w) in zip(_TEST, cuts)])
    masks = _grids([x[: 2 * h, : 2 * w] for x, (h, w) in zip(_TEST_MASKS, cuts)])
    train, train_masks = _grids(_TRAIN), _grids(_TRAIN_MASKS)
    found = dense.segment(train, train_masks, test, masks, num_classes=3, k=15)
    counts = np.zeros((3, 3), int)
    for i, (h, w) in enumerate(cuts):
        np.testing.assert_array_equal(found.predicted[i], whole.predicted[i][:h, :w])
        np.testing.assert_array_equal(found.truth[i], whole.truth[i][:h, :w])
        counts += dense.confusion(found.truth[i], found.predicted[i], num_classes=3)
    np.testing.assert_array_equal(found.patch_iou, dense.class_iou(counts))


def test_a_bank_in_a_file_is_searched_without_a_copy(tmp_path, monkeypatch):
    """Pieces of the bank are read one at a time, whatever rows of it count."""
    bank = np.lib.format.open_memmap(
        tmp_path / "bank.npy", mode="w+", dtype=np.float32, shape=(100, 6)
    )
    bank[:] = _RNG.normal(size=(100, 6))
    rows, read = np.flatnonzero(_RNG.random(100) < 0.6), []
    padded = dense._padded
    monkeypatch.setattr(dense, "_padded", lambda *a: read.append(padded(*a)) or read[-1])
    monkeypatch.setattr(dense, "_BLOCK", 8)
    queries = _TEST.reshape(-1, 6)[:20]
    similarity, index = dense.nearest_streamed(
        queries, bank, rows=rows, k=5, query_chunk=3, bank_chunk=7
    )
    assert max(len(part) for part in read) == 7

    def unit(x):
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    scores = unit(queries.astype(np.float64)) @ unit(np.asarray(bank[rows], np.float64)).T
    np.testing.assert_array_equal(index, rows[np.argsort(-scores, axis=1)[:, :5]])
    np.testing.assert_allclose(similarity, -np.sort(-scores, axis=1)[:, :5], atol=1e-6)


def test_labels_that_the_set_does_not_name_are_refused():
    case = _case(source=SimpleNamespace(mask_names=("sky", "road")))
    with pytest.raises(InputError, match="has class 2, but the set names 2 classes, 0 to 1"):
        dense.run(case)


def test_a_class_that_is_only_predicted_counts_or_not():
    """Class 2 is predicted and its truth is ignored: with "zero" its 0 joins the mean of three."""
    masks = np.where(_TEST_MASKS == 2, 255, _TEST_MASKS)
    predicted = _brute_force(15, "plain")
    truth = _majority(masks)
    assert (predicted[truth != 255] == 2).any()
    zero, skip = (dense.run(_case(test_masks=masks, absent=a)) for a in ("zero", "skip"))
    assert skip["dense"] == pytest.approx(100 * _miou(truth, predicted))
    assert zero["dense"] == pytest.approx(skip["dense"] * 2 / 3)
    assert zero["dense_pixel"] == pytest.approx(skip["dense_pixel"] * 2 / 3)


def test_a_bank_without_labels_is_refused():
    with pytest.raises(ValueError, match="every training patch is ignored"):
        dense.segment(_TRAIN, np.full_like(_TRAIN_MASKS, 255), _TEST, _TEST_MASKS, num_classes=3)
