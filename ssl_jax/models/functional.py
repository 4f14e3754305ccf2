"""The bridge between flax NNX modules (inside this folder) and plain nested dicts of arrays
(everywhere else).

Optimizers, checkpoints and sharding rules see `{"blocks": {"0": {"attn": ...}}}` and nothing of
flax, so they outlive it."""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx


class Model(NamedTuple):
    """A network as two pure functions.

    init(key) -> params, a nested dict with string keys and float32 arrays;
    `jax.eval_shape(model.init, key)` gives shapes only. apply(params, *inputs, **options) ->
    outputs; raises ValueError if params have another structure or other shapes than init's."""

    init: Callable
    apply: Callable


def functional(build: Callable[[jax.Array], nnx.Module], call: Callable) -> Model:
    """Turns a module builder into a Model.

    Args:
      build: key -> module. Called once per init and once (abstractly) before the first apply.
      call: (module, *inputs, **options) -> outputs; must not write to the module.
    """

    @functools.cache
    def structure():
        found = []

        def trace(key):
            graphdef, state = nnx.split(build(key), graph=True)
            found.append(graphdef)
            return _plain(state)

        shapes = jax.eval_shape(trace, jax.eval_shape(lambda: jax.random.key(0)))
        return found[0], shapes

    def init(key):
        return _plain(nnx.split(build(key), graph=True)[1])

    def apply(params, *inputs, **options):
        graphdef, shapes = structure()
        _check_params(params, shapes)
        return call(nnx.merge(graphdef, _with_indices(params)), *inputs, **options)

    return Model(init, apply)


def flat_paths(params: Mapping, prefix: str = "") -> dict:
    """{"blocks/0/attn/qkv/kernel": leaf, ...} of a nested dict, in sorted order of the keys at
    every level.
    """
    flat = {}
    for key in sorted(params):
        value, path = params[key], f"{prefix}{key}"
        flat.update(flat_paths(value, f"{path}/") if isinstance(value, Mapping) else {path: value})
    return flat


def _plain(state) -> dict:
    """NNX state -> nested dict of arrays; list positions become strings, as checkpoints and path
    rules want them.
    """

    def stringify(tree):
        return {str(k): stringify(v) if isinstance(v, Mapping) else v for k, v in tree.items()}

    return stringify(nnx.to_pure_dict(state))


def _with_indices(params: Mapping) -> dict:
    """The inverse of `_plain`'s renaming: "0" -> 0, as nnx.List wants it."""
    return {
        int(k) if k.isdigit() else k: _with_indices(v) if isinstance(v, Mapping) else v
        for k, v in params.items()
    }


def _check_params(params: Mapping, shapes: Mapping) -> None:
    got, wanted = flat_paths(params), flat_paths(shapes)
    for problem, names in (
        ("lacks", wanted.keys() - got.keys()),
        ("has the unknown", got.keys() - wanted.keys()),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ValueError(
                f"the parameter tree {problem} {min(names)}{more}; it was made for another model"
            )
    for name, leaf in got.items():
        if jnp.shape(leaf) != wanted[name].shape:
            raise ValueError(
                f"parameter {name} has shape {jnp.shape(leaf)}; this model wants"
                f" {wanted[name].shape}"
            )
