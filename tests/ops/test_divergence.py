"""Cross-entropy, entropy and divergence from uniform against float64, at the edges of the number
range too.
"""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ssl_jax import ops
from ssl_jax.ops.divergence import volume_regularizer
from tests.finite import assert_finite
from tests.losses import reference
from tests.losses.reference import close

cross_entropy = jax.jit(ops.cross_entropy)
gradient = jax.jit(
    jax.grad(lambda p, x, t: ops.cross_entropy(p, x, temperature=t).sum(), (0, 1, 2))
)
entropy = jax.jit(ops.entropy)
volume = jax.jit(volume_regularizer)
volume_gradient = jax.jit(jax.grad(lambda p: volume_regularizer(p).sum()))
TYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


def distributions(seed, shape, concentration):
    """Random probabilities in float64; concentration 0: one-hot."""
    rng = np.random.default_rng(seed)
    if concentration == 0:
        return np.eye(shape[-1])[rng.integers(shape[-1], size=shape[:-1])]
    return rng.dirichlet(np.full(shape[-1], concentration), shape[:-1])


def test_hand_worked():
    """softmax(0, log 3) = (1/4, 3/4)."""
    p, x = jnp.array([0.5, 0.5]), jnp.array([0.0, np.log(3)])
    close(ops.cross_entropy(p, x), -0.5 * np.log(3 / 16))
    close(ops.cross_entropy(p, 0.1 * x, temperature=0.1), -0.5 * np.log(3 / 16))
    close(ops.entropy(jnp.array([0.25, 0.75])), 2 * np.log(2) - 0.75 * np.log(3))


def test_values_and_gradients():
    rng = np.random.default_rng(0)
    p, x, tau = rng.dirichlet(np.ones(6), 5), rng.normal(size=(5, 6)), 0.3
    low = np.float32(p), np.float32(x)
    log_q = reference.log_softmax(x / tau)
    close(cross_entropy(*low, temperature=tau), -(p * log_q).sum(axis=-1))
    by_p, by_x, by_tau = gradient(*low, tau)
    close(by_p, -log_q)
    by_scaled = np.exp(log_q) - p
    close(by_x, by_scaled / tau)
    close(by_tau, -(by_scaled * x).sum() / tau**2)


def test_leading_axes_broadcast():
    rng = np.random.default_rng(1)
    p, x = (
        rng.dirichlet(np.ones(4), 3).astype(np.float32),
        rng.normal(size=(2, 3, 4)).astype(np.float32),
    )
    got = ops.cross_entropy(p, x, temperature=0.5)
    assert got.shape == (2, 3)
    close(got, -(p * reference.log_softmax(x / 0.5)).sum(axis=-1))


@hypothesis.settings(max_examples=30, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16, jnp.float16)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    temperature=st.sampled_from((0.02, 1.0)),
    seed=st.integers(0, 1000),
)
def test_finite_and_never_below_the_entropy(dtype, scale, temperature, seed):
    """With equality where both distributions coincide."""
    rng = np.random.default_rng(seed)
    p, x = (
        rng.dirichlet(np.full(5, 0.2), 4).astype(np.float32),
        jnp.asarray(rng.normal(size=(4, 5)) * scale, dtype),
    )
    got = cross_entropy(p, x, temperature=temperature)
    assert got.dtype == jnp.float32
    assert (got >= ops.entropy(p) - 1e-5).all()
    by_p, by_x, by_tau = gradient(p, x, temperature)
    assert_finite(got, by_p, by_x, by_tau)
    own = jax.nn.softmax(x.astype(jnp.float32) / temperature)
    close(cross_entropy(own, x, temperature=temperature), ops.entropy(own), absolute=1e-5)
    assert (
        np.abs(np.asarray(gradient(own, x, temperature)[1], np.float32)).max() <= 1e-5 / temperature
    )


