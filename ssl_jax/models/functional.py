"""Converts between flax NNX modules (used in this folder) and plain nested dicts of arrays (used
everywhere else).

Optimizers, checkpoints and sharding rules see `{"blocks": {"attn": ...}}`. `Model.module(params)`
returns the module, for code written in flax.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from ssl_jax import trees
from ssl_jax.config import InputError


class Model(NamedTuple):
    """A network as pure functions.

    init(key) -> params: a nested dict with string keys and float32 arrays;
        `jax.eval_shape(model.init, key)` gives shapes only.
    apply(params, *inputs, **options) -> outputs.
    module(params) -> the flax.nnx.Module with these arrays. Its call takes the same inputs as
        `apply`, but does not check them.

    Raises:
      InputError: in apply and module, if the structure or shapes of params differ from init's.
    """

    init: Callable[..., dict[str, Any]]
    apply: Callable
    module: Callable[[Mapping], nnx.Module]


def functional(
    build: Callable[..., nnx.Module], call: Callable | None = None, **sizes: Any
) -> Model:
    """Turns a module into a Model.

    Args:
      build: (key, **sizes) -> module, usually its class. It is called once per init and once
        (abstractly) before the first apply.
      call: (module, *inputs, **options) -> outputs; must not write to the module. None: the
        module's `__call__`.
    """
    make = functools.partial(build, **sizes)

    @functools.cache
    def structure():
        """The module without its arrays, and {path: shape}."""
        key = jax.eval_shape(jax.random.key, 0)
        graphdef, state = nnx.split(nnx.eval_shape(make, key, graph=True), graph=True)
        return graphdef, trees.flatten(nnx.to_pure_dict(state))

    def init(key):
        state = nnx.split(make(key), graph=True)[1]
        return trees.nest(trees.flatten(nnx.to_pure_dict(state)))

    def module(params):
        graphdef, shapes = structure()
        _check_params(trees.flatten(params), shapes)
        return nnx.merge(graphdef, nnx.restore_int_paths(params))

    def apply(params, *inputs, **options):
        network = module(params)
        return call(network, *inputs, **options) if call else network(*inputs, **options)

    return Model(init, apply, module)


def _check_params(params: Mapping, shapes: Mapping) -> None:
    for problem, names in (
        ("lacks", shapes.keys() - params.keys()),
        ("has the unknown", params.keys() - shapes.keys()),
    ):
        if names:
            rest = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise InputError(
                f"the parameter tree {problem} {min(names)}{rest}; it was made for another model"
            )
    for name, leaf in params.items():
        shape, dtype = jnp.shape(leaf), jnp.result_type(leaf)
        if shape != shapes[name].shape or not jnp.issubdtype(dtype, jnp.inexact):
            raise InputError(
                f"parameter {name} has shape {shape} and type {dtype}; this model expects"
                f" floating-point numbers of shape {shapes[name].shape}"
            )
