"""Schedules as pure functions of the step: learning rate, weight decay, teacher momentum,
temperatures.

A step may be a Python number or a traced integer. Values are float32 and agree with float64 to
about 1e-6. A schedule that is constant within an epoch (DINO's temperature) is the same function of
the epoch: pass `step // steps_per_epoch` and a length in epochs.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


def warmup_cosine(step, *, base, end, total, warmup=0, start=0.0):
    """Linear from `start` to `base` over `warmup` steps, then half a cosine from `base` towards
    `end`.

        t < W:  start + (base - start) t / (W - 1)            both end points are hit: t = 0 and t =
          W - 1
        t >= W: end + (base - end) (1 + cos(pi (t - W) / (T - W))) / 2

    The last step of a run is T - 1, so `end` is never hit (as in the code of DINO and iBOT); past
    the run the value stays at `end`.

    Args:
      step: t >= 0, scalar or array. base, end, start: values, any unit. total: T > 0 steps.
      warmup: W <= T steps, 0 = none.

    Returns:
      float32 of the shape of `step`.
    """
    t = jnp.asarray(step, jnp.float32)
    # (1 + cos(pi x)) / 2 = sin^2(pi (1 - x) / 2): no cancellation near the end, where the value is
    # small.
    left = jnp.clip((total - t) / jnp.maximum(total - warmup, 1), 0.0, 1.0)
    cosine = end + (base - end) * jnp.sin(0.5 * jnp.pi * left) ** 2
    return jnp.where(t < warmup, _linear(t, start, base, warmup), cosine).astype(jnp.float32)


def linear_warmup(step, *, start, end, warmup):
    """Linear from `start` at t = 0 to `end` at t = warmup - 1, then constant: the teacher
    temperature.

    Args:
      step: t >= 0 in steps, or in epochs for the variant that is constant within an epoch.
      warmup: W in the same unit, 0 = `end` from the start; may be traced.

    Returns:
      float32 of the shape of `step`.
    """
    t = jnp.asarray(step, jnp.float32)
    return jnp.where(t < warmup, _linear(t, start, end, warmup), end).astype(jnp.float32)


def _linear(t, start, end, warmup):
    # Weighted mean: exact at both ends. A warm-up of one step stays at `start`, as
    # numpy.linspace(start, end, 1).
    share = jnp.clip(t / jnp.maximum(warmup - 1, 1), 0.0, 1.0)
    return start * (1 - share) + end * share


class Schedules(NamedTuple):
    """What the step needs, each a function of the step (int32 scalar or array) that returns
    float32.
    """

    lr: Callable[[jax.Array], jax.Array]
    weight_decay: Callable[[jax.Array], jax.Array]
    momentum: Callable[[jax.Array], jax.Array]

    def at(self, step) -> dict[str, jax.Array]:
        """All values at `step` by name."""
        return {name: getattr(self, name)(step) for name in self._fields}


def schedules(config) -> Schedules:
    """The schedules of a resolved config; weight decay and momentum have no warm-up, as in DINO."""
    o, t, run = config.optim, config.teacher, config.run

    def lr(step):
        return warmup_cosine(
            step, base=run.peak_lr, end=o.final_lr, total=run.total_steps, warmup=run.warmup_steps
        )

    def weight_decay(step):
        return warmup_cosine(
            step, base=o.weight_decay, end=o.final_weight_decay, total=run.total_steps
        )

    def momentum(step):
        return warmup_cosine(step, base=t.momentum, end=t.final_momentum, total=run.total_steps)

    return Schedules(lr, weight_decay, momentum)


def table(config, points: int = 1000) -> dict[str, np.ndarray]:
    """Values at up to `points` evenly spaced steps, for plots: {"step", "lr", "weight_decay",
    "momentum"}.
    """
    total = config.run.total_steps
    steps = np.unique(np.linspace(0, total - 1, min(points, total)).round().astype(np.int32))
    return {
        "step": steps,
        **{name: np.asarray(value) for name, value in schedules(config).at(steps).items()},
    }
