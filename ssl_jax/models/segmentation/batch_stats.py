"""Networks with BatchNorm as pure functions: their running statistics are an argument and a
result."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import nnx

from ssl_jax import trees


class Stateful(NamedTuple):
    """A network whose running statistics are explicit.

    init(key) -> (params, stats): nested dicts with string keys and float32 arrays; stats may be {}.
    apply(params, stats, *inputs, **options) -> (outputs, stats): the statistics after the call.
    """

    init: Callable[..., tuple[dict[str, Any], dict[str, Any]]]
    apply: Callable[..., tuple[Any, dict[str, Any]]]


def stateful(build: Callable[..., nnx.Module], **sizes: Any) -> Stateful:
    """Turns a module into a Stateful.

    build: (key, **sizes) -> module, usually its class; the module's call (*inputs, **options) ->
      outputs may write only to its BatchStat variables.
    """
    make = functools.partial(build, **sizes)

    def parts(module):
        return nnx.split(module, nnx.Param, nnx.BatchStat, graph=True)

    def plain(state) -> dict[str, Any]:
        return trees.nest(trees.flatten(nnx.to_pure_dict(state)))

    @functools.cache
    def graph():
        return parts(nnx.eval_shape(make, jax.eval_shape(jax.random.key, 0), graph=True))[0]

    @jax.jit  # one program instead of one per layer
    def init(key):
        _, params, stats = parts(make(key))
        return plain(params), plain(stats)

    def apply(params: dict[str, Any], stats: dict[str, Any], *inputs, **options):
        states = (nnx.restore_int_paths(tree) for tree in (params, stats))
        module = nnx.merge(graph(), *states)
        outputs = module(*inputs, **options)
        return outputs, plain(parts(module)[2])

    return Stateful(init, apply)
