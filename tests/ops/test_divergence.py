"""Cross-entropy and entropy against float64, at the edges of the number range too."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import ops
from tests.losses import reference
from tests.losses.reference import close

cross_entropy = jax.jit(ops.cross_entropy)
gradient = jax.jit(jax.grad(lambda p, x, t: ops.cross_entropy(p, x, temperature=t).sum(), (0, 1, 2)))


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
    p, x = rng.dirichlet(np.ones(4), 3).astype(np.float32), rng.normal(size=(2, 3, 4)).astype(np.float32)
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
    """Spec section 8 item 6, with equality where both distributions coincide."""
    rng = np.random.default_rng(seed)
    p, x = rng.dirichlet(np.full(5, 0.2), 4).astype(np.float32), jnp.asarray(rng.normal(size=(4, 5)) * scale, dtype)
    got = cross_entropy(p, x, temperature=temperature)
    assert got.dtype == jnp.float32 and np.isfinite(got).all()
    assert (got >= ops.entropy(p) - 1e-5).all()
    by_p, by_x, by_tau = gradient(p, x, temperature)
    assert np.isfinite(by_p).all() and np.isfinite(np.asarray(by_x, np.float32)).all() and np.isfinite(by_tau)
    own = jax.nn.softmax(x.astype(jnp.float32) / temperature)
    close(cross_entropy(own, x, temperature=temperature), ops.entropy(own), absolute=1e-5)
    assert np.abs(np.asarray(gradient(own, x, temperature)[1], np.float32)).max() <= 1e-5 / temperature


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


def test_errors():
    p = jnp.ones((2, 3)) / 3
    with pytest.raises(ValueError, match=r"shape of logits is \(2, 4\); it must be \[..., 3\] as target_probs"):
        ops.cross_entropy(p, jnp.ones((2, 4)))
    with pytest.raises(ValueError, match="temperature is 0; it must be a finite number above 0"):
        ops.cross_entropy(p, p, temperature=0)
    with pytest.raises(ValueError, match="exactly one"):
        ops.entropy()
    with pytest.raises(ValueError, match="exactly one"):
        ops.entropy(p, log_probs=p)
    with pytest.raises(ValueError, match="shape of probs"):
        ops.entropy(jnp.float32(1))
