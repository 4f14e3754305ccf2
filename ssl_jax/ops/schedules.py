"""Schedules as pure functions of the step: linear warm-up and half a cosine.

A step may be a Python number or a traced integer. Values are float32 and agree with float64 to
about 1e-6. A schedule that is constant within an epoch (DINO's temperature) is the same function of
the epoch: pass `step // steps_per_epoch` and a length in epochs.

Those of optax are other functions. They cancel where they are small: from 2e-3 to 1e-6 in 100,000
steps the cosine is off by 3e-5, a warm-up of 10,000 steps by 2e-4. The linear one stays at its
start for ever if the warm-up has one step or none, the cosine refuses a warm-up as long as the run,
and no length can be traced.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from ssl_jax.ops.arguments import is_concrete, require
from ssl_jax.ops.checked import Number


def warmup_cosine(
    step: Shaped[Array, "*b"],
    *,
    base: Number,
    end: Number,
    total: Number,
    warmup: Number = 0,
    start: Number = 0.0,
) -> Float[Array, "*b"]:
    """Linear from `start` to `base` over a warm-up, then half a cosine from `base` towards `end`.

        t < W:  start + (base - start) t / (W - 1)                 both ends are hit: 0 and W - 1
        t >= W: end + (base - end) (1 + cos(pi (t - W) / (T - W))) / 2

    The last step of a run is T - 1, so `end` is never hit (as in the code of DINO and iBOT); past
    the run the value stays at `end`.

    Args:
      step: t >= 0, scalar or array.
      base: value after the warm-up; any unit, as are the next two.
      end: value at T.
      total: T >= 0 steps; 0 = `end` from t = 0 on.
      warmup: W <= T steps, 0 = none.
      start: value at t = 0, if there is a warm-up.

    Returns:
      float32 of the shape of `step`.

    Raises:
      TypeError, ValueError: arguments that are no numbers, a T below 0, a W outside [0, T] (where
        they are known).

    Example:
      >>> import jax.numpy as jnp
      >>> print(warmup_cosine(jnp.arange(5), base=1.0, end=0.0, total=5, warmup=2).round(2))
      [0.   1.   1.   0.75 0.25]

    Reference: DINO (Caron et al. 2021), official code.
    """
    t = jnp.asarray(step, jnp.float32)
    base, end, total, warmup, start = map(_number, (base, end, total, warmup, start))
    if is_concrete(total):
        require(bool(total >= 0), "total", total, "0 or more")
        fits = not is_concrete(warmup) or bool(0 <= warmup <= total)
        require(fits, "warmup", warmup, f"between 0 and total = {total}")
    # (1 + cos(pi x)) / 2 = sin^2(pi (1 - x) / 2), which does not cancel near the end.
    left = jnp.clip((total - t) / jnp.maximum(total - warmup, 1), 0.0, 1.0)
    cosine = end + (base - end) * jnp.sin(0.5 * jnp.pi * left) ** 2
    return jnp.where(t < warmup, _linear(t, start, base, warmup), cosine).astype(jnp.float32)


def linear_warmup(
    step: Shaped[Array, "*b"], *, start: Number, end: Number, warmup: Number
) -> Float[Array, "*b"]:
    """Linear from `start` at t = 0 to `end` at t = warmup - 1, then constant.

    The teacher's temperature, for example.

    Args:
      step: t >= 0 in steps, or in epochs for the variant that is constant within an epoch.
      start: value at t = 0.
      end: value from t = warmup - 1 on.
      warmup: W in the same unit, 0 = `end` from the start, 1 = `start` at t = 0 alone; may
        be traced.

    Returns:
      float32 of the shape of `step`.

    Raises:
      TypeError, ValueError: arguments that are no numbers.

    Example:
      >>> import jax.numpy as jnp
      >>> print(linear_warmup(jnp.arange(4), start=0.0, end=1.0, warmup=3))
      [0.  0.5 1.  1. ]

    Reference: DINO (Caron et al. 2021), official code.
    """
    t = jnp.asarray(step, jnp.float32)
    start, end, warmup = map(_number, (start, end, warmup))
    return jnp.where(t < warmup, _linear(t, start, end, warmup), end).astype(jnp.float32)


def _number(x):
    """A Python number as it is, because differences of such are exact; any other as float32."""
    return x if type(x) in (int, float) else jnp.asarray(x, jnp.float32)


def _linear(t, start, end, warmup):
    # Weighted mean: exact at both ends. A warm-up of one step stays at `start`, as
    # numpy.linspace(start, end, 1).
    share = jnp.clip(t / jnp.maximum(warmup - 1, 1), 0.0, 1.0)
    return start * (1 - share) + end * share
