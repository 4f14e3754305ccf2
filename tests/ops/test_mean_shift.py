"""Mean shift against float64 loops, its limits in the temperature, and the clusters it must
find.
"""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ssl_jax.ops.mean_shift import mean_shift
from tests.finite import assert_finite
from tests.losses.reference import close, unit

jitted = jax.jit(mean_shift)  # the temperature is traced: one program per shape


@jax.jit
def gradient(queries, keys, inverse_temperature, where):
    def total(q, k, t):
        modes = mean_shift(q, k, inverse_temperature=t, where=where)
        return jnp.sum(modes * jnp.cos(jnp.arange(modes.size).reshape(modes.shape)))

    return jax.grad(total, (0, 1, 2))(queries, keys, inverse_temperature)


def loops(queries, keys, tau, where=None):
    """Modes [q, d], FLSL eq. 4: softmax over the keys of tau <q, z>, then their weighted mean."""
    queries, keys = (np.asarray(x, np.float64) for x in (queries, keys))
    where = np.ones(len(keys), bool) if where is None else where
    result = np.zeros(queries.shape)
    if where.any():
        for i, q in enumerate(queries):
            logits = np.array([tau * (q @ z) for z in keys[where]])
            weights = np.exp(logits - logits.max())
            result[i] = sum(w * z for w, z in zip(weights / weights.sum(), keys[where]))
    return result


def normal(seed, *shapes):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def test_hand_worked():
    """<q, z> = 1 and 0 at tau = log 3: weights 3/4 and 1/4."""
    keys = jnp.array([[1.0, 0.0], [0.0, 2.0]])
    close(mean_shift(keys[:1], keys, inverse_temperature=np.log(3)), [[0.75, 0.5]])


@pytest.mark.parametrize("tau", [0.0051, 0.3, 7.0])
def test_equals_the_loops(tau):
    queries, keys = normal(0, (2, 3, 5, 8), (2, 3, 11, 8))
    got = mean_shift(queries, keys, inverse_temperature=tau)
    assert got.shape == (2, 3, 5, 8)
    close(got, [[loops(q, k, tau) for q, k in zip(*row)] for row in zip(queries, keys)])
    shared = mean_shift(queries, keys[0, 0], inverse_temperature=tau)
    close(shared, [[loops(q, keys[0, 0], tau) for q in row] for row in queries])


def test_gradients():
    queries, keys = normal(1, (3, 4), (5, 4))
    where = np.array([True, True, False, True, True])
    for mask in (None, where):

        def step(q, k, t, mask=mask):
            return mean_shift(q, k, inverse_temperature=t, where=mask)

        check_grads(step, (queries, keys, jnp.float32(0.7)), 1, eps=1e-2, atol=1e-2, rtol=1e-2)
    # Self-attention: the tokens are both queries and keys.
    check_grads(
        lambda z: mean_shift(z, z, inverse_temperature=0.7),
        (keys,),
        1,
        eps=1e-2,
        atol=1e-2,
        rtol=1e-2,
    )


def test_temperature_limits():
    """The mean of the keys at 0; the nearest unit key, for keys themselves,
    at 1e4.
    """
    rng = np.random.default_rng(2)
    keys, queries = unit(rng, 20, 8), unit(rng, 5, 8)
    for run in (jitted, mean_shift):  # 0 passes where its value is known, too
        close(run(queries, keys, inverse_temperature=0.0), np.tile(keys.mean(axis=0), (5, 1)))
    close(jitted(keys[:5], keys, inverse_temperature=1e4), keys[:5])
    close(jitted(queries, keys, inverse_temperature=1e5), keys[(queries @ keys.T).argmax(axis=1)])


def test_modes_lie_in_the_convex_hull():
    """A support function never exceeds that of the keys; unit keys give
    norms <= 1.
    """
    queries, keys, directions = normal(3, (9, 6), (12, 6), (6, 50))
    for tau in (0.1, 1.0, 30.0):
        modes = np.asarray(mean_shift(queries, keys, inverse_temperature=tau))
        assert ((modes @ directions).max(axis=0) <= (keys @ directions).max(axis=0) + 1e-5).all()
        short = mean_shift(queries, unit(np.random.default_rng(4), 12, 6), inverse_temperature=tau)
        assert np.linalg.norm(short, axis=-1).max() <= 1 + 1e-6
    ones = np.ones((4, 6), np.float32)
    close(mean_shift(queries, ones, inverse_temperature=3.0), np.ones((9, 6)))  # weights sum to 1


def test_equal_tokens_stay_where_they_are():
    tokens = np.tile(normal(5, (1, 16))[0], (7, 1))
    for tau in (0.0, 0.1, 50.0):
        close(jitted(tokens, tokens, inverse_temperature=tau), tokens)


def test_separated_clusters_reach_their_own_mean():
    """The mass on the other cluster is at most N exp(-tau m)."""
    rng = np.random.default_rng(6)
    first, second = (
        np.eye(4)[0] + 0.02 * rng.normal(size=(10, 4)),
        -np.eye(4)[0] + 0.02 * rng.normal(size=(10, 4)),
    )
    keys = np.concatenate([first, second]).astype(np.float32)
    margin = (first @ first.T).min() - (first @ second.T).max()
    modes = np.asarray(mean_shift(keys[:10], keys, inverse_temperature=4.0))
    bound = 20 * np.exp(-4.0 * margin) * np.linalg.norm(first.mean(axis=0) - second.mean(axis=0))
    assert np.linalg.norm(modes - first.mean(axis=0), axis=1).max() <= bound + 0.03
    spread = np.linalg.norm(modes - modes.mean(axis=0), axis=1)
    assert (
        spread.max() < 0.2 * np.linalg.norm(first - first.mean(axis=0), axis=1).max()
    )  # modes, not tokens


