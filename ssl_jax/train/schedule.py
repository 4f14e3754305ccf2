"""Learning rate, weight decay and teacher momentum of a run as functions of the step."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike
from ml_collections import ConfigDict

from ssl_jax.config import key
from ssl_jax.ops import warmup_cosine


def defaults() -> dict:
    """The section `teacher` of the config."""
    return dict(
        momentum=key(0.996, "of the teacher's moving average, at step 0", least=0, most=1),
        final_momentum=key(1.0, "end of its cosine", least=0, most=1),
    )


class Schedules(NamedTuple):
    """Each a function of the step (int32 scalar or array) that returns float32 of that shape."""

    lr: Callable[[ArrayLike], jax.Array]
    weight_decay: Callable[[ArrayLike], jax.Array]
    momentum: Callable[[ArrayLike], jax.Array]

    def at(self, step: ArrayLike) -> dict[str, jax.Array]:
        """All values at `step` by name."""
        return {name: getattr(self, name)(step) for name in self._fields}


def schedules(config: ConfigDict) -> Schedules:
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
