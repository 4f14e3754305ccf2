"""KoLeo against float64 loops, and what the official form gives in its edge cases."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ssl_jax.ops.koleo import koleo
from tests.finite import assert_finite
from tests.losses.reference import close

jitted = jax.jit(koleo)
gradient = jax.jit(jax.grad(lambda x, where: jnp.sum(koleo(x, where=where))))


def loops(tokens, where=None, eps=1e-8):
    """One value per token [r]: nearest by cosine, then minus the log of 0.5 |t - t_nn + eps|."""
    tokens = np.asarray(tokens, np.float64)
    where = np.ones(len(tokens), bool) if where is None else where
    result = np.zeros(len(tokens))
    unit = [x / max(np.linalg.norm(x), eps) if there else None for x, there in zip(tokens, where)]
    for i in range(len(tokens)):
        others = [j for j in range(len(tokens)) if j != i and where[j]]
        if where[i] and others:
            nearest = max(others, key=lambda j: unit[i] @ unit[j])
            result[i] = -np.log(0.5 * np.linalg.norm(unit[i] - unit[nearest] + eps) + eps)
    return result


def tokens(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_values_known_in_closed_form():
    close(koleo(jnp.eye(2)), [0.5 * np.log(2)] * 2)
    close(koleo(jnp.array([[1.0, 0.0], [-1.0, 0.0]])), [0, 0])
    one = tokens(0, 768)
    got = koleo(jnp.stack([one, one]))
    close(got, [-np.log(0.5 * np.sqrt(768) * 1e-8 + 1e-8)] * 2)
    np.testing.assert_allclose(got, 15.7, atol=0.05)


def test_equals_the_loops():
    sets = tokens(1, 2, 3, 7, 5)
    got = koleo(sets)
    assert got.shape == (2, 3, 7)
    close(got, [[loops(x) for x in row] for row in sets])


def test_nearest_is_not_mutual():
    """Angles 0, 10 and 30 degrees: the last is nearest to the middle one, whose nearest is the
    first.
    """
    angle = np.deg2rad([0, 10, 30])
    got = koleo(np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32))
    close(got, -np.log(np.sin(np.deg2rad([5, 5, 10]))))  # chord / 2 = sin(angle / 2)


def test_gradients_reach_the_token_and_its_neighbour():
    x = tokens(2, 4, 3)
    check_grads(koleo, (x,), 1, modes=["rev"], eps=1e-3, atol=2e-2, rtol=2e-2)
    # Only one value is asked for; the neighbour of that token moves too, and nobody else.
    by_token = jax.grad(lambda t: koleo(t)[0])(
        jnp.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [-1.0, 0.0]])
    )
    assert np.abs(by_token[:2]).max(axis=1).min() > 0.1 and not by_token[2:].any()


def test_a_step_against_the_gradient_spreads_the_tokens():
    x = tokens(3, 6, 4)
    assert koleo(x - 0.01 * gradient(x, None)).sum() < koleo(x).sum()


@hypothesis.settings(max_examples=20, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    powers=st.lists(st.integers(-60, 60), min_size=5, max_size=5), seed=st.integers(0, 1000)
)
def test_scaling_a_token_changes_nothing(powers, seed):
    """Powers of two exactly; other factors round every coordinate of a unit
    vector.
    """
    x, factor = tokens(seed, 5, 6), 2.0 ** np.array(powers)[:, None]
    base = jitted(x)
    np.testing.assert_array_equal(jitted(np.float32(x * factor)), base)
    others = np.random.default_rng(seed).uniform(0.5, 2, (5, 1))
    close(jitted(np.float32(x * factor * others)), base)
    assert_finite(base)


def test_near_duplicates_keep_their_distance():
    """2 - 2 cos of these is rounding error; the difference of the rows has all digits."""
    x = np.eye(4, dtype=np.float32)[[0, 0, 1]]
    x[1, 2] = 3e-5
    close(koleo(x), loops(x))


def test_hidden_tokens_count_for_nothing():
    x, where = tokens(5, 3, 6, 4), np.ones((3, 6), bool)
    where[0, [1, 4]] = False
    where[1, 1:] = False  # a single token is left
    where[2] = False
    got = jitted(x, where=where)
    close(got, [loops(a, w) for a, w in zip(x, where)])
    close(got[0][where[0]], koleo(x[0][where[0]]))
    assert not got[1:].any()
    poisoned = np.where(where[..., None], x, np.nan)
    np.testing.assert_array_equal(jitted(poisoned, where=where), got)
    by_token = gradient(poisoned, where)
    np.testing.assert_array_equal(by_token, gradient(x, where))
    assert np.isfinite(by_token).all() and not by_token[~where].any() and not by_token[1:].any()
    assert by_token[0][where[0]].any(axis=-1).all()


def test_single_and_zero_tokens():
    single = tokens(6, 2, 1, 3)
    np.testing.assert_array_equal(koleo(single), np.zeros((2, 1)))
    np.testing.assert_array_equal(gradient(single, None), np.zeros((2, 1, 3)))
    some_zero = np.array([[0, 0], [0, 0], [3, 4]], np.float32)
    duplicate = -np.log(0.5 * np.sqrt(2) * 1e-8 + 1e-8)
    close(
        koleo(some_zero), [duplicate, duplicate, np.log(2)]
    )  # a zero vector is its own unit vector
    assert np.isfinite(gradient(some_zero, None)).all()


def test_ties_take_the_first_neighbour():
    x = jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    by_token = jax.grad(lambda t: koleo(t)[0])(x)
    assert by_token[1].any() and not by_token[2].any()


def test_vmap_remat_and_shards_agree():
    x = tokens(7, 16, 6, 4)
    want, by_token = koleo(x), gradient(x, None)
    close(jax.vmap(koleo)(x), want)
    close(jax.grad(jax.checkpoint(lambda t: koleo(t).sum()))(x), by_token)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    across = jax.NamedSharding(mesh, jax.P("data"))
    close(jitted(jax.device_put(x, across)), want)
    close(gradient(jax.device_put(x, across), None), by_token)
    # Per global batch: the neighbour may lie on another device.
    whole = x[:, 0]
    close(jitted(jax.device_put(whole, across)), loops(whole))


@hypothesis.settings(max_examples=50, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    shape=st.sampled_from(((1, 1), (2, 1), (5, 3), (4, 16))),  # r, d
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16, jnp.float16)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    duplicates=st.integers(0, 5),
    hidden=st.integers(0, 31),
    seed=st.integers(0, 1000),
)
def test_finite_for_duplicates_masks_and_any_scale(shape, dtype, scale, duplicates, hidden, seed):
    x = tokens(seed, *shape)
    x[:duplicates] = x[0]
    x, where = (
        jnp.asarray(x * scale, dtype),
        np.array([not hidden >> i & 1 for i in range(shape[0])]),
    )
    got = jitted(x, where=where)
    assert got.dtype == jnp.float32
    # Which of two almost equal cosines is larger is decided in float32; where both are near 1 their
    # chords may differ.
    want = loops(x, where)
    far = want < 3
    close(got[far], want[far], absolute=1e-4)
    assert (got[~far] > 2.9).all() and got.max() <= 18.43 and got.min() >= -1e-6
    by_token = np.asarray(gradient(x.astype(jnp.float32), where))
    assert_finite(got, by_token)
    assert not by_token[~where].any()


def test_gradients_keep_low_precision_types():
    x = jnp.asarray(tokens(8, 4, 3), jnp.bfloat16)
    assert gradient(x, None).dtype == jnp.bfloat16


def test_errors():
    with pytest.raises(ValueError, match=r"shape of tokens is \(3,\); it must be \[..., r, d\]"):
        koleo(jnp.ones(3))
    with pytest.raises(
        ValueError, match=r"shape of tokens is \(0, 3\); it must be \[..., r, d\] with r, d >= 1"
    ):
        koleo(jnp.ones((0, 3)))
    with pytest.raises(
        ValueError, match=r"shape of where is \(4,\); it must be \[2, 4\] as tokens"
    ):
        koleo(jnp.ones((2, 4, 3)), where=jnp.ones(4, bool))
