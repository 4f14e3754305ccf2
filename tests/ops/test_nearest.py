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
from tests.finite import assert_finite
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
        (1280, 1, None, None),
        (1280, 4, 3, 128),
        (1300, 4, 7, None),
        (1300, 2, 1000, 650),
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
    queries, bank = (
        rng.normal(size=(10, 6)).astype(np.float32),
        rng.normal(size=(size, 6)).astype(np.float32),
    )
    values, index = nearest(queries, bank, k=k, metric=metric, chunk=chunk, bank_chunk=bank_chunk)
    want_values, want_index = full_sort(queries, bank, k, metric=metric)
    np.testing.assert_array_equal(index, want_index)
    assert index.dtype == jnp.int32
    close(values, want_values)


def test_by_hand():
    """Cosines of (3, 4) with (1, 0), (0, 2), (-3, -4): 0.6, 0.8, -1."""
    values, index = nearest(
        np.array([[3.0, 4.0]]), np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, -4.0]]), k=3
    )
    assert index.tolist() == [[1, 0, 2]]
    close(values, [[0.8, 0.6, -1]])
    values, _ = nearest(
        np.array([[3.0, 4.0]]), np.array([[1.0, 0.0], [0.0, 2.0], [-3.0, -4.0]]), k=3, metric="dot"
    )
    assert values.tolist() == [[8, 3, -25]]


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
    scores[[700, 701, 300, 301]] = (
        9,
        3,
        8,
        3,
    )  # block 5 has the larger maximum, block 2 the lower row of value 3
    values, index = ops.nearest(np.ones((1, 1), np.float32), scores[:, None], k=3, metric="dot")
    assert index.tolist() == [[700, 300, 301]] and values.tolist() == [[9, 8, 3]]


@pytest.mark.parametrize("bank_chunk", [None, 100, 99])
def test_where_hides_rows_and_missing_neighbours_are_minus_infinity(bank_chunk):
    search = functools.partial(nearest, bank_chunk=bank_chunk)
    rng = np.random.default_rng(1)
    queries, bank, where = unit(rng, 5, 4), unit(rng, 700, 4), rng.uniform(size=700) < 0.3
    values, index = search(queries, bank, k=2, where=where)
    want_values, want_index = full_sort(queries, bank, 2, where)
    np.testing.assert_array_equal(index, want_index)
    close(values, want_values)
    only = np.zeros(700, bool)
    only[[3, 650]] = True
    values, index = search(queries, bank, k=3, where=only)
    assert {3, 650} == set(np.asarray(index[:, :2]).reshape(-1).tolist())
    assert (values[:, 2] == -np.inf).all() and not only[np.asarray(index[:, 2])].any()
    values, index = search(queries, bank, k=2, where=np.zeros(700, bool))
    assert (values == -np.inf).all() and index.min() >= 0 and index.max() < 700


def test_leading_axes_low_precision_and_zero_vectors():
    rng = np.random.default_rng(2)
    queries, bank = (
        jnp.asarray(rng.normal(size=(2, 3, 5, 4)), jnp.bfloat16),
        rng.normal(size=(40, 4)),
    )
    bank[7] = 0
    bank = jnp.asarray(bank, jnp.float16)
    values, index = ops.nearest(queries, bank, k=39)
    assert values.shape == index.shape == (2, 3, 5, 39) and values.dtype == jnp.float32
    kept = np.delete(np.asarray(bank, np.float32), 7, axis=0)
    close(values[..., :5], full_sort(np.asarray(queries, np.float32), kept, 5)[0])
    assert np.isfinite(values).all()
    same = jax.vmap(jax.vmap(lambda q: ops.nearest(q, bank, k=39)))(queries)
    np.testing.assert_array_equal(index, same[1])


