"""TrainState: everything that changes the next step, in one pytree. What is not here is in the data
loader's record index.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class TrainState(NamedTuple):
    """The whole state of a run.

    step: int32, number of batches consumed. It advances on a non-finite step too.
    params: trainable pytree. teacher: EMA pytree with buffers of its own, or None. opt_state:
    moments and counts. carry: the method's memories, centers and frozen arrays. key: PRNG key of
    the run; a step uses fold_in(key, step). counters: int32 scalars, "nonfinite" (steps left out)
    and "replaced" (unreadable images replaced), both since the start."""

    step: jax.Array
    params: Any
    teacher: Any
    opt_state: Any
    carry: Any
    key: jax.Array
    counters: dict[str, jax.Array]


def create(method, optimizer, config) -> TrainState:
    """A fresh state from `config.seed`; traceable, so it can be made sharded (jit with
    out_shardings) or abstract (eval_shape).
    """
    key_init, key_run = _keys(config)
    params, carry = method.init(key_init, config)
    # The teacher is a copy, never an alias: the step donates the state, and a buffer can be donated
    # only once.
    teacher = jax.tree.map(jnp.copy, method.teacher_of(params))

    def zero():
        return jnp.zeros((), jnp.int32)

    counters = {"nonfinite": zero(), "replaced": zero()}
    return TrainState(zero(), params, teacher, optimizer.init(params), carry, key_run, counters)


def weights(state: TrainState):
    """The tree to evaluate and to ship: the teacher where there is one, else the trained
    parameters.
    """
    return state.params if state.teacher is None else state.teacher


def initial_weights(method, config):
    """What `weights` would give before the first step of a run with this config and random weights:
    the untrained network.
    """
    params, _ = method.init(_keys(config)[0], config)
    teacher = method.teacher_of(params)
    return params if teacher is None else teacher


def _keys(config):
    """(initialisation, run) keys of the seed."""
    return jax.random.split(jax.random.key(config.seed))
