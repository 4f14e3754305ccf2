"""Mean shift against float64 loops and with hidden keys."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ssl_jax.ops.mean_shift import mean_shift
from tests.losses.reference import close

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


@pytest.mark.parametrize("tau", [0.0, 0.0051, 0.3, 7.0])
def test_equals_the_loops(tau):
    queries, keys = normal(0, (2, 3, 5, 8), (2, 3, 11, 8))
    got = mean_shift(queries, keys, inverse_temperature=tau)
    close(got, [[loops(q, k, tau) for q, k in zip(*row)] for row in zip(queries, keys)])
    shared = mean_shift(queries, keys[0, 0], inverse_temperature=tau)
    close(shared, [[loops(q, keys[0, 0], tau) for q in row] for row in queries])


@pytest.mark.parametrize("where", [None, np.array([True, True, False, True, True])])
def test_gradients(where):
    queries, keys = normal(1, (3, 4), (5, 4))

    @jax.jit
    def step(q, k, t):
        return mean_shift(q, k, inverse_temperature=t, where=where)

    check_grads(step, (queries, keys, jnp.float32(0.7)), 1, eps=1e-2, atol=1e-2, rtol=1e-2)


def test_hidden_keys_count_for_nothing():
    queries, keys = normal(7, (3, 4, 5), (3, 6, 5))
    where = np.ones((3, 6), bool)
    where[0, [0, 3]] = False
    where[1, 1:] = False
    where[2] = False
    got = jitted(queries, keys, inverse_temperature=0.5, where=where)
    close(got, [loops(q, k, 0.5, w) for q, k, w in zip(queries, keys, where)])
    poisoned = np.where(where[..., None], keys, np.nan)
    hidden = jitted(queries, poisoned, inverse_temperature=0.5, where=where)
    np.testing.assert_array_equal(hidden, got)
    gradients = gradient(queries, poisoned, 0.5, where)
    for mine, theirs in zip(gradients, gradient(queries, keys, 0.5, where)):
        np.testing.assert_array_equal(mine, theirs)
    by_query, by_key, _ = gradients
    assert not by_key[~where].any() and by_key[where].any() and not by_query[2].any()


@hypothesis.given(
    shape=st.sampled_from(((1, 1, 1), (4, 6, 3))),  # q, n, d
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    tau=st.sampled_from((0.0, 0.0051, 1.0)),
    hidden=st.integers(0, 63),
    seed=st.integers(0, 1000),
)
def test_equals_the_loops_at_any_scale(shape, dtype, scale, tau, hidden, seed):
    """Of the keys; beyond products of 1, rounding decides between keys."""
    q, n, d = shape
    queries, keys = normal(seed, (q, d), (n, d))
    queries, keys = jnp.asarray(queries * min(1, 1 / max(scale, 1)), dtype), keys * scale
    keys, where = jnp.asarray(keys, dtype), np.array([not hidden >> i & 1 for i in range(n)])
    got = jitted(queries, keys, inverse_temperature=tau, where=where)
    close(got, loops(queries, keys, tau, where))
