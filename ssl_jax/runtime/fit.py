"""Trains the heads of evaluations: one head, or several on the same batches.

    fitted = fit(loss, transformation, batches, mesh, steps, params=params)

`begin` and `step` are its pure parts, for loops inside a compiled function.
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

_SECONDS = 60.0  # between two progress lines
_AHEAD = 2  # steps queued on the device

# (params, carry, inputs) -> ({"loss": the minimised scalar, further terms to report}, new carry)
Loss = Callable[[Any, Any, Any], tuple[dict[str, jax.Array], Any]]
# (step, *points) -> the optax transformation of this step; its state does not depend on the step
Transformation = Callable[..., optax.GradientTransformation]


class State(NamedTuple):
    """The training state; with g simultaneous trainings each array is [g, ...]."""

    params: Any
    carry: Any  # passed by the loss from step to step, for example BatchNorm statistics
    moments: Any  # the state of the transformation


class Fitted(NamedTuple):
    """The result on the host; with g simultaneous trainings params and carry are [g, ...].

    losses: [steps] float32, or [steps, g].
    """

    params: Any
    carry: Any
    losses: np.ndarray

    def each(self) -> list["Fitted"]:
        """Splits simultaneous trainings into one result each."""

        def of(i):
            params, carry = jax.tree.map(lambda x: x[i], (self.params, self.carry))
            return Fitted(params, carry, self.losses[:, i])

        return [of(i) for i in range(self.losses.shape[1])]


def begin(transformation: Transformation, params: Any, carry: Any, points: tuple) -> State:
    """The state before the first step, copied from the arguments; see `fit` for them."""

    def init(*point):
        return State(params, carry, transformation(0, *point).init(params))

    return jax.vmap(init)(*points) if _several(points) else jax.tree.map(jnp.copy, init(*points))


def step(
    loss: Loss, transformation: Transformation, state: State, inputs: Any, index: Any, points: tuple
) -> tuple[State, dict[str, jax.Array]]:
    """One step: (new state, loss terms before the update); see `fit` for the arguments."""

    def lowered(params, carry):
        terms, carry = loss(params, carry, inputs)
        return terms["loss"], (terms, carry)

    def single(state, *point):
        grads, (terms, carry) = jax.grad(lowered, has_aux=True)(state.params, state.carry)
        change = transformation(index, *point)
        updates, moments = change.update(grads, state.moments, state.params)
        return State(optax.apply_updates(state.params, updates), carry, moments), terms

    return jax.vmap(single)(state, *points) if _several(points) else single(state, *points)


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
    watch: Callable[[int, Any], None] | None = None,
    name: str,
    finite: bool = True,
) -> Fitted:
    """Trains on each batch once and prints a progress line every minute.

    Args:
      loss: see `Loss`. carry: its initial carry.
      transformation: see `Transformation`. points: its further arguments: scalars, or arrays [g]
        for g simultaneous trainings from the same start.
      batches: trees of arrays with this process's rows; the first axis is sharded over the mesh.
      steps: number of batches.
      params: initial parameters; they are copied.
      prepare: (constants, batch, step index) -> inputs of the loss, computed once for all
        trainings, outside the gradient.
      watch: called after each step with the number of steps and the parameters on the devices.
      name: of the evaluation, for messages. finite: whether to refuse a loss that is not finite.

    Raises:
      InputError: there is no batch, or (with `finite`) the loss is not finite.
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
        if watch:
            watch(index + 1, state.params)
        curve.waiting.append(terms)
        curve.take(_AHEAD)  # else all batches would be queued on the device at once
    curve.take(0)
    if not curve.losses:
        raise InputError(f"{name}: there is no batch to train on")
    params, carry = jax.tree.map(np.asarray, (state.params, state.carry))
    return Fitted(params, carry, np.stack(curve.losses))


class _Curve:
    """Collects the losses of a training from the device, a few steps late."""

    def __init__(self, name: str, steps: int, finite: bool):
        self._name, self._steps, self._finite = name, steps, finite
        self.waiting, self.losses = collections.deque[dict[str, jax.Array]](), list[np.ndarray]()
        self._reported = time.monotonic()

    def take(self, most: int) -> None:
        """Fetches losses until at most `most` steps are queued. With `finite`, raises InputError
        for a loss that is not finite."""
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