@hypothesis.settings(max_examples=30, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    shape=st.sampled_from(
        ((1,), (3, 5), (2, 300))
    ),  # one class, and more than one vector of a processor
    dtypes=st.tuples(st.sampled_from(TYPES), st.sampled_from(TYPES)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    ties=st.booleans(),
    concentration=st.sampled_from((0, 0.1, 10)),
    temperature=st.sampled_from((0.02, 1.0)),
    seed=st.integers(0, 1000),
)
def test_cross_entropy_equals_float64(shape, dtypes, scale, ties, concentration, temperature, seed):
    p = jnp.asarray(distributions(seed, shape, concentration), dtypes[0])
    x = np.random.default_rng(seed).normal(size=shape) * scale
    x = jnp.asarray(np.round(x / max(scale, 1)) * scale if ties else x, dtypes[1])
    got = cross_entropy(p, x, temperature=temperature)
    assert got.dtype == jnp.float32 and (got >= -1e-6).all()
    log_q = reference.log_softmax(np.asarray(x, np.float64) / temperature)
    close(got, -(np.asarray(p, np.float64) * log_q).sum(axis=-1))
    wide = (
        p.astype(jnp.float32),
        x.astype(jnp.float32),
        temperature,
    )  # float16 cannot hold 1e4 / 0.02
    by_p, by_x, by_temperature = gradient(*wide)
    close(by_p, -log_q)
    close(
        by_x,
        (np.exp(log_q) * np.asarray(p, np.float64).sum(axis=-1, keepdims=True) - p) / temperature,
    )
    assert_finite(got, by_p, by_x, by_temperature)


def test_gradients_against_finite_differences():
    p, x = (
        np.float32(distributions(3, (4, 5), 1)),
        np.random.default_rng(3).normal(size=(4, 5)).astype(np.float32),
    )
    steps = dict(order=1, eps=1e-3, atol=1e-2, rtol=1e-2)
    check_grads(
        lambda *a: ops.cross_entropy(*a[:2], temperature=a[2]), (p, x, jnp.float32(0.5)), **steps
    )
    p = np.float32(0.8 * p + 0.04)  # away from 0, where the derivative is infinite
    check_grads(ops.entropy, (p,), **steps)
    check_grads(lambda log_p: ops.entropy(log_probs=log_p), (np.log(p),), **steps)
    check_grads(volume_regularizer, (p,), **steps)
    check_grads(lambda q: volume_regularizer(q, prior=p[0]), (p,), **steps)


def test_library_agrees():
    scipy = pytest.importorskip("scipy.stats")
    p, prior = distributions(4, (6, 9), 0.5), distributions(5, (9,), 2)
    close(ops.entropy(np.float32(p)), scipy.entropy(p, axis=-1))
    close(volume_regularizer(np.float32(p)), scipy.entropy(p, np.full(9, 1 / 9), axis=-1))
    close(
        volume_regularizer(np.float32(p), prior=np.float32(prior)), scipy.entropy(p, prior, axis=-1)
    )


def test_vmap_remat_and_shards_agree():
    p, x = (
        np.float32(distributions(6, (8, 16), 1)),
        np.random.default_rng(6).normal(size=(8, 16)).astype(np.float32),
    )
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    p_across, x_across = jax.device_put((p, x), jax.NamedSharding(mesh, jax.P("data")))
    want = ops.cross_entropy(p, x, temperature=0.5)
    close(cross_entropy(p_across, x_across, temperature=0.5), want)
    close(jax.vmap(lambda a, b: ops.cross_entropy(a, b, temperature=0.5))(p, x), want)
    remat = jax.checkpoint(lambda b: ops.cross_entropy(p, b, temperature=0.5).sum())
    close(jax.grad(remat)(x), gradient(p, x, 0.5)[1])
    # Of the global mean, which is not the mean over devices.
    whole = jax.jit(lambda q: volume_regularizer(q.mean(axis=0)))
    close(whole(p_across), whole(p))
    assert whole(p_across) < 0.5 * volume_regularizer(p).mean()
    close(jax.vmap(volume_regularizer)(p), volume_regularizer(p))


def test_impossible_classes_cost_nothing_and_give_no_nan():
    p, x = jnp.array([0.5, 0.5, 0.0]), jnp.array([0.0, 0.0, -jnp.inf])
    close(ops.cross_entropy(p, x), np.log(2))
    by_p, by_x, _ = gradient(p, x, 1.0)
    close(by_p, [np.log(2), np.log(2), 0])
    close(by_x, [0, 0, 0])
    assert ops.cross_entropy(jnp.array([0.0, 0.0, 1.0]), x) == jnp.inf


def test_entropy():
    rng = np.random.default_rng(2)
    p = rng.dirichlet(np.full(5, 0.3), 7)
    close(ops.entropy(np.float32(p)), reference.entropy(p))
    close(ops.entropy(log_probs=np.float32(np.log(p))), reference.entropy(p))
    close(ops.entropy(jnp.eye(3)), np.zeros(3))
    close(ops.entropy(log_probs=jnp.log(jnp.eye(3))), np.zeros(3))
    close(ops.entropy(jnp.full((2, 8), 0.125, jnp.bfloat16)), np.full(2, np.log(8)))
    for argument in ({"probs": jnp.eye(3)}, {"log_probs": jnp.log(jnp.eye(3))}):
        grad = jax.grad(lambda a: ops.entropy(**a).sum())(argument)
        assert all(np.isfinite(g).all() for g in grad.values())
    tiny = jnp.array([0.0, -200.0])  # exp(-200) is 0 in float32
    close(ops.entropy(log_probs=tiny), 0.0)


@hypothesis.settings(max_examples=30, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    shape=st.sampled_from(((1,), (3, 5), (2, 300))),
    dtype=st.sampled_from(TYPES),
    concentration=st.sampled_from((0, 0.01, 1, 1e4)),
    seed=st.integers(0, 1000),
)
def test_entropy_and_volume_of_any_distribution(shape, dtype, concentration, seed):
    """KL = log K - entropy, 0 to log K; rounded probabilities need
    not sum to 1.
    """
    p, size = jnp.asarray(distributions(seed, shape, concentration), dtype), shape[-1]
    wide = np.asarray(p, np.float64)
    from_probs, from_logs, apart = (
        entropy(p),
        entropy(log_probs=jnp.log(p.astype(jnp.float32))),
        volume(p),
    )
    assert from_probs.dtype == from_logs.dtype == apart.dtype == jnp.float32
    close(from_probs, reference.entropy(wide))
    close(from_logs, reference.entropy(wide), absolute=1e-5)
    close(apart, np.log(size) * wide.sum(axis=-1) - reference.entropy(wide) - wide.sum(axis=-1) + 1)
    total = wide.sum(axis=-1)  # as large as the rounding of a type lets it be
    assert (from_probs >= -2 * np.abs(total - 1) - 1e-6).all() and (
        from_probs <= total * np.log(size) + 1e-2
    ).all()
    assert (apart >= -1e-6).all() and (
        apart <= total * np.log(size) + 2 * np.abs(total - 1) + 1e-5
    ).all()
    assert_finite(from_probs, from_logs, apart, volume_gradient(p.astype(jnp.float32)))


def test_volume_regularizer():
    close(volume_regularizer(jnp.full(4096, 1 / 4096)), 0)
    close(volume_regularizer(jnp.eye(4096)[0]), 8.318, absolute=1e-3)
    close(
        volume_regularizer(jnp.array([0.25, 0.75])),
        np.log(2) - ops.entropy(jnp.array([0.25, 0.75])),
    )
    prior = jnp.array([0.2, 0.3, 0.5])
    close(volume_regularizer(prior, prior=prior), 0)
    close(volume_regularizer(jnp.array([0.0, 1.0, 0.0]), prior=prior), -np.log(0.3))
    # Exact near uniform, where log K - entropy has lost all digits: half the mean square of the
    # relative deviation.
    deviation = 1e-4 * np.where(np.arange(512) % 2, 1.0, -1.0)
    p = np.float32((1 + deviation) / 512)
    np.testing.assert_allclose(volume_regularizer(p), 0.5e-8, rtol=1e-2)


def test_volume_regularizer_pushes_towards_uniform():
    """Sign test, on logits; from a one-hot mean too."""
    logits = jnp.array([[4.0, 0.0, 0.0], [3.0, 1.0, 0.0]])

    def total(x):
        return volume_regularizer(jax.nn.softmax(x).mean(axis=0))

    for _ in range(20):
        step = logits - jax.grad(total)(logits)
        assert total(step) < total(logits)
        logits = step
    assert total(logits) < 0.1  # from 0.65
    by_prob = jax.grad(volume_regularizer)(jnp.array([1.0, 0.0]))
    assert (
        by_prob[1] < -80 < by_prob[0] and np.isfinite(by_prob).all()
    )  # the empty class is pulled up
    by_prob = jax.grad(volume_regularizer)(jnp.array([0.25, 0.75]))
    close(by_prob, np.log([0.5, 1.5]))


def test_errors():
    p = jnp.ones((2, 3)) / 3
    with pytest.raises(
        ValueError, match=r"shape of logits is \(2, 4\); it must be \[..., 3\] as target_probs"
    ):
        ops.cross_entropy(p, jnp.ones((2, 4)))
    with pytest.raises(ValueError, match="temperature is 0; it must be a finite number above 0"):
        ops.cross_entropy(p, p, temperature=0)
    with pytest.raises(ValueError, match="exactly one"):
        ops.entropy()
    with pytest.raises(ValueError, match="exactly one"):
        ops.entropy(p, log_probs=p)
    with pytest.raises(ValueError, match="shape of probs"):
        ops.entropy(jnp.float32(1))
    with pytest.raises(
        ValueError,
        match=r"leading axes of logits is \(4,\); it must be broadcastable against \(2,\)",
    ):
        ops.cross_entropy(p, jnp.ones((4, 3)))
    with pytest.raises(ValueError, match=r"shape of target_probs is \(\); it must be \[..., K\]"):
        ops.cross_entropy(jnp.float32(1), p)
    with pytest.raises(ValueError, match=r"shape of mean_probs is \(\); it must be \[..., K\]"):
        volume_regularizer(jnp.float32(1))
    with pytest.raises(
        ValueError, match=r"shape of mean_probs is \(0,\); it must be \[..., K\] with K >= 1"
    ):
        volume_regularizer(jnp.ones(0))
    with pytest.raises(
        ValueError, match=r"shape of prior is \(2,\); it must be \[3\] as mean_probs"
    ):
        volume_regularizer(p, prior=jnp.ones(2) / 2)
    with pytest.raises(ValueError, match="lowest entry of prior is 0.0; it must be above 0"):
        volume_regularizer(p, prior=np.array([0.5, 0.5, 0.0]))
