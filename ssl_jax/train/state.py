"""TrainState: one pytree of everything that determines the next step, except the data loader's
record index."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ssl_jax.methods import Method
from ssl_jax.models import lora
from ssl_jax.ops import numerics
from ssl_jax.train.optim import Optimizer


class TrainState(NamedTuple):
    """The whole state of a run.

    step: int32, number of batches consumed, including those of non-finite steps.
    params: trainable pytree. teacher: EMA pytree in separate buffers, or None.
    opt_state: moments and counts. carry: the method's memories, centers and counters.
    constants: the method's frozen arrays, or None.
    key: PRNG key of the run; a step uses fold_in(key, step).
    counters: int32 scalars since the start, "nonfinite" (skipped steps) and "replaced" (unreadable
      images replaced).
    """

    step: jax.Array
    params: Any
    teacher: Any
    opt_state: Any
    carry: Any
    constants: Any
    key: jax.Array
    counters: dict[str, jax.Array]


def create(method: Method, optimizer: Optimizer, seed: int, constants: Any = None) -> TrainState:
    """A new state; traceable, so that it can be created sharded (jit with out_shardings) or
    abstract (eval_shape).

    constants: the result of method.constants().
    """
    key_init, key_run = jax.random.split(numerics.key(seed))
    params, carry = method.init(key_init)
    # The teacher is a copy: the step donates the state, and a buffer can be donated only once.
    teacher = jax.tree.map(jnp.copy, method.teacher_of(params))
    counters = {name: jnp.zeros((), jnp.int32) for name in ("nonfinite", "replaced")}
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        teacher=teacher,
        opt_state=optimizer.init(params),
        carry=carry,
        constants=method.freeze(constants, params, teacher, 0) if method.freeze else constants,
        key=key_run,
        counters=counters,
    )


def weights(state: TrainState, model: ConfigDict) -> Any:
    """The network to evaluate and export: the teacher if there is one, else the trained parameters,
    with adapters merged. model: the section of the config."""
    return lora.network(state.params, state.teacher, model)


def initial_weights(method: Method, seed: int, model: ConfigDict) -> Any:
    """The result of `weights` for a run with random weights before its first step."""

    def init():
        params, _ = method.init(jax.random.split(numerics.key(seed))[0])
        return lora.network(params, method.teacher_of(params), model)

    return jax.jit(init)()  # compiled, as the run compiles it: the same bits
