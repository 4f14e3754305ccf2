"""Localization against float64 loops, and the low-rank recomposition that it is made for."""

import functools

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ssl_jax.ops.localization import localization
from tests.finite import assert_finite
from tests.losses.reference import close

jitted = jax.jit(localization)  # the temperature is traced: one program per shape


@jax.jit
def gradient(dense, sparse, temperature, cotangent):
    return jax.grad(
        lambda u, s, t: jnp.sum(cotangent * localization(u, s, temperature=t)), (0, 1, 2)
    )(dense, sparse, temperature)


def loops(dense, sparse, tau):
    """L [n, r], STELLAR eq. 7: softmax over r of cos / tau; tau None: of <u, s> / sqrt(d)."""
    dense, sparse = (np.asarray(x, np.float64) for x in (dense, sparse))
    result = np.zeros((len(dense), len(sparse)))
    for i, u in enumerate(dense):
        for j, s in enumerate(sparse):
            scale = np.sqrt(len(u)) if tau is None else np.linalg.norm(u) * np.linalg.norm(s) * tau
            result[i, j] = u @ s / scale if scale else 0
        result[i] = np.exp(result[i] - result[i].max())
        result[i] /= result[i].sum()
    return result


def tokens(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def test_hand_worked():
    """cos = 1 and 0 for the first row, 0.6 and 0.8 for the second, both zero for the third."""
    dense, sparse = (
        jnp.array([[5.0, 0.0], [0.3, 0.4], [0.0, 0.0]]),
        jnp.array([[2.0, 0.0], [0.0, 0.1]]),
    )
    odds = np.array(
        [np.exp(1 / 0.2), np.exp(-0.2 / 0.2), 1.0]
    )  # of the first token against the second
    close(
        localization(dense, sparse, temperature=0.2),
        np.stack([odds / (1 + odds), 1 / (1 + odds)], axis=1),
    )


@pytest.mark.parametrize("tau", [0.06, 1.0, None])
def test_equals_the_loops(tau):
    dense, sparse = tokens(0, (3, 10, 6), (3, 4, 6))
    got = localization(dense, sparse, temperature=tau)
    assert got.shape == (3, 10, 4)
    close(got, np.stack([loops(u, s, tau) for u, s in zip(dense, sparse)]))
    close(
        localization(dense, sparse[1], temperature=tau),
        np.stack([loops(u, sparse[1], tau) for u in dense]),
    )


def test_default_temperature_is_that_of_the_paper():
    dense, sparse = tokens(1, (5, 3), (4, 3))
    close(localization(dense, sparse), loops(dense, sparse, 0.06))


@pytest.mark.parametrize("tau", [0.5, None])
def test_gradients(tau):
    dense, sparse = tokens(2, (3, 4), (2, 4))
    check_grads(
        functools.partial(localization, temperature=tau),
        (dense, sparse),
        1,
        eps=1e-2,
        atol=1e-2,
        rtol=1e-2,
    )
    if tau:
        check_grads(
            lambda t: localization(dense, sparse, temperature=t),
            (jnp.float32(tau),),
            1,
            eps=1e-2,
            atol=1e-2,
        )


def test_recomposition_has_low_rank_and_stays_in_the_convex_hull():
    """Rank(L S) <= r, every row in the hull of S's rows (a support function
    never exceeds).
    """
    dense, sparse, directions = tokens(3, (2, 30, 12), (2, 4, 12), (12, 50))
    low_rank = np.asarray(localization(dense, sparse), np.float64) @ sparse
    assert all(np.linalg.matrix_rank(z, tol=1e-4) <= 4 for z in low_rank)
    assert ((low_rank @ directions).max(axis=1) <= (sparse @ directions).max(axis=1) + 1e-5).all()


def test_permuting_sparse_tokens_permutes_columns_and_not_the_recomposition():
    dense, sparse = tokens(4, (9, 8), (5, 8))
    order = np.array([3, 0, 4, 1, 2])
    here, there = localization(dense, sparse), localization(dense, sparse[order])
    close(there, here[:, order])
    close(there @ sparse[order], here @ sparse)


def test_temperature_limits():
    """Uniform for hot, one-hot for cold."""
    dense, sparse = tokens(5, (7, 6), (4, 6))
    close(jitted(dense, sparse, temperature=1e6), np.full((7, 4), 0.25))
    nearest = (dense @ (sparse / np.linalg.norm(sparse, axis=1, keepdims=True)).T).argmax(axis=1)
    close(jitted(dense, sparse, temperature=1e-5), np.eye(4)[nearest])


def test_vmap_remat_and_shards_agree():
    dense, sparse = tokens(6, (8, 6, 4), (8, 3, 4))
    want = localization(dense, sparse)
    close(jax.vmap(localization)(dense, sparse), want)

    def total(u, s):
        return jnp.sum(localization(u, s)[..., 0])

    close(jax.grad(jax.checkpoint(total))(dense, sparse), jax.grad(total)(dense, sparse))
    across = jax.NamedSharding(
        jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,)), jax.P("data")
    )
    close(jax.jit(localization)(*jax.device_put((dense, sparse), across)), want)


