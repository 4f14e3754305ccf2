"""Nearest neighbours against a full sort in float64."""

import functools
import re

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ssl_jax import ops
from tests.losses.reference import close, unit

STATIC = ("k", "method", "metric", "group_size", "recall_target", "chunk", "bank_chunk")
nearest = jax.jit(ops.nearest, static_argnames=STATIC)


def full_sort(queries, bank, k, where=None, metric="cosine"):
    queries, bank = (np.asarray(x, np.float64) for x in (queries, bank))
    if metric == "cosine":
        norms = (np.linalg.norm(x, axis=-1, keepdims=True) for x in (queries, bank))
        queries, bank = (x / np.where(norm > 0, norm, 1) for x, norm in zip((queries, bank), norms))
    scores = queries @ bank.T
    if where is not None:
        scores = np.where(where, scores, -np.inf)
    index = np.argsort(-scores, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(scores, index, axis=-1), index


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize(
    ("size", "k", "chunk", "bank_chunk"),
    [
        (50, 3, None, None),
        (50, 50, 4, None),
        (1280, 4, 3, 128),
        (1300, 4, 7, None),
        (1281, 5, 1, 130),
        (1303, 3, 4, 300),  # a prime number of rows: padded
        (2560, 2, None, 1280),
        (11, 5, None, 5),
        (40, 40, 3, 40),
    ],
    # blocks skipped or not, with and without padding, in one pass or several with a remainder, over
    # queries and bank
)
def test_equals_a_full_sort(metric, size, k, chunk, bank_chunk):
    rng = np.random.default_rng(size + k)
    queries, bank = (rng.normal(size=(n, 6)).astype(np.float32) for n in (10, size))
    values, index = nearest(queries, bank, k=k, metric=metric, chunk=chunk, bank_chunk=bank_chunk)
    want_values, want_index = full_sort(queries, bank, k, metric=metric)
    np.testing.assert_array_equal(index, want_index)
    assert index.dtype == jnp.int32
    close(values, want_values)


@pytest.mark.parametrize("bank_chunk", [None, 100, 333])
@pytest.mark.parametrize("chunk", [None, 3])
def test_ties_go_to_the_lower_row(chunk, bank_chunk):
    """Whole numbers, so that equal scores are equal in floating point; many ties within and across
    blocks of 128.
    """
    rng = np.random.default_rng(0)
    queries, bank = (rng.integers(-1, 2, size=(n, 3)).astype(np.float32) for n in (9, 2000))
    values, index = nearest(queries, bank, k=6, metric="dot", chunk=chunk, bank_chunk=bank_chunk)
    want_values, want_index = full_sort(queries, bank, 6, metric="dot")
    np.testing.assert_array_equal(values, want_values)
    np.testing.assert_array_equal(index, want_index)


def test_ties_behind_different_block_maxima_go_to_the_lower_row():
    scores = np.zeros(1300, np.float32)
    # Block 5 has the larger maximum, block 2 the lower row of value 3.
    scores[[700, 701, 300, 301]] = 9, 3, 8, 3
    values, index = nearest(np.ones((1, 1)), scores[:, None], k=3, metric="dot")
    assert index.tolist() == [[700, 300, 301]] and values.tolist() == [[9, 8, 3]]


@pytest.mark.parametrize(
    "options", [{}, {"metric": "dot"}, {"chunk": 2, "bank_chunk": 4}, {"group_size": 4}], ids=str
)
def test_gradients_against_finite_differences(options):
    rng = np.random.default_rng(4)
    queries, bank = rng.normal(size=(2, 12, 3)), rng.normal(size=(12, 3))
    search = jax.jit(lambda q, b: ops.nearest(q, b, k=2, **options)[0])
    check_grads(search, (queries, bank), order=1, atol=1e-2, rtol=1e-2, eps=1e-3)


def test_a_missing_neighbour_has_no_gradient():
    queries, bank = np.float32([[1, 2]]), np.float32([[np.nan, 4], [5, 6]])

    def total(q, b):
        return ops.nearest(q, b, k=2, where=np.array([False, True]), metric="dot")[0].sum()

    by_query, by_bank = jax.grad(total, (0, 1))(queries, bank)
    assert by_query.tolist() == [[5, 6]] and by_bank.tolist() == [[0, 0], [1, 2]]


@pytest.mark.parametrize(
    ("size", "group", "k"),
    [(12, 4, 2), (11, 4, 3), (13, 4, 3), (12, 12, 5), (12, 100, 5), (300, 150, 1), (5, 1, 1)],
)
@pytest.mark.parametrize("chunks", [{}, {"chunk": 3, "bank_chunk": 5}], ids=str)
def test_groups_do_not_see_each_other(size, group, k, chunks):
    rng = np.random.default_rng(5)
    queries, bank = rng.normal(size=(2, size, 4)), rng.normal(size=(size, 4))
    where = rng.uniform(size=size) < 0.8
    own = np.arange(size)[:, None] // group == np.arange(size)[None] // group
    want_values, want_index = full_sort(queries, bank, k, where & own)
    values, index = nearest(queries, bank, k=k, where=where, group_size=group, **chunks)
    exists = np.isfinite(want_values)
    np.testing.assert_array_equal(np.isfinite(values), exists)
    np.testing.assert_array_equal(np.where(exists, index, -1), np.where(exists, want_index, -1))
    close(np.where(exists, values, 0), np.where(exists, want_values, 0))
    assert index.min() >= 0 and index.max() < size


def test_stored_inverse_norms():
    rng = np.random.default_rng(6)
    queries, bank = rng.normal(size=(7, 4)), rng.normal(size=(500, 4))
    bank *= np.exp(rng.normal(size=(500, 1)))
    inverse = 1 / np.linalg.norm(bank, axis=-1)
    want = full_sort(queries, bank, 3)
    for options in ({}, {"bank_chunk": 99}):
        values, index = nearest(queries, bank, k=3, inverse_norms=inverse, **options)
        np.testing.assert_array_equal(index, want[1])
        close(values, want[0])
    other = nearest(queries, bank, k=3, inverse_norms=inverse * (np.arange(500) == 77))[1]
    assert (other[:, 0] != want[1][:, 0]).any()


@pytest.mark.parametrize("recall_target", [0.5, 0.95])
def test_recall_of_the_approximate_form(recall_target):
    """On a CPU it is 1, as the docstring says; elsewhere at least near the target."""
    rng = np.random.default_rng(8)
    queries, bank = unit(rng, 50, 8), unit(rng, 4000, 8)
    options = dict(method="approx", recall_target=recall_target, bank_chunk=500)
    index = nearest(queries, bank, k=10, **options)[1]
    want = full_sort(queries, bank, 10)[1]
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(index.tolist(), want.tolist())])
    assert recall == 1 if jax.default_backend() == "cpu" else recall > recall_target - 0.05


