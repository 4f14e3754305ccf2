"""Passes over the rows of a large array, a part of them at a time.

Pass i of P takes rows i, i + P, i + 2 P, ...: every shard of a sharded axis has rows in every pass,
so that no device waits and nothing is sent.
"""

import math
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

Rows = TypeVar("Rows", jax.Array, jax.Array | None)


def divide(size: int, most: int, *, least: int = 1, block: int = 1) -> tuple[int, int]:
    """(passes, rows per pass), with at most `most` and at least `least` rows a pass.

    Takes a number of passes that divides the size where there is one near, whole blocks of rows
    first; passes * rows may else exceed the size, and the array has to be padded.
    """
    fewest = math.ceil(size / most)
    if fewest <= 1:
        return 1, size
    fits = [n for n in range(fewest, 2 * fewest + 1) if size % n == 0 and size // n >= least]
    if fits:
        passes = min(fits, key=lambda n: (size // n % block != 0, n))
        return passes, size // passes
    return fewest, max(least, math.ceil(size / fewest))


def pad(x: Rows, extra: int, axis: int = 0) -> Rows:
    """Appends `extra` rows of zeros (False); None stays None."""
    if x is None or extra == 0:
        return x
    return jnp.pad(x, [(0, extra if i == axis else 0) for i in range(x.ndim)])


def take(x: Rows, number: ArrayLike, passes: int, axis: int = 0) -> Rows:
    """The rows of pass `number`; None stays None."""
    if x is None or passes == 1:
        return x
    split = x.reshape(*x.shape[:axis], x.shape[axis] // passes, passes, *x.shape[axis + 1 :])
    return jax.lax.dynamic_index_in_dim(split, number, axis + 1, keepdims=False)
