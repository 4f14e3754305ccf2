"""Learning rate, weight decay and teacher momentum of a run as functions of the step.

An extended run (`optim.extended`) has several ends. At each but the last, the cosines restart
without a warm-up (warm restarts, Loshchilov & Hutter 2017).
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from ml_collections import ConfigDict

from ssl_jax.config import key
from ssl_jax.ops import warmup_cosine


def defaults() -> dict:
    """The section `teacher` of the config."""
    return dict(
        momentum=key(0.996, "momentum of the teacher's moving average at step 0", least=0, most=1),
        final_momentum=key(
            1.0, "momentum of the teacher's moving average at the end", least=0, most=1
        ),
    )


class Schedules(NamedTuple):
    """Functions of the step (int32 scalar or array) that return float32 of the same shape."""

    lr: Callable[[ArrayLike], jax.Array]
    weight_decay: Callable[[ArrayLike], jax.Array]
    momentum: Callable[[ArrayLike], jax.Array]

    def at(self, step: ArrayLike) -> dict[str, jax.Array]:
        """All values at `step` by name."""
        return {name: getattr(self, name)(step) for name in self._fields}


def ends(optim: ConfigDict, steps_per_epoch: int) -> tuple[int, ...]:
    """Steps at which a run's cosines end: the planned end (0 if the plan is shorter than half a
    step), then those of its extensions. The last is the end of the run.

    optim: the section of the config.
    """
    return (optim.steps or round(optim.epochs * steps_per_epoch), *optim.extended)


def schedules(config: ConfigDict) -> Schedules:
    """The schedules of a resolved config; weight decay and momentum have no warm-up, as in DINO."""
    o, t, run = config.optim, config.teacher, config.run
    first, *later = ends(o, run.steps_per_epoch)

    def cosine(step, base, end, warmup=0):
        value = warmup_cosine(step, base=base, end=end, total=first, warmup=warmup)
        for began, ended in itertools.pairwise((first, *later)):
            restarted = warmup_cosine(step - began, base=base, end=end, total=ended - began)
            value = jnp.where(step < began, value, restarted)
        return value

    def lr(step):
        return cosine(step, run.peak_lr, o.final_lr, run.warmup_steps)

    def weight_decay(step):
        return cosine(step, o.weight_decay, o.final_weight_decay)

    def momentum(step):
        return cosine(step, t.momentum, t.final_momentum)

    return Schedules(lr, weight_decay, momentum)


def table(config: ConfigDict, points: int = 1000) -> dict[str, np.ndarray]:
    """Values at up to `points` evenly spaced steps, for plots.

    Returns {"step", "lr", "weight_decay", "momentum"}: arrays of one length.
    """
    total = config.run.total_steps
    steps = np.unique(np.linspace(0, total - 1, min(points, total)).round().astype(np.int32))
    return {
        "step": steps,
        **{name: np.asarray(value) for name, value in schedules(config).at(steps).items()},
    }