@hypothesis.given(
    size=st.sampled_from((1, 300)),
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16, jnp.float16)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    exist=st.sampled_from((0.0, 0.5, 1.0)),
    kind=st.sampled_from(("random", "duplicates", "whole")),
    metric=st.sampled_from(("cosine", "dot")),
    seed=st.integers(0, 1000),
)
def test_properties(size, dtype, scale, exist, kind, metric, seed):
    """In order, of existing rows, each once, none missed, and each value that of its pair."""
    rng = np.random.default_rng(seed)
    queries, bank = rng.normal(size=(5, 3)), rng.normal(size=(size, 3))
    where = rng.uniform(size=size) < exist
    if kind == "duplicates":
        bank = bank[rng.integers(0, max(1, size // 4), size)]
    if kind == "whole":
        queries, bank = queries.round(), bank.round()
    queries, bank = (jnp.asarray(x * scale, dtype) for x in (queries, bank))
    k = min(3, size)
    options = dict(k=k, where=where, metric=metric, chunk=2, bank_chunk=max(k, size // 3 - 1))
    values, index = (np.asarray(x) for x in nearest(queries, bank, **options))
    assert not np.isnan(values).any() and (values[:, 1:] <= values[:, :-1]).all()
    assert ((0 <= index) & (index < size)).all()
    assert all(len(set(row)) == k for row in index.tolist())
    want = full_sort(queries, bank, k, where, metric)[0]
    exists = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(values), exists)
    np.testing.assert_array_equal(where[index], exists)
    all_scores = full_sort(queries, bank, size, metric=metric)
    order = np.argsort(all_scores[1], axis=-1)
    scores = np.take_along_axis(np.take_along_axis(all_scores[0], order, -1), index, -1)
    for expected in (want, scores):
        close(np.where(exists, values, 0), np.where(exists, expected, 0))


COLLECTIVES = r"= (?:\()?\w+\[([\d,]*)\]\S* (all-gather|all-reduce|all-to-all|collective-permute)\("


@pytest.mark.parametrize(
    ("cut", "count", "size", "chunks", "most"),
    [
        ("queries", 64, 600, dict(chunk=16), 16 * 2 * 128),
        ("bank", 16, 16384, dict(bank_chunk=8192), 16 * 2 * 128),  # of 16 x 8192 in a pass
    ],
)
def test_sharded_arrays_stay_where_they_are(cut, count, size, chunks, most):
    """Every pass takes queries, or rows of the bank, of every device: similarities are reduced to
    block maxima and candidates before they travel (XLA's CPU top-k is not partitioned).
    """
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rng = np.random.default_rng(9)
    arrays = dict(queries=unit(rng, count, 12), bank=unit(rng, size, 12))
    spread = {
        name: jax.device_put(x, jax.NamedSharding(mesh, jax.P("data") if name == cut else jax.P()))
        for name, x in arrays.items()
    }
    compiled = jax.jit(functools.partial(ops.nearest, k=2, **chunks)).lower(**spread).compile()
    moved = re.findall(COLLECTIVES, compiled.as_text())
    assert moved and (cut == "bank" or {kind for _, kind in moved} == {"all-gather"})
    for dims, _ in moved:
        assert np.prod([int(n) for n in dims.split(",") if n]) <= most
    for got, want in zip(compiled(**spread), full_sort(**arrays, k=2)):
        np.testing.assert_allclose(got, want, atol=1e-6)
