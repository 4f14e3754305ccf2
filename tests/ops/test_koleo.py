"""KoLeo against float64 loops, and what the official form gives in its edge cases."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from jax.test_util import check_grads

from ssl_jax.ops.koleo import koleo
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
    close(jitted(jnp.eye(2)), [0.5 * np.log(2)] * 2)
    close(jitted(jnp.array([[1.0, 0.0], [-1.0, 0.0]])), [0, 0])
    # Compiled, the difference of equal unit vectors need not be 0: they are rounded once less.
    got = koleo(jnp.stack([tokens(0, 768)] * 2))
    close(got, [-np.log(0.5 * np.sqrt(768) * 1e-8 + 1e-8)] * 2)
    np.testing.assert_allclose(got, 15.7, atol=0.05)
    # Zero vectors are their own unit vectors; a single token has no neighbour.
    some_zero = np.array([[0, 0], [0, 0], [3, 4]], np.float32)
    duplicate = -np.log(0.5 * np.sqrt(2) * 1e-8 + 1e-8)
    close(jitted(some_zero), [duplicate, duplicate, np.log(2)])
    np.testing.assert_array_equal(jitted(tokens(6, 1, 3)), [0])
    np.testing.assert_array_equal(gradient(tokens(6, 1, 3), None), np.zeros((1, 3)))


@hypothesis.given(
    shape=st.sampled_from(((2, 1), (5, 3), (4, 16))),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    duplicates=st.integers(0, 5),
    hidden=st.integers(0, 31),
    seed=st.integers(0, 1000),
)
def test_equals_the_loops(shape, scale, duplicates, hidden, seed):
    x = tokens(seed, *shape)
    x[:duplicates] = x[0]
    x = np.float32(x * scale)
    where = np.array([not hidden >> i & 1 for i in range(shape[0])])
    got, want = jitted(x, where=where), loops(x, where)
    # Which of two almost equal cosines is larger is decided in float32; where both are near 1
    # their chords may differ.
    far = want < 3
    close(got[far], want[far], absolute=1e-4)
    assert (got[~far] > 2.9).all()
    assert not gradient(x, where)[~where].any()


def test_gradients_reach_the_token_and_its_neighbour():
    check_grads(jitted, (tokens(2, 4, 3),), 1, modes=["rev"], eps=1e-3, atol=2e-2, rtol=2e-2)
    # Only one value is asked for; the neighbour of that token moves too, and nobody else.
    first = jax.jit(jax.grad(lambda t: koleo(t)[0]))
    by_token = first(jnp.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [-1.0, 0.0]]))
    assert np.abs(by_token[:2]).max(axis=1).min() > 0.1 and not by_token[2:].any()
    # Of equally near neighbours the first.
    by_token = first(jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [-1.0, 0.0]]))
    assert by_token[1].any() and not by_token[2:].any()


def test_a_step_against_the_gradient_spreads_the_tokens():
    x = tokens(3, 6, 4)
    assert jitted(x - 0.01 * gradient(x, None)).sum() < jitted(x).sum()


def test_near_duplicates_keep_their_distance():
    """2 - 2 cos of these is rounding error; the difference of the rows has all digits."""
    x = np.eye(4, dtype=np.float32)[[0, 0, 1]]
    x[1, 2] = 3e-5
    close(jitted(x), loops(x))


def test_hidden_tokens_count_for_nothing():
    x, where = tokens(5, 3, 6, 4), np.ones((3, 6), bool)
    where[0, [1, 4]] = False
    where[1, 1:] = False  # a single token is left
    where[2] = False
    got = jitted(x, where=where)
    close(got, [loops(a, w) for a, w in zip(x, where)])
    assert not got[1:].any()
    poisoned = np.where(where[..., None], x, np.nan)
    np.testing.assert_array_equal(jitted(poisoned, where=where), got)
    by_token = np.asarray(gradient(poisoned, where))
    np.testing.assert_array_equal(by_token, gradient(x, where))
    assert not by_token[~where].any() and not by_token[1:].any()
    assert by_token[0][where[0]].any(axis=-1).all()


def test_it_is_vectorised_in_half_precision():
    tokens = jax.random.normal(jax.random.key(0), (3, 4, 5), jnp.float16)
    each = jnp.stack([koleo(one) for one in tokens])
    np.testing.assert_allclose(jax.vmap(koleo)(tokens), each, rtol=1e-5)


def test_floats_of_8_bits_are_floats():
    """JAX promotes them with no other type."""
    tokens = jax.random.normal(jax.random.key(0), (5, 4)).astype(jnp.float8_e4m3fn)
    wide = tokens.astype(jnp.float32)
    np.testing.assert_array_equal(koleo(tokens), koleo(wide))
