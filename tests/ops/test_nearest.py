"""Exact nearest neighbours against a full sort in float64."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import ops
from tests.losses.reference import close, unit


def full_sort(queries, bank, k, where=None, metric="cosine"):
    queries, bank = (np.asarray(x, np.float64) for x in (queries, bank))
    if metric == "cosine":
        queries, bank = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (queries, bank))
    scores = queries @ bank.T
    if where is not None:
        scores = np.where(where, scores, -np.inf)
    index = np.argsort(-scores, axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(scores, index, axis=-1), index


@pytest.mark.parametrize("metric", ["cosine", "dot"])
@pytest.mark.parametrize(
    ("size", "k", "chunk"),
    [(50, 3, None), (50, 50, 4), (1280, 1, None), (1280, 4, 3), (1300, 4, 7), (1300, 2, 1000), (1281, 5, 1)],
)  # blocks skipped or not, with and without padding, in one pass or several with a remainder
def test_equals_a_full_sort(metric, size, k, chunk):
    rng = np.random.default_rng(size + k)
    queries, bank = rng.normal(size=(10, 6)).astype(np.float32), rng.normal(size=(size, 6)).astype(np.float32)
    values, index = jax.jit(functools.partial(ops.nearest, k=k, metric=metric, chunk=chunk))(queries, bank)
    want_values, want_index = full_sort(queries, bank, k, metric=metric)
    np.testing.assert_array_equal(index, want_index)
    assert index.dtype == jnp.int32
    close(values, want_values)


@pytest.mark.parametrize("chunk", [None, 3])
def test_ties_go_to_the_lower_row(chunk):
    """Whole numbers, so that equal scores are equal in floating point; many ties within and across blocks of 128."""
    rng = np.random.default_rng(0)
    queries, bank = (rng.integers(-1, 2, size=(n, 3)).astype(np.float32) for n in (9, 2000))
    values, index = ops.nearest(queries, bank, k=6, metric="dot", chunk=chunk)
    want_values, want_index = full_sort(queries, bank, 6, metric="dot")
    np.testing.assert_array_equal(values, want_values)
    np.testing.assert_array_equal(index, want_index)


def test_ties_behind_different_block_maxima_go_to_the_lower_row():
    scores = np.zeros(1300, np.float32)
    scores[[700, 701, 300, 301]] = 9, 3, 8, 3  # block 5 has the larger maximum, block 2 the lower row of value 3
    values, index = ops.nearest(np.ones((1, 1), np.float32), scores[:, None], k=3, metric="dot")
    assert index.tolist() == [[700, 300, 301]] and values.tolist() == [[9, 8, 3]]


def test_where_hides_rows_and_missing_neighbours_are_minus_infinity():
    rng = np.random.default_rng(1)
    queries, bank, where = unit(rng, 5, 4), unit(rng, 700, 4), rng.uniform(size=700) < 0.3
    values, index = ops.nearest(queries, bank, k=2, where=where)
    want_values, want_index = full_sort(queries, bank, 2, where)
    np.testing.assert_array_equal(index, want_index)
    close(values, want_values)
    only = np.zeros(700, bool)
    only[[3, 650]] = True
    values, index = ops.nearest(queries, bank, k=3, where=only)
    assert {3, 650} == set(np.asarray(index[:, :2]).reshape(-1).tolist())
    assert (values[:, 2] == -np.inf).all() and not only[np.asarray(index[:, 2])].any()
    values, index = ops.nearest(queries, bank, k=2, where=np.zeros(700, bool))
    assert (values == -np.inf).all() and index.min() >= 0 and index.max() < 700


def test_leading_axes_low_precision_and_zero_vectors():
    rng = np.random.default_rng(2)
    queries, bank = jnp.asarray(rng.normal(size=(2, 3, 5, 4)), jnp.bfloat16), rng.normal(size=(40, 4))
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
    by_query, by_bank = jax.grad(lambda q, b: ops.nearest(q, b, metric="dot")[0].sum(), (0, 1))(queries, bank)
    hits = full_sort(queries, bank, 1)[1][:, 0]
    close(by_query, bank[hits])
    want = np.zeros((9, 3))
    np.add.at(want, hits, queries)
    close(by_bank, want)


def test_approximate_form_is_exact_here():
    rng = np.random.default_rng(4)
    queries, bank = unit(rng, 4, 5), unit(rng, 300, 5)
    np.testing.assert_array_equal(ops.nearest(queries, bank, k=3, method="approx")[1], full_sort(queries, bank, 3)[1])


def test_never_holds_all_similarities():
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4096, 64), (65536, 64))]
    compiled = jax.jit(functools.partial(ops.nearest, k=8, metric="dot")).lower(*shapes).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4096 * 65536 * 4 / 10


def test_sharded_queries_stay_where_they_are():
    """Every pass takes queries of every device: similarities are computed and reduced to candidates where they are.

    (XLA's CPU top-k is not partitioned, so block maxima and candidates are gathered; similarities and queries are not.)
    """
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


def test_errors():
    queries, bank = jnp.ones((2, 3)), jnp.ones((5, 3))
    with pytest.raises(ValueError, match="k is 6; it must be between 1 and 5"):
        ops.nearest(queries, bank, k=6)
    with pytest.raises(ValueError, match=r"shape of queries is \(2, 4\)"):
        ops.nearest(jnp.ones((2, 4)), bank)
    with pytest.raises(ValueError, match=r"shape of where is \(4,\); it must be \[5\]"):
        ops.nearest(queries, bank, where=jnp.ones(4, bool))
    with pytest.raises(ValueError, match="method is 'fast'"):
        ops.nearest(queries, bank, method="fast")
    with pytest.raises(ValueError, match="metric is 'l2'"):
        ops.nearest(queries, bank, metric="l2")
    with pytest.raises(ValueError, match="chunk is 0"):
        ops.nearest(queries, bank, chunk=0)
