"""One trainer for the heads that evaluations fit: one head, or several on the same batches.

    fitted = fit(loss, transformation, batches, mesh, steps, params=params)

`begin` and `step` are its pure parts, for a loop inside a compiled function.
"""

import collections
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from ssl_jax.config import InputError
from ssl_jax.runtime import distributed, sharding

_SECONDS = 60.0  # between two lines about a long training
_AHEAD = 2  # steps that wait on the device

# (params, carry, inputs) -> ({"loss": what is lowered, and its parts to report}, new carry)
Loss = Callable[[Any, Any, Any], tuple[dict[str, jax.Array], Any]]
# (step, *points) -> the optax transformation of that step; its state does not depend on the step
Transformation = Callable[..., optax.GradientTransformation]


class State(NamedTuple):
    """What a step changes; with several trainings each array is [g, ...]."""

    params: Any
    carry: Any  # what the loss hands on from step to step, for example statistics of BatchNorm
    moments: Any  # the state of the transformation


class Fitted(NamedTuple):
    """The result of a training, on the host; with several trainings params and carry are [g, ...].

    losses: [steps] float32, or [steps, g].
    """

    params: Any
    carry: Any
    losses: np.ndarray

    def each(self) -> list["Fitted"]:
        """Several trainings, one by one."""

        def of(i):
            params, carry = jax.tree.map(lambda x: x[i], (self.params, self.carry))
            return Fitted(params, carry, self.losses[:, i])

        return [of(i) for i in range(self.losses.shape[1])]


def begin(transformation: Transformation, params: Any, carry: Any, points: tuple) -> State:
    """The state before the first step, in buffers of its own; see `fit` for the arguments."""

    def one(*point):
        return State(params, carry, transformation(0, *point).init(params))

    return jax.vmap(one)(*points) if _several(points) else jax.tree.map(jnp.copy, one(*points))


def step(
    loss: Loss, transformation: Transformation, state: State, inputs: Any, index: Any, points: tuple
) -> tuple[State, dict[str, jax.Array]]:
    """The state after one step and the terms of the loss before it; see `fit` for the arguments."""

    def lowered(params, carry):
        terms, carry = loss(params, carry, inputs)
        return terms["loss"], (terms, carry)

    def one(state, *point):
        grads, (terms, carry) = jax.grad(lowered, has_aux=True)(state.params, state.carry)
        change = transformation(index, *point)
        updates, moments = change.update(grads, state.moments, state.params)
        return State(optax.apply_updates(state.params, updates), carry, moments), terms

    return jax.vmap(one)(state, *points) if _several(points) else one(state, *points)


def fit(
    loss: Loss,
    transformation: Transformation,
    batches: Iterable[Any],
    mesh: Mesh,
    steps: int,
    *,
    params: Any,
    carry: Any = None,
    constants: Any = None,
    points: tuple = (),
    prepare: Callable[[Any, Any, Any], Any] = lambda constants, batch, index: batch,
    name: str,
    finite: bool = True,
) -> Fitted:
    """Trains on each of the batches once; a line on the console tells each minute how it goes.

    Args:
      loss: of a batch; carry: what it begins with.
      transformation: see `Transformation`. points: its further arguments, scalars; or arrays [g]
        for g trainings at once, all from the same start.
      batches: trees of arrays, their first axis cut over the devices of the mesh; of each, a
        process gives its own rows. steps: how many there are.
      params: before the first step; they are copied.
      prepare: (constants, batch, index of the step) -> inputs of the loss, computed once for all
        trainings and without a gradient.
      name: of the evaluation, for messages. finite: whether a loss that is not finite is refused.

    Raises:
      InputError: no batch, or a loss that is not finite.
    """

    def advance(state, constants, points, batch, index):
        inputs = prepare(constants, batch, index)
        return step(loss, transformation, state, inputs, index, points)

    whole, rows = sharding.replicated(mesh), sharding.batch_sharding(mesh)
    advance = jax.jit(
        sharding.on_mesh(advance, mesh),
        donate_argnums=0,
        in_shardings=(whole, whole, whole, rows, None),
        out_shardings=whole,
    )
    state, constants, points = jax.device_put(
        (begin(transformation, params, carry, points), constants, points), whole
    )
    curve = _Curve(name, steps, finite)
    for index, batch in enumerate(batches):
        state, terms = advance(state, constants, points, sharding.put_batch(batch, mesh), index)
        curve.waiting.append(terms)
        curve.take(_AHEAD)  # else all batches would go to the device at once
    curve.take(0)
    if not curve.losses:
        raise InputError(f"{name}: there is no batch to train on")
    params, carry = jax.tree.map(np.asarray, (state.params, state.carry))
    return Fitted(params, carry, np.stack(curve.losses))


class _Curve:
    """The losses of a training, taken from the device a few steps late."""

    def __init__(self, name: str, steps: int, finite: bool):
        self._name, self._steps, self._finite = name, steps, finite
        self.waiting, self.losses = collections.deque[dict[str, jax.Array]](), list[np.ndarray]()
        self._reported = time.monotonic()

    def take(self, most: int) -> None:
        """Waits until at most so many steps wait. Raises InputError for a loss that is not finite
        where `fit` refuses it."""
        while len(self.waiting) > most:
            terms = jax.device_get(self.waiting.popleft())
            self.losses.append(terms["loss"])
            step = f"step {len(self.losses)} of {self._steps}"
            if self._finite and not np.isfinite(terms["loss"]).all():
                raise InputError(f"{self._name}: the loss of {step} is {terms['loss']}; lower lr")
            if time.monotonic() - self._reported > _SECONDS and distributed.is_first():
                values = ", ".join(f"{key} {np.round(x, 3)}" for key, x in terms.items())
                print(f"  {self._name}: {step}, {values}", flush=True)
                self._reported = time.monotonic()


def _several(points: tuple) -> bool:
    return bool(points) and np.ndim(points[0]) > 0
