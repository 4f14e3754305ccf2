"""Localization against float64 loops, and the low-rank recomposition that it is made for."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ssl_jax.ops.localization import localization
from tests.losses.reference import close

jitted = jax.jit(localization)  # the temperature is traced: one program per shape


@jax.jit
def gradient(dense, sparse, temperature, cotangent):
    def total(u):
        return jnp.sum(cotangent * localization(u, sparse, temperature=temperature))

    return jax.grad(total)(dense)


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


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": None}])
def test_equals_the_loops(options):
    dense, sparse = tokens(0, (3, 10, 6), (3, 4, 6))
    tau = options.get("temperature", 0.06)
    got = localization(dense, sparse, **options)
    close(got, np.stack([loops(u, s, tau) for u, s in zip(dense, sparse)]))
    shared = localization(dense, sparse[1], **options)
    close(shared, np.stack([loops(u, sparse[1], tau) for u in dense]))


@pytest.mark.parametrize("tau", [0.5, None])
def test_gradients(tau):
    dense, sparse = tokens(2, (3, 4), (2, 4))
    arguments = (dense, sparse) if tau is None else (dense, sparse, jnp.float32(tau))
    function = jax.jit(lambda u, s, t=tau: localization(u, s, temperature=t))
    check_grads(function, arguments, 1, eps=1e-2, atol=1e-2, rtol=1e-2)


def test_recomposition_has_low_rank_and_stays_in_the_convex_hull():
    """Rank(L S) <= r, every row in the hull of S's rows (a support function never exceeds)."""
    dense, sparse, directions = tokens(3, (2, 30, 12), (2, 4, 12), (12, 50))
    low_rank = np.asarray(jitted(dense, sparse), np.float64) @ sparse
    assert all(np.linalg.matrix_rank(z, tol=1e-4) <= 4 for z in low_rank)
    assert ((low_rank @ directions).max(axis=1) <= (sparse @ directions).max(axis=1) + 1e-5).all()


@hypothesis.given(
    shape=st.sampled_from(((1, 1, 1), (6, 3, 4))),  # n, r, d
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16)),
    scales=st.tuples(*2 * [st.sampled_from((0.0, 1e-4, 1.0, 1e4))]),
    temperature=st.sampled_from((0.02, 0.06, 1.0)),
    seed=st.integers(0, 1000),
)
def test_equals_the_loops_at_any_scale(shape, dtype, scales, temperature, seed):
    n, r, d = shape
    dense, sparse = (
        jnp.asarray(x * s, dtype) for x, s in zip(tokens(seed, (n, d), (r, d)), scales)
    )
    got = jitted(dense, sparse, temperature=temperature)
    want = loops(dense, sparse, temperature)
    close(got, want, absolute=2e-6 / temperature)  # cosines are rounded before the division


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15])
def test_gradient_of_extreme_vectors(scale):
    """The derivative of a unit vector scales with 1 / |x|; its square and cube would leave
    float32.
    """
    dense, sparse = tokens(7, (3, 4), (2, 4))
    cotangent = np.arange(6, dtype=np.float32).reshape(3, 2)
    plain = gradient(dense, sparse, 0.5, cotangent)
    close(gradient(np.float32(dense * scale), sparse, 0.5, cotangent) * scale, plain)
