"""Arguments checked by annotations: what fits, what is refused, and in which words."""

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
def joined(x: Float[Array, "*#b n"], y: Float[Array, "*#b n"]):
    return x + y


@checked
def chosen(x: Float[Array, "n d"], rows: Integer[Array, " k"] | Float[Array, "k d"]):
    return x[rows] if jnp.issubdtype(rows.dtype, jnp.integer) else rows


X = np.ones((2, 5, 3), np.float32)


def test_what_fits_passes():
    where = np.ones((2, 5), bool)
    for x in (X, jnp.asarray(X), X.tolist(), X.astype(jnp.bfloat16), X.astype(np.float64)):
        np.testing.assert_array_equal(mean(x, where), np.ones((2, 3)))
    assert mean(X[0]).shape == (3,)  # no leading axis
    assert joined(X, X[0]).shape == X.shape
    assert chosen(X[0], np.array([0, 1])).shape == (2, 3)
    assert chosen(X[0], X[0]).shape == (5, 3)


def test_name_and_documentation_stay():
    assert mean.__name__ == "mean" and mean.__doc__ == "A function."


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean(X[0, 0]), r"the shape of x is \(3,\); it must be \[..., n, d\]"),
        (
            lambda: mean(X[:, :0]),
            r"the shape of x is \(2, 0, 3\); it must be \[..., n, d\] with n, d >= 1",
        ),
        (
            lambda: mean(X, np.ones(5, bool)),
            r"the shape of where is \(5,\); it must be \[2, 5\] as x",
        ),
        (lambda: mean(X, np.ones((2, 5))), "the type of where is float32; it must be bool"),
        (lambda: mean(X.astype(int)), "the type of x is int32; it must be float"),
        (lambda: mean(None), "x is None; it must be an array"),
        (lambda: mean(X, weight=0), "weight is 0; it must be a finite number above 0"),
        (lambda: mean(X, weight=jnp.inf), "weight is inf; it must be a finite number above 0"),
        (
            lambda: mean(X, weight=np.ones(1)),
            r"weight is an array of shape \(1,\); it must be a scalar",
        ),
        (lambda: mean(X, times=0), "times is 0; it must be at least 1"),
        (lambda: mean(X, axis="both"), 'axis is \'both\'; it must be "rows" or "columns"'),
        (
            lambda: joined(X, np.ones((3, 3), np.float32)),
            r"leading axes of y is \(3,\); it must be broadcastable against \(2, 5\), those of x",
        ),
        (
            lambda: joined(X, X[..., :2]),
            r"the shape of y is \(2, 5, 2\); it must be \[..., 3\] as x",
        ),
        (
            lambda: chosen(X[0], X[0, :, :2]),
            r"the shape of rows is \(5, 2\); it must be \[k, 3\] as x",
        ),
        (
            lambda: chosen(X[0], np.ones(2, bool)),
            "the type of rows is bool; it must be integer or float",
        ),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_leading_axes_of_three_arguments_broadcast_together():
    @checked
    def three(x: Float[Array, "*#b"], y: Float[Array, "*#b"], z: Float[Array, "*#b"]):
        return x + y + z

    assert three(np.ones((2, 1)), np.ones(3), np.ones((2, 3))).shape == (2, 3)
    with pytest.raises(ValueError, match=r"leading axes of z is \(4,\).*against \(2, 3\)"):
        three(np.ones((2, 1)), np.ones(3), np.ones(4))


def test_only_the_named_axes_may_be_empty():
    @checked(empty="q")
    def take(x: Float[Array, "q d"]):
        return x

    assert take(np.ones((0, 3))).shape == (0, 3)
    with pytest.raises(ValueError, match=r"x is \(0, 0\); it must be \[q, d\] with d >= 1"):
        take(np.ones((0, 0)))


def test_keys_and_any_type():
    @checked
    def draw(key: Key[Array, ""], x: Shaped[Array, " n"]):
        return x

    assert draw(jax.random.key(0), np.arange(3)).dtype == jnp.int32
    with pytest.raises(ValueError, match="the type of key is uint32; it must be PRNG key"):
        draw(np.uint32(0), np.arange(3))


def test_under_jit_vmap_and_grad():
    """Shapes are checked, traced numbers let through, known ones still checked."""
    np.testing.assert_array_equal(jax.jit(mean)(X, weight=-1.0), -np.ones((2, 3)))
    assert jax.vmap(mean)(X).shape == (2, 3)
    assert jax.grad(lambda w: mean(X, weight=w).sum())(2.0) == 6
    for weight in (-1.0, np.float32(-1), jnp.float32(-1)):
        with pytest.raises(ValueError, match="weight is -1.0"):
            jax.jit(functools.partial(mean, weight=weight))(X)
    with pytest.raises(ValueError, match=r"shape of where is \(5, 2\)"):
        jax.jit(mean)(X, np.ones((5, 2), bool))
    with pytest.raises(ValueError, match="an index in anchors is outside the memory"):
        jax.jit(lambda x: ops.build_sops(x, np.array([5]), num_members=1))(X[0])


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
