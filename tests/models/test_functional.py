"""The bridge between NNX modules and plain dicts."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from ssl_jax import trees
from ssl_jax.models import heads


def make():
    model = heads.projection_head(6, hidden=5, out=4)
    return model, model.init(jax.random.key(0))


def test_params_are_plain_dicts_with_string_keys():
    _, params = make()
    assert type(params) is dict and type(params["mlp"]) is dict
    assert list(trees.flatten(params)) == [
        f"mlp/{i}/{n}" for i in range(3) for n in ("bias", "kernel")
    ]
    assert all(
        type(leaf) is not nnx.Param and leaf.dtype == jnp.float32
        for leaf in jax.tree.leaves(params)
    )


def test_first_apply_inside_a_trace_leaks_nothing():
    model = heads.projection_head(
        6, hidden=7, out=3
    )  # new to this process: its structure is found while tracing
    params = jax.eval_shape(model.init, jax.random.key(0))
    with jax.checking_leaks():
        jax.jit(model.apply).lower(params, jnp.ones((2, 6)))
    assert model.apply(model.init(jax.random.key(0)), jnp.ones((2, 6))).shape == (2, 3)


def test_wrong_trees_are_named():
    model, params = make()
    x = jnp.ones((1, 6))
    first = params["mlp"]["0"]
    wrong = {"0": {"kernel": jnp.ones((6, 9)), "bias": first["bias"]}}
    for tree, name in (
        ({"mlp": {k: params["mlp"][k] for k in ("0", "1")}}, "mlp/2/bias"),
        (params | {"extra": jnp.ones(1)}, "extra"),
        ({"mlp": params["mlp"] | wrong}, "mlp/0/kernel"),
    ):
        with pytest.raises(ValueError, match=name):
            model.apply(tree, x)


def test_the_module_can_be_taken_out():
    """For code written in flax: a module with these parameters, that computes the same."""
    model, params = make()
    module = model.module(params)
    x = jnp.ones((2, 6))
    assert isinstance(module, nnx.Module) and isinstance(module.mlp[0], nnx.Linear)
    np.testing.assert_array_equal(module(x), model.apply(params, x))
    state = trees.flatten(nnx.to_pure_dict(nnx.state(module, nnx.Param)))
    chex.assert_trees_all_equal(state, trees.flatten(params))

    gradient = nnx.grad(lambda module: module(x)[0, 0])(module)  # flax's own transformations
    wanted = jax.grad(lambda params: model.apply(params, x)[0, 0])(params)
    np.testing.assert_allclose(
        gradient["mlp"][0]["kernel"][...], wanted["mlp"]["0"]["kernel"], atol=1e-7
    )
    with pytest.raises(ValueError, match="extra"):
        model.module(params | {"extra": jnp.ones(1)})
