"""Dense retrieval against scikit-learn and brute force in NumPy."""

from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import jaccard_score
from sklearn.neighbors import KNeighborsClassifier

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.evals import dense
from ssl_jax.features import extract
from ssl_jax.scores import streamed
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
    parts, how = (_TRAIN, _TRAIN_MASKS, _TEST, _TEST_MASKS), dict(query_chunk=24, bank_chunk=40)
    found = dense.segment(*parts, num_classes=3, k=15, rule=rule, **how)
    expected = _expected(15, rule)
    np.testing.assert_array_equal(found.predicted, expected)
    np.testing.assert_array_equal(found.truth, _majority(_TEST_MASKS))
    assert dense.mean_iou(found.patch_iou) == pytest.approx(_miou(found.truth, expected))
    pixels = expected.repeat(2, 1).repeat(2, 2)
    assert dense.mean_iou(found.pixel_iou) == pytest.approx(_miou(_TEST_MASKS, pixels))
    assert 0.3 < dense.mean_iou(found.patch_iou) < 1


@pytest.fixture(params=["host", "device"])
def selection(request, monkeypatch):
    """Where neighbours are selected: CPUs and accelerators differ."""
    monkeypatch.setattr(streamed, "_on_host", lambda: request.param == "host")


@pytest.mark.parametrize("query_chunk, bank_chunk", [(7, 11), (64, 30), (5, 2)])
@pytest.mark.usefixtures("selection")
def test_the_running_top_k_is_exact_for_any_chunks(query_chunk, bank_chunk, tmp_path):
    """Of a bank in a file, too, of which some rows count."""
    rng = np.random.default_rng(1)
    bank, queries = rng.normal(size=(95, 6)), rng.normal(size=(33, 6))
    how = dict(k=8, query_chunk=query_chunk, bank_chunk=bank_chunk)
    np.save(tmp_path / "bank.npy", bank)
    some = np.flatnonzero(rng.random(95) < 0.6)
    filed = np.load(tmp_path / "bank.npy", mmap_mode="r")
    found = (
        (np.arange(95), dense.nearest_streamed(queries, bank, **how)),
        (some, dense.nearest_streamed(queries, filed, rows=some, **how)),
    )
    for rows, (similarity, index) in found:
        exact = _unit(queries) @ _unit(bank[rows]).T
        order = np.argsort(-exact, axis=1)[:, :8]
        np.testing.assert_array_equal(index, rows[order])
        np.testing.assert_allclose(similarity, np.take_along_axis(exact, order, 1), atol=1e-6)


@pytest.mark.parametrize(
    "bank, k, chunk, index, similarity",
    [
        # Equal ones keep the order of the bank across chunks.
        ([[1, 0], [0, 1]] * 10, 6, 7, [0, 2, 4, 6, 8, 10], [1] * 6),
        # More neighbours than patches, and negative similarities.
        ([[-1, 0], [0, -1]], 50, 512, [1, 0], [0, -1]),
        # All less similar than a row of zeros, which fills up a chunk.
        ([[-1, 0.2], [-1, 0.1], [-1, 0]], 2, 2, [0, 1], [-0.980581, -0.995037]),
        # Of more equal ones than neighbours, behind a nearer one of a later piece.
        ([[0, 1]] * 9 + [[1, 0]] + [[0, 1]] * 9, 3, 5, [9, 0, 1], [1, 0, 0]),
    ],
)
@pytest.mark.usefixtures("selection")
def test_neighbours_at_the_edges(bank, k, chunk, index, similarity):
    query, bank = np.array([[1.0, 0.0]]), np.array(bank, float)
    found = dense.nearest_streamed(query, bank, k=k, bank_chunk=chunk)
    np.testing.assert_array_equal(found[1], [index])
    np.testing.assert_allclose(found[0], [similarity], atol=1e-6)


def test_majority_label_and_its_ties():
    mask = np.array([[[2, 1, 255, 255], [1, 2, 255, 0], [255, 255, 0, 0], [0, 0, 2, 2]]], np.uint8)
    labels = dense.patch_labels(mask, (2, 2), num_classes=3)
    # A tie of 1 and 2 goes to 1; three ignored pixels win; of 0 and ignore: the class; 0 and 2: the
    # lower.
    np.testing.assert_array_equal(labels[0], [[1, 255], [0, 0]])
    wide = dense.patch_labels(mask.astype(np.int64), (2, 2), num_classes=3)
    np.testing.assert_array_equal(labels, wide)
    for grid, classes in (((3, 2), 3), ((2, 2), 2)):
        with pytest.raises(ValueError):
            dense.patch_labels(mask, grid, num_classes=classes)
    with pytest.raises(ValueError):  # a bank without labels
        dense.segment(_TRAIN, np.full_like(_TRAIN_MASKS, 255), _TEST, _TEST_MASKS, num_classes=3)
    found = dense.patch_labels(_TRAIN_MASKS, (4, 4), num_classes=3)
    np.testing.assert_array_equal(found, _majority(_TRAIN_MASKS))


def _case(train_masks=_TRAIN_MASKS, test_masks=_TEST_MASKS, **changes):
    train = SimpleNamespace(patches=_TRAIN, masks=train_masks)
    test = SimpleNamespace(patches=_TEST, masks=test_masks)
    return fakes.case("dense", train, test, k=15, **changes)


def test_subsampled_banks_are_averaged_and_follow_the_seed():
    metrics = evals.TYPES["dense"].run(_case(subsample=(3, 1), runs=2))
    singles = []
    for seed in (0, 1):
        rows = extract.subset(9, 3, seed)
        part = _TRAIN[rows], _TRAIN_MASKS[rows]
        found = dense.segment(*part, _TEST, _TEST_MASKS, num_classes=3, k=15)
        singles.append(dense.mean_iou(found.patch_iou))
    assert metrics["dense"] == pytest.approx(100 * np.mean(singles))
    assert metrics["dense_sd"] == pytest.approx(100 * np.std(singles, ddof=1))
    assert singles[0] != singles[1]
    whole, expected = evals.TYPES["dense"].run(_case()), _expected(15, "plain")
    assert whole["dense"] == pytest.approx(100 * _miou(_majority(_TEST_MASKS), expected))
    pixels = expected.repeat(2, 1).repeat(2, 2)
    assert whole["dense_pixel"] == pytest.approx(100 * _miou(_TEST_MASKS, pixels))
    assert metrics["dense_1in1"] == whole["dense"] != metrics["dense"]
    assert metrics["dense_1in1_pixel"] == whole["dense_pixel"]
    with pytest.raises(InputError, match="class 2"):  # which the set does not name
        evals.TYPES["dense"].run(_case(source=fakes.Source(_TEST, mask_names=("sky", "road"))))


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


def test_a_class_that_is_only_predicted_counts_or_not():
    """Class 2 is predicted and its truth is ignored: with "zero" its 0 joins the mean of three."""
    masks = np.where(_TEST_MASKS == 2, 255, _TEST_MASKS)
    predicted = _expected(15, "plain")
    truth = _majority(masks)
    assert (predicted[truth != 255] == 2).any()
    zero, skip = (
        evals.TYPES["dense"].run(_case(test_masks=masks, absent=a)) for a in ("zero", "skip")
    )
    assert skip["dense"] == pytest.approx(100 * _miou(truth, predicted))
    assert zero["dense"] == pytest.approx(skip["dense"] * 2 / 3)
    assert zero["dense_pixel"] == pytest.approx(skip["dense_pixel"] * 2 / 3)
