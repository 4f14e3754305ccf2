"""Neighbours and their votes against scikit-learn in float64."""

import chex
import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from ssl_jax.scores import neighbours

_RNG = np.random.default_rng(0)
_CENTRES = _RNG.normal(size=(5, 12))
_BANK_LABELS = _RNG.integers(0, 5, 150)
_BANK = _CENTRES[_BANK_LABELS] + 1.5 * _RNG.normal(size=(150, 12))
_QUERY_LABELS = _RNG.integers(0, 5, 70)
_QUERIES = _CENTRES[_QUERY_LABELS] + 1.5 * _RNG.normal(size=(70, 12))


def _expected(k):
    """By scikit-learn, in float64: protocol A1."""
    knn = KNeighborsClassifier(k, metric="cosine", weights=lambda d: np.exp((1 - d) / 0.07))
    return knn.fit(_BANK, _BANK_LABELS).predict(_QUERIES)


def test_equals_scikit_learn_k_is_limited_to_the_bank_and_blocks_change_nothing(monkeypatch):
    whole = neighbours.classify(_BANK, _BANK_LABELS, _QUERIES, num_classes=5)
    for name, size in dict(BLOCK=48, _VOTES=5 * 32).items():
        monkeypatch.setattr(neighbours, name, size)
    found = neighbours.classify(_BANK, _BANK_LABELS, _QUERIES, num_classes=5)
    assert list(found.predictions) == [10, 20, 100, 150]
    for k, predicted in found.predictions.items():
        np.testing.assert_array_equal(predicted, _expected(k))
    assert found.similarity.shape == found.index.shape == (70, 150)
    assert (np.diff(found.similarity, axis=1) <= 0).all()
    chex.assert_trees_all_equal(found, whole)
    zero = neighbours.classify(_BANK, _BANK_LABELS, np.zeros((1, 12)), num_classes=5)
    assert np.isfinite(zero.similarity).all()
    for labels, queries in (
        (_BANK_LABELS, _QUERIES[:, :3]),
        (_BANK_LABELS[:3], _QUERIES),
        (_BANK_LABELS + 9, _QUERIES),
        (_BANK_LABELS - 1, _QUERIES),
        (_BANK_LABELS + 2**32, _QUERIES),
        (_BANK_LABELS + 0.5, _QUERIES),
        (_BANK_LABELS, np.where(_QUERIES > 2, np.nan, _QUERIES)),
        (_BANK_LABELS, np.where(_QUERIES > 2, np.inf, _QUERIES)),
    ):
        with pytest.raises(ValueError):
            neighbours.classify(_BANK, labels, queries, num_classes=5)
        with pytest.raises(ValueError):
            neighbours.retrieve(_BANK, labels, queries, num_classes=5, k=3)
    with pytest.raises(ValueError, match="bank"):
        neighbours.classify(np.full_like(_BANK, np.nan), _BANK_LABELS, _QUERIES, num_classes=5)


def test_only_labels_that_are_searched_must_be_classes():
    labels = np.where(np.arange(150) < 100, _BANK_LABELS, 255)
    found = neighbours.retrieve(_BANK, labels, _QUERIES, num_classes=5, k=7, rows=np.arange(100))
    wanted = neighbours.retrieve(_BANK[:100], labels[:100], _QUERIES, num_classes=5, k=7)
    np.testing.assert_array_equal(found, wanted)


def test_weights_matter_and_equal_scores_go_to_the_lowest_class():
    # One very near neighbour of class 1 outvotes two far ones of class 0.
    bank = np.array([[1.0, 0.02], [0.6, 0.8], [0.6, -0.8]])
    for temperature in (0.07, 1e-2, 1e-6):  # however sharp: the weights are not infinite
        how = dict(num_classes=2, ks=(3,), temperature=temperature)
        assert neighbours.classify(bank, [1, 0, 0], [[1.0, 0.0]], **how).predictions[3] == 1
    how = dict(num_classes=4, ks=(2,))
    assert neighbours.classify(np.ones((2, 2)), [3, 2], [[1.0, 1.0]], **how).predictions[2] == 2


def test_each_vector_of_a_set_votes(monkeypatch):
    """Among the vectors of all sets, and in pieces if there are many votes."""
    bank, queries = _BANK.reshape(50, 3, 12), _QUERIES[:69].reshape(23, 3, 12)
    labels = _RNG.integers(0, 5, 50)
    expected = neighbours.classify(
        _BANK, np.repeat(labels, 3), _QUERIES[:69], num_classes=5, ks=(7, 500)
    )
    for votes in (neighbours._VOTES, 9):
        monkeypatch.setattr(neighbours, "_VOTES", votes)
        found = neighbours.classify_sets(bank, labels, queries, num_classes=5, ks=(7, 500))
        assert list(found) == [7, 150]  # no more than there are
        for k, predicted in found.items():
            np.testing.assert_array_equal(predicted, expected.predictions[k].reshape(23, 3))


def _unit(rows):
    rows = np.asarray(rows, np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(params=["host", "device"])
def selection(request, monkeypatch):
    """Where neighbours are selected: CPUs and accelerators differ."""
    monkeypatch.setattr(neighbours, "_on_host", lambda: request.param == "host")


@pytest.mark.parametrize("query_chunk, bank_chunk", [(7, 11), (64, 30), (5, 2)])
@pytest.mark.usefixtures("selection")
def test_the_running_top_k_is_exact_for_any_chunks(query_chunk, bank_chunk, tmp_path, monkeypatch):
    """Of a bank in a file, too, of which some rows count."""
    rng = np.random.default_rng(1)
    bank, queries = rng.normal(size=(95, 6)), rng.normal(size=(33, 6))
    monkeypatch.setattr(neighbours, "QUERY_CHUNK", query_chunk)
    monkeypatch.setattr(neighbours, "BANK_CHUNK", bank_chunk)
    np.save(tmp_path / "bank.npy", bank)
    some = np.flatnonzero(rng.random(95) < 0.6)
    filed = np.load(tmp_path / "bank.npy", mmap_mode="r")
    found = (
        (np.arange(95), neighbours.nearest_streamed(queries, bank, k=8)),
        (some, neighbours.nearest_streamed(queries, filed, rows=some, k=8)),
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
def test_neighbours_at_the_edges(bank, k, chunk, index, similarity, monkeypatch):
    query, bank = np.array([[1.0, 0.0]]), np.array(bank, float)
    monkeypatch.setattr(neighbours, "BANK_CHUNK", chunk)
    found = neighbours.nearest_streamed(query, bank, k=k)
    np.testing.assert_array_equal(found[1], [index])
    np.testing.assert_allclose(found[0], [similarity], atol=1e-6)
