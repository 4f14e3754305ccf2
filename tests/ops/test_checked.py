"""Arguments checked by annotations: what fits, and what is refused."""

import functools
import inspect
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Bool, Float, Integer, Key, Shaped

from ssl_jax import ops
from ssl_jax.ops.checked import Count, NotNegative, Positive, Share, checked


@checked
def mean(
    x: Float[Array, "*b n d"],
    where: Bool[Array, "*b n"] | None = None,
    *,
    weight: Positive = 1.0,
    times: Count = 1,
    axis: Literal["rows", "columns"] = "rows",
):
    """A function."""
    assert isinstance(x, jax.Array) and (where is None or isinstance(where, jax.Array))
    return times * weight * jnp.mean(x, axis=-2 if axis == "rows" else -1)


@checked
def chosen(x: Float[Array, "n d"], rows: Integer[Array, " k"] | Float[Array, "k d"]):
    return x[rows] if jnp.issubdtype(rows.dtype, jnp.integer) else rows


@checked
def three(x: Float[Array, "*#b"], y: Float[Array, "*#b"], z: Float[Array, "*#b"]):
    return x + y + z


@checked(empty="q")
def take(x: Float[Array, "q d"]):
    return x


@checked
def keyed(key: Key[Array, ""], x: Shaped[Array, " n"]):
    return x


X = np.ones((2, 5, 3), np.float32)
ONES = functools.partial(np.ones, dtype=np.float32)


def test_what_fits_passes():
    where = np.ones((2, 5), bool)
    for x in (X, jnp.asarray(X), X.tolist(), X.astype(jnp.bfloat16), X.astype(np.float64)):
        np.testing.assert_array_equal(mean(x, where), np.ones((2, 3)))
    assert mean(X[0]).shape == (3,)  # no leading axis
    assert mean(X, axis="columns").shape == (2, 5)
    assert chosen(X[0], np.array([0, 1])).shape == (2, 3)
    assert chosen(X[0], X[0]).shape == (5, 3)
    assert three(ONES((2, 1)), ONES(3), ONES((2, 3))).shape == (2, 3)
    assert take(np.ones((0, 3))).shape == (0, 3)
    assert keyed(jax.random.key(0), np.arange(3)).dtype == jnp.int32
    assert mean.__name__ == "mean" and mean.__doc__ == "A function."


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("x", lambda: mean(None)),
        ("where", lambda: mean(X, np.ones((2, 5)))),
        ("rows", lambda: chosen(X[0], X[0, :, :2])),
        ("rows", lambda: chosen(X[0], np.ones(2, bool))),
        ("z", lambda: three(ONES((2, 1)), ONES(3), ONES(4))),
        ("x", lambda: take(np.ones((0, 0)))),
        # Under jit shapes are still checked, and numbers that are known.
        ("where", lambda: jax.jit(mean)(X, np.ones((5, 2), bool))),
        ("weight", lambda: jax.jit(functools.partial(mean, weight=-1.0))(X)),
        ("weight", lambda: mean(X, weight=None)),
        ("times", lambda: mean(X, times=2.0)),
        ("weight", lambda: jax.jit(functools.partial(mean, weight=jnp.float32(-1)))(X)),
    ],
)
def test_what_does_not_fit_is_refused(argument, call):
    with pytest.raises(ValueError, match=rf"\b{argument}\b"):
        call()


def test_traced_numbers_pass():
    np.testing.assert_array_equal(jax.jit(mean)(X, weight=-1.0), -np.ones((2, 3)))
    assert jax.vmap(mean)(X).shape == (2, 3)
    assert jax.grad(lambda w: mean(X, weight=w).sum())(2.0) == 6


@pytest.mark.parametrize(
    ("kind", "fits", "refused"),
    [
        (Positive, (1e-9, 3), (0, -1, np.nan, np.inf)),
        (NotNegative, (0, 3.5), (-1e-9, np.nan, np.inf)),
        (Share, (0, 0.5, 1), (-1e-9, 1.1, np.nan)),
        (Count, (1, 7), (0, -1)),
    ],
)
def test_ranges(kind, fits, refused):
    def identity(x):
        return x

    identity.__annotations__["x"] = kind
    function = checked(identity)
    for value in fits:
        assert function(value) == value
    for value in refused:
        with pytest.raises(ValueError, match="x is "):
            function(value)


def test_every_public_op_is_annotated():
    for name in ops.__all__:
        function = getattr(ops, name)
        if inspect.isfunction(function):
            parameters = inspect.signature(function).parameters
            assert set(function.__annotations__) == {*parameters, "return"}, name