def test_gradient_reaches_queries_and_bank_through_the_values():
    rng = np.random.default_rng(3)
    queries, bank = unit(rng, 2, 3), unit(rng, 9, 3)
    by_query, by_bank = jax.grad(lambda q, b: ops.nearest(q, b, metric="dot")[0].sum(), (0, 1))(
        queries, bank
    )
    hits = full_sort(queries, bank, 1)[1][:, 0]
    close(by_query, bank[hits])
    want = np.zeros((9, 3))
    np.add.at(want, hits, queries)
    close(by_bank, want)


@pytest.mark.parametrize(
    "options", [{}, {"metric": "dot"}, {"chunk": 2, "bank_chunk": 4}, {"group_size": 4}], ids=str
)
def test_gradients_against_finite_differences(options):
    rng = np.random.default_rng(4)
    queries, bank = rng.normal(size=(2, 12, 3)), rng.normal(size=(12, 3))
    check_grads(
        lambda q, b: ops.nearest(q, b, k=2, **options)[0],
        (queries, bank),
        order=1,
        atol=1e-2,
        rtol=1e-2,
        eps=1e-3,
    )


def test_missing_neighbours_and_zero_vectors_have_finite_gradients():
    where = np.arange(5) == 2
    for metric in ("cosine", "dot"):
        search = functools.partial(ops.nearest, k=2, where=where, metric=metric)

        def total(queries, bank, search=search):
            values = search(queries, bank)[0]
            return jnp.where(jnp.isfinite(values), values, 0).sum()

        gradients = jax.grad(total, (0, 1))
        assert all(np.isfinite(g).all() for g in gradients(jnp.zeros((2, 3)), jnp.zeros((5, 3))))


def test_a_missing_neighbour_has_no_gradient():
    queries, bank = np.float32([[1, 2]]), np.float32([[3, 4], [5, 6]])

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
    queries, bank, where = (
        rng.normal(size=(2, size, 4)),
        rng.normal(size=(size, 4)),
        rng.uniform(size=size) < 0.8,
    )
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
    queries, bank = (
        rng.normal(size=(7, 4)),
        rng.normal(size=(500, 4)) * np.exp(rng.normal(size=(500, 1))),
    )
    inverse = 1 / np.linalg.norm(bank, axis=-1)
    for options in ({}, {"bank_chunk": 99}):
        values, index = nearest(queries, bank, k=3, inverse_norms=inverse, **options)
        np.testing.assert_array_equal(index, full_sort(queries, bank, 3)[1])
        close(values, full_sort(queries, bank, 3)[0])
    assert (
        nearest(queries, bank, inverse_norms=inverse * (np.arange(500) == 77))[1].tolist()
        != index[:, :1].tolist()
    )


def test_equals_faiss():
    faiss = pytest.importorskip("faiss")
    rng = np.random.default_rng(7)
    queries, bank = unit(rng, 20, 16), unit(rng, 3000, 16)
    flat = faiss.IndexFlatIP(16)
    flat.add(bank)
    want_values, want_index = flat.search(queries, 5)
    values, index = nearest(queries, bank, k=5, metric="dot", bank_chunk=1000)
    np.testing.assert_array_equal(index, want_index)
    close(values, want_values)


