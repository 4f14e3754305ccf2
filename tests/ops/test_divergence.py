"""Cross-entropy, entropy and divergence from uniform against float64, at the edges of the number
range too.
"""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from jax.test_util import check_grads

from ssl_jax import ops
from tests.losses import reference
from tests.losses.reference import close

cross_entropy = jax.jit(ops.cross_entropy)
gradient = jax.jit(
    jax.grad(lambda p, x, t: ops.cross_entropy(p, x, temperature=t).sum(), (0, 1, 2))
)
entropy = jax.jit(ops.entropy)
volume = jax.jit(ops.volume_regularizer)
TYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
SHAPES = ((1,), (3, 5), (2, 300))  # one class, and more than one vector of a processor


def distributions(seed, shape, concentration):
    """Random probabilities in float64; concentration 0: one-hot."""
    rng = np.random.default_rng(seed)
    if concentration == 0:
        return np.eye(shape[-1])[rng.integers(shape[-1], size=shape[:-1])]
    return rng.dirichlet(np.full(shape[-1], concentration), shape[:-1])


@hypothesis.given(
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(TYPES),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    ties=st.booleans(),
    concentration=st.sampled_from((0, 0.1, 10)),
    temperature=st.sampled_from((0.02, 0.3, 1.0)),
    seed=st.integers(0, 1000),
)
def test_cross_entropy_equals_float64(shape, dtype, scale, ties, concentration, temperature, seed):
    p = np.float32(distributions(seed, shape, concentration))
    x = np.random.default_rng(seed).normal(size=shape) * scale
    x = jnp.asarray(np.round(x / max(scale, 1)) * scale if ties else x, dtype)
    got = cross_entropy(p, x, temperature=temperature)
    assert (got >= -1e-6).all()
    log_q = reference.log_softmax(np.asarray(x, np.float64) / temperature)
    close(got, -(p * log_q).sum(axis=-1))
    # float16 cannot hold 1e4 / 0.02
    by_p, by_x, by_temperature = gradient(p, x.astype(jnp.float32), temperature)
    close(by_p, -log_q)
    by_scaled = np.exp(log_q) * np.float64(p).sum(axis=-1, keepdims=True) - p
    close(by_x, by_scaled / temperature)
    terms = by_scaled * np.asarray(x, np.float64) / temperature**2
    close(by_temperature, -terms.sum(), absolute=1e-6 + 1e-5 * np.abs(terms).sum())


def test_leading_axes_broadcast():
    p = np.float32(distributions(1, (3, 4), 1))
    x = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)
    got = cross_entropy(p, x, temperature=0.5)
    close(got, -(p * reference.log_softmax(x / 0.5)).sum(axis=-1))


def test_gradients_against_finite_differences():
    p = np.float32(0.8 * distributions(3, (4, 5), 1) + 0.04)  # at 0 the derivative is infinite
    steps = dict(order=1, eps=1e-3, atol=1e-2, rtol=1e-2)
    check_grads(entropy, (p,), **steps)
    check_grads(jax.jit(lambda x: ops.entropy(log_probs=x)), (np.log(p),), **steps)
    check_grads(volume, (p,), **steps)
    check_grads(jax.jit(lambda q: ops.volume_regularizer(q, prior=p[0])), (p,), **steps)


def test_impossible_classes_cost_nothing_and_give_no_nan():
    p, x = np.float32([0.5, 0.5, 0.0]), np.float32([0.0, 0.0, -np.inf])
    close(cross_entropy(p, x), np.log(2))
    by_p, by_x, _ = gradient(p, x, 1.0)
    close(by_p, [np.log(2), np.log(2), 0])
    close(by_x, [0, 0, 0])
    assert cross_entropy(np.float32([0.0, 0.0, 1.0]), x) == np.inf


@hypothesis.given(
    shape=st.sampled_from(SHAPES),
    dtype=st.sampled_from(TYPES),
    concentration=st.sampled_from((0, 0.01, 1, 1e4)),
    seed=st.integers(0, 1000),
)
def test_entropy_and_volume_of_any_distribution(shape, dtype, concentration, seed):
    """KL = log K - entropy, 0 to log K; rounded probabilities need not sum to 1."""
    p, size = jnp.asarray(distributions(seed, shape, concentration), dtype), shape[-1]
    wide = np.asarray(p, np.float64)
    total, want = wide.sum(axis=-1), reference.entropy(wide)
    with np.errstate(divide="ignore"):
        logs = np.log(np.asarray(p, np.float32))
    got, apart = entropy(p), volume(p)
    close(got, want)
    close(entropy(log_probs=logs), want, absolute=1e-5)
    close(apart, np.log(size) * total - want - total + 1)
    off = np.abs(total - 1)
    assert (got >= -2 * off - 1e-6).all() and (got <= total * np.log(size) + 1e-2).all()
    assert (apart >= -1e-6).all() and (apart <= total * np.log(size) + 2 * off + 1e-5).all()


def test_entropy_of_what_is_certain():
    close(entropy(log_probs=np.float32([0.0, -200.0])), 0.0)  # exp(-200) is 0 in float32
    for argument in ({"probs": np.eye(3)}, {"log_probs": jnp.log(jnp.eye(3))}):
        close(entropy(**argument), np.zeros(3))
        grad = jax.jit(jax.grad(lambda a: ops.entropy(**a).sum()))(argument)
        assert all(np.isfinite(g).all() for g in grad.values())


def test_volume_regularizer():
    close(volume(np.full(4096, 1 / 4096)), 0)
    close(volume(np.eye(4096)[0]), 8.318, absolute=1e-3)
    prior = np.float32([0.2, 0.3, 0.5])
    close(volume(prior, prior=prior), 0)
    for size, narrow in ((3, jnp.float8_e4m3fn), (10**6 + 3, np.float16)):  # rounded entries
        even = np.full(size, 1 / size, np.float32)
        close(volume(even, prior=even.astype(narrow)), 0, absolute=0.04)
    close(volume(np.float32([0.0, 1.0, 0.0]), prior=prior), -np.log(0.3))
    p = np.float32(distributions(4, (6, 3), 0.5))
    want = (p * np.log(np.maximum(p, 1e-30) / np.float64(prior))).sum(-1) - p.sum(-1) + 1
    close(volume(p, prior=prior), want)
    # Exact near uniform, where log K - entropy has lost all digits: half the mean square of the
    # relative deviation.
    deviation = 1e-4 * np.where(np.arange(512) % 2, 1.0, -1.0)
    np.testing.assert_allclose(volume(np.float32((1 + deviation) / 512)), 0.5e-8, rtol=1e-2)
    by_prob = jax.jit(jax.grad(ops.volume_regularizer))
    empty = by_prob(np.float32([1.0, 0.0]))  # the empty class is pulled up
    assert empty[1] < -80 < empty[0]
    close(by_prob(np.float32([0.25, 0.75])), np.log([0.5, 1.5]))


def test_the_temperature_has_a_gradient_where_a_class_is_left_out():
    target, logits = jnp.array([0.5, 0.5, 0.0]), jnp.array([1.0, 2.0, -jnp.inf])
    found = jax.grad(lambda t: ops.cross_entropy(target, logits, temperature=t))(1.0)
    wanted = jax.grad(lambda t: ops.cross_entropy(target[:2], logits[:2], temperature=t))(1.0)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