def test_hidden_keys_count_for_nothing():
    queries, keys = normal(7, (3, 4, 5), (3, 6, 5))
    where = np.ones((3, 6), bool)
    where[0, [0, 3]] = False
    where[1, 1:] = False
    where[2] = False
    got = jitted(queries, keys, inverse_temperature=0.5, where=where)
    close(got, [loops(q, k, 0.5, w) for q, k, w in zip(queries, keys, where)])
    assert not got[2].any()
    poisoned = np.where(where[..., None], keys, np.nan)
    np.testing.assert_array_equal(
        jitted(queries, poisoned, inverse_temperature=0.5, where=where), got
    )
    for mine, theirs in zip(
        gradient(queries, poisoned, 0.5, where), gradient(queries, keys, 0.5, where)
    ):
        np.testing.assert_array_equal(mine, theirs)
        assert np.isfinite(mine).all()
    by_query, by_key, _ = gradient(queries, poisoned, 0.5, where)
    assert not by_key[~where].any() and by_key[where].any() and not by_query[2].any()


def test_vmap_remat_and_shards_agree():
    queries, keys = normal(8, (8, 3, 4), (8, 6, 4))

    def step(q, k):
        return mean_shift(q, k, inverse_temperature=0.5)

    want = step(queries, keys)
    close(jax.vmap(step)(queries, keys), want)

    def total(q, k):
        return jnp.sum(jnp.sin(step(q, k)))

    close(jax.grad(jax.checkpoint(total), 1)(queries, keys), jax.grad(total, 1)(queries, keys))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    across = jax.NamedSharding(mesh, jax.P("data"))
    close(jax.jit(step)(*jax.device_put((queries, keys), across)), want)


@hypothesis.settings(max_examples=40, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    shape=st.sampled_from(((1, 1, 1), (4, 6, 3), (2, 5, 16))),  # q, n, d
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16, jnp.float16)),
    scales=st.tuples(*2 * [st.sampled_from((0.0, 1e-4, 1.0, 1e4))]),
    tau=st.sampled_from((0.0, 0.01, 1.0, 100.0)),
    duplicates=st.booleans(),
    hidden=st.integers(0, 63),
    seed=st.integers(0, 1000),
)
def test_finite_and_in_the_box_of_the_keys_at_any_scale(
    shape, dtype, scales, tau, duplicates, hidden, seed
):
    q, n, d = shape
    queries, keys = normal(seed, (q, d), (n, d))
    if duplicates:
        keys[:] = keys[0]
    queries, keys = (jnp.asarray(x * scale, dtype) for x, scale in zip((queries, keys), scales))
    where = np.array([not hidden >> i & 1 for i in range(n)])
    got = np.asarray(jitted(queries, keys, inverse_temperature=tau, where=where))
    assert got.dtype == np.float32
    wide = np.asarray(keys, np.float64)
    if where.any():
        slack = 1e-6 * np.abs(wide).max()
        assert (got <= wide[where].max(axis=0) + slack).all() and (
            got >= wide[where].min(axis=0) - slack
        ).all()
    else:
        assert not got.any()
    if tau * np.prod(scales) <= 1:  # beyond, rounding of the products decides between keys
        close(got, loops(queries, keys, tau, where))
    wide = (queries.astype(jnp.float32), keys.astype(jnp.float32))
    assert_finite(got, gradient(*wide, tau, where))


def test_gradients_keep_low_precision_types():
    queries, keys = (jnp.asarray(x, jnp.bfloat16) for x in normal(9, (3, 4), (5, 4)))
    by_query, by_key, _ = gradient(queries, keys, 0.5, None)
    assert by_query.dtype == by_key.dtype == jnp.bfloat16


def test_errors():
    queries, keys = jnp.ones((2, 5, 3)), jnp.ones((2, 4, 3))

    def step(q, k, t=1.0, **other):
        return mean_shift(q, k, inverse_temperature=t, **other)

    with pytest.raises(ValueError, match=r"shape of queries is \(3,\); it must be \[..., q, d\]"):
        step(jnp.ones(3), keys)
    with pytest.raises(
        ValueError, match=r"shape of keys is \(2, 4, 2\); it must be \[..., n, 3\] as queries"
    ):
        step(queries, jnp.ones((2, 4, 2)))
    with pytest.raises(
        ValueError,
        match=r"shape of keys is \(2, 0, 3\); it must be \[..., n, 3\] as queries with n >= 1",
    ):
        step(queries, jnp.ones((2, 0, 3)))
    with pytest.raises(
        ValueError, match=r"leading axes of keys is \(3,\); it must be broadcastable against \(2,\)"
    ):
        step(queries, jnp.ones((3, 4, 3)))
    with pytest.raises(ValueError, match=r"shape of where is \(4,\); it must be \[2, 4\] as keys"):
        step(queries, keys, where=jnp.ones(4, bool))
    for bad in (-0.1, np.inf, np.nan):
        with pytest.raises(
            ValueError,
            match=f"inverse_temperature is {bad}; it must be a finite number, 0 or above",
        ):
            step(queries, keys, bad)
    with pytest.raises(
        ValueError, match=r"inverse_temperature is an array of shape \(1,\); it must be a scalar"
    ):
        step(queries, keys, np.ones(1))