@pytest.mark.parametrize("bank_chunk", [None, 500])
@pytest.mark.parametrize("recall_target", [0.5, 0.95])
def test_recall_of_the_approximate_form(recall_target, bank_chunk):
    """On a CPU it is 1, as the docstring says; elsewhere at least near the target."""
    rng = np.random.default_rng(8)
    queries, bank = unit(rng, 50, 8), unit(rng, 4000, 8)
    index = nearest(
        queries, bank, k=10, method="approx", recall_target=recall_target, bank_chunk=bank_chunk
    )[1]
    want = full_sort(queries, bank, 10)[1]
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(index.tolist(), want.tolist())])
    assert recall == 1 if jax.default_backend() == "cpu" else recall > recall_target - 0.05


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    size=st.sampled_from((1, 300)),
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16, jnp.float16)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    exist=st.sampled_from((0.0, 0.5, 1.0)),
    kind=st.sampled_from(("random", "duplicates", "whole")),
    metric=st.sampled_from(("cosine", "dot")),
    chunked=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_properties(size, dtype, scale, exist, kind, metric, chunked, seed):
    """In order, of existing rows, each once, none missed, and each value that of its pair."""
    rng = np.random.default_rng(seed)
    queries, bank, where = (
        rng.normal(size=(5, 3)),
        rng.normal(size=(size, 3)),
        rng.uniform(size=size) < exist,
    )
    if kind == "duplicates":
        bank = bank[rng.integers(0, max(1, size // 4), size)]
    if kind == "whole":
        queries, bank = queries.round(), bank.round()
    queries, bank = (jnp.asarray(x * scale, dtype) for x in (queries, bank))
    k = min(3, size)
    chunks = {"chunk": 2, "bank_chunk": max(k, size // 3)} if chunked else {}
    values, index = (
        np.asarray(x) for x in nearest(queries, bank, k=k, where=where, metric=metric, **chunks)
    )
    want = full_sort(queries, bank, k, where, metric)[0]
    assert values.dtype == np.float32 and not np.isnan(values).any()
    exists = np.isfinite(want)
    np.testing.assert_array_equal(np.isfinite(values), exists)
    assert_finite(values[exists])
    close(np.where(exists, values, 0), np.where(exists, want, 0))
    assert ((0 <= index) & (index < size)).all() and (where[index] == exists).all()
    assert (values[:, 1:] <= values[:, :-1]).all()
    assert all(len(set(row)) == k for row in index.tolist())
    queries, bank = (np.asarray(x, np.float64) for x in (queries, bank))
    scores = np.einsum("qd,qkd->qk", queries, bank[index])
    if metric == "cosine":
        norms = np.linalg.norm(queries, axis=-1)[:, None] * np.linalg.norm(bank[index], axis=-1)
        scores = np.where(norms > 0, scores / np.where(norms > 0, norms, 1), 0)
    close(np.where(exists, values, 0), np.where(exists, scores, 0))


def temporary_bytes(function, *shapes):
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    return jax.jit(function).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("metric", ["dot", "cosine"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
def test_a_large_bank_is_read_in_parts(metric, dtype):
    """256 queries and 800,000 rows: a twentieth of the similarities, and no second bank (normalised
    or converted).
    """
    bank = (800_000, 256)
    needed = temporary_bytes(
        functools.partial(ops.nearest, metric=metric), ((256, 256), jnp.float32), (bank, dtype)
    )
    assert needed < 256 * bank[0] * 4 / 20
    plain = temporary_bytes(
        lambda q, b: jnp.argmax(q @ b.T, -1), ((256, 256), jnp.float32), (bank, jnp.float32)
    )
    assert needed < plain / 20


def test_never_holds_all_similarities():
    needed = temporary_bytes(
        functools.partial(ops.nearest, k=8, metric="dot"),
        ((4096, 64), jnp.float32),
        ((65536, 64), jnp.float32),
    )
    assert needed < 4096 * 65536 * 4 / 10


def test_neither_does_the_gradient():
    gradient = jax.grad(lambda q, b: ops.nearest(q, b, k=2)[0].sum(), (0, 1))
    needed = temporary_bytes(gradient, ((4096, 64), jnp.float32), ((65536, 64), jnp.float32))
    assert needed < 4096 * 65536 * 4 / 5


def test_groups_hold_a_share_of_the_similarities():
    search = functools.partial(ops.nearest, group_size=4096)
    needed = temporary_bytes(search, ((32768, 16), jnp.float32), ((32768, 16), jnp.float32))
    assert needed < 32768 * 4096 * 4 / 5


def test_sharded_queries_stay_where_they_are():
    """Every pass takes queries of every device: similarities are computed and reduced to candidates
      where they are.

    (XLA's CPU top-k is not partitioned, so block maxima and candidates are gathered; similarities
    and queries are not.)"""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    across, everywhere = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), ()))
    rng = np.random.default_rng(5)
    queries, bank = unit(rng, 64, 4), unit(rng, 600, 4)
    search = jax.jit(functools.partial(ops.nearest, k=2, chunk=16))
    arguments = jax.device_put(queries, across), jax.device_put(bank, everywhere)
    text = search.lower(*arguments).compile().as_text()
    assert not any(word in text for word in ("all-reduce", "all-to-all", "collective-permute"))
    gathered = re.findall(r"= \w+\[(\d+),(\d+)\]\S* all-gather\(", text)
    assert all(int(rows) == 16 and int(columns) <= 2 * 128 for rows, columns in gathered)
    for got, want in zip(search(*arguments), search(queries, bank)):
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_a_sharded_bank_stays_where_it_is():
    """Every pass reads rows of every device; similarities are reduced to block maxima and
    candidates before they travel.
    """
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    across, everywhere = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), ()))
    rng = np.random.default_rng(9)
    queries, bank = unit(rng, 16, 12), unit(rng, 16384, 12)
    search = jax.jit(functools.partial(ops.nearest, k=2, bank_chunk=8192))
    arguments = jax.device_put(queries, everywhere), jax.device_put(bank, across)
    text = search.lower(*arguments).compile().as_text()
    moved = re.findall(
        r"= (?:\()?\w+\[([\d,]*)\]\S* (?:all-gather|all-reduce|all-to-all|collective-permute)\(",
        text,
    )
    assert moved
    for dims in moved:
        assert (
            np.prod([int(size) for size in dims.split(",") if size]) <= 16 * 2 * 128
        )  # of 16 x 8192 in a pass
    for got, want in zip(search(*arguments), full_sort(queries, bank, 2)):
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_errors():
    queries, bank = jnp.ones((2, 3)), jnp.ones((5, 3))
    with pytest.raises(ValueError, match="k is 6; it must be between 1 and 5"):
        ops.nearest(queries, bank, k=6)
    with pytest.raises(
        ValueError, match=r"shape of bank is \(5, 3\); it must be \[n, 4\] as queries"
    ):
        ops.nearest(jnp.ones((2, 4)), bank)
    with pytest.raises(ValueError, match=r"shape of where is \(4,\); it must be \[5\]"):
        ops.nearest(queries, bank, where=jnp.ones(4, bool))
    with pytest.raises(ValueError, match="method is 'fast'"):
        ops.nearest(queries, bank, method="fast")
    with pytest.raises(ValueError, match="metric is 'l2'"):
        ops.nearest(queries, bank, metric="l2")
    with pytest.raises(ValueError, match="chunk is 0"):
        ops.nearest(queries, bank, chunk=0)
    with pytest.raises(ValueError, match="bank_chunk is 1; it must be at least k = 2"):
        ops.nearest(queries, bank, k=2, bank_chunk=1)
    with pytest.raises(ValueError, match="group_size is 0; it must be at least 1"):
        ops.nearest(bank, bank, group_size=0)
    with pytest.raises(ValueError, match="number of queries is 2; it must be 5"):
        ops.nearest(queries, bank, group_size=2)
    with pytest.raises(ValueError, match="k is 3; it must be between 1 and 2, the rows of a group"):
        ops.nearest(bank, bank, k=3, group_size=2)
    with pytest.raises(ValueError, match=r"recall_target is 1.5; it must be in \(0, 1\]"):
        ops.nearest(queries, bank, recall_target=1.5)
    with pytest.raises(
        ValueError, match='inverse_norms is an array; it must be None with metric "dot"'
    ):
        ops.nearest(queries, bank, metric="dot", inverse_norms=jnp.ones(5))
    with pytest.raises(ValueError, match=r"shape of inverse_norms is \(4,\); it must be \[5\]"):
        ops.nearest(queries, bank, inverse_norms=jnp.ones(4))