@hypothesis.settings(max_examples=40, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    shape=st.sampled_from(((1, 1, 1), (6, 3, 4), (2, 5, 16))),  # n, r, d
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16, jnp.float16)),
    scales=st.tuples(*2 * [st.sampled_from((0.0, 1e-4, 1.0, 1e4))]),
    temperature=st.sampled_from((0.02, 0.06, 1.0)),
    duplicates=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_rows_are_distributions_at_any_scale(shape, dtype, scales, temperature, duplicates, seed):
    n, r, d = shape
    dense, sparse = tokens(seed, (n, d), (r, d))
    if duplicates:
        sparse[:] = sparse[0]
    dense, sparse = (jnp.asarray(x * scale, dtype) for x, scale in zip((dense, sparse), scales))
    got = jitted(dense, sparse, temperature=temperature)
    assert got.dtype == jnp.float32 and (got >= 0).all()
    close(got.sum(axis=-1), np.ones(n))
    wide = [np.asarray(x, np.float64) for x in (dense, sparse)]
    close(
        got, loops(*wide, temperature), absolute=2e-6 / temperature
    )  # cosines are rounded before the division
    if duplicates:
        close(got, np.full((n, r), 1 / r))
    cotangent = np.random.default_rng(seed).normal(size=got.shape).astype(np.float32)
    by_dense, by_sparse, by_temperature = gradient(
        dense.astype(jnp.float32), sparse.astype(jnp.float32), temperature, cotangent
    )
    assert_finite(got, by_dense, by_sparse, by_temperature)


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15])
def test_gradient_of_extreme_vectors(scale):
    """The derivative of a unit vector scales with 1 / |x|; its square and cube would leave
    float32.
    """
    dense, sparse = tokens(7, (3, 4), (2, 4))
    cotangent = np.arange(6, dtype=np.float32).reshape(3, 2)
    plain = gradient(dense, sparse, 0.5, cotangent)[0]
    close(gradient(np.float32(dense * scale), sparse, 0.5, cotangent)[0] * scale, plain)


def test_gradients_keep_low_precision_types():
    dense, sparse = (jnp.asarray(x, jnp.bfloat16) for x in tokens(8, (3, 4), (2, 4)))
    by_dense, by_sparse = jax.grad(lambda u, s: localization(u, s)[:, 0].sum(), (0, 1))(
        dense, sparse
    )
    assert by_dense.dtype == by_sparse.dtype == jnp.bfloat16


def test_errors():
    dense, sparse = jnp.ones((2, 5, 3)), jnp.ones((2, 4, 3))
    with pytest.raises(ValueError, match=r"shape of dense is \(3,\); it must be \[..., n, d\]"):
        localization(jnp.ones(3), sparse)
    with pytest.raises(
        ValueError, match=r"shape of sparse is \(2, 4, 2\); it must be \[..., r, 3\] as dense"
    ):
        localization(dense, jnp.ones((2, 4, 2)))
    with pytest.raises(
        ValueError,
        match=r"shape of sparse is \(2, 0, 3\); it must be \[..., r, 3\] as dense with r >= 1",
    ):
        localization(dense, jnp.ones((2, 0, 3)))
    with pytest.raises(
        ValueError,
        match=r"leading axes of sparse is \(3,\); it must be broadcastable against \(2,\)",
    ):
        localization(dense, jnp.ones((3, 4, 3)))
    with pytest.raises(ValueError, match="temperature is 0; it must be a finite number above 0"):
        localization(dense, sparse, temperature=0)
