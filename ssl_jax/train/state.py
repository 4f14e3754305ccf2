"""TrainState: everything that changes the next step, in one pytree. What is not here is in the data
loader's record index."""

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

    step: int32, number of batches consumed. It advances on a non-finite step too.
    params: trainable pytree. teacher: EMA pytree with buffers of its own, or None.
    opt_state: moments and counts. carry: the method's memories, centers and counters.
    constants: the method's frozen arrays, or None; no step trains them.
    key: PRNG key of the run; a step uses fold_in(key, step).
    counters: int32 scalars, "nonfinite" (steps left out) and "replaced" (unreadable images
      replaced), both since the start.
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
    """A fresh state; traceable, so it can be made sharded (jit with out_shardings) or abstract
    (eval_shape).

    constants: what method.constants() returned.
    """
    key_init, key_run = jax.random.split(numerics.key(seed))
    params, carry = method.init(key_init)
    # The teacher is a copy, never an alias: the step donates the state, and a buffer can be donated
    # only once.
    teacher = jax.tree.map(jnp.copy, method.teacher_of(params))
    counters = {name: jnp.zeros((), jnp.int32) for name in ("nonfinite", "replaced")}
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        teacher=teacher,
        opt_state=optimizer.init(params),
        carry=carry,
        constants=method.freeze(constants, teacher, 0) if method.freeze else constants,
        key=key_run,
        counters=counters,
    )


def weights(state: TrainState, model: ConfigDict) -> Any:
    """The tree to evaluate and to ship: the teacher where there is one, else the trained
    parameters; with adapters added. model: the section of the config."""
    return lora.network(state.params, state.teacher, model)


def initial_weights(method: Method, seed: int, model: ConfigDict) -> Any:
    """What `weights` would give before the first step of a run with random weights: the untrained
    network."""
    params, _ = method.init(jax.random.split(numerics.key(seed))[0])
    return lora.network(params, method.teacher_of(params), model)
