"""Checks of arguments, shared by ops and losses.

Shapes are known under `jit` and always checked. Values are checked only where they are known: a
traced temperature passes, so a schedule may feed it.
"""

import jax
import numpy as np
from jax.typing import ArrayLike


def require(condition: bool, name: str, got: object, expected: str) -> None:
    """Raises ValueError "`name` is `got`; it must be `expected`" unless `condition`."""
    if not condition:
        raise ValueError(f"{name} is {got}; it must be {expected}")


def is_concrete(value: object) -> bool:
    """Whether the value of a number or array can be looked at: not traced, and on this
    process.
    """
    if isinstance(value, jax.core.Tracer):
        return False
    return not isinstance(value, jax.Array) or value.is_fully_addressable


def require_inside(name: str, indices: ArrayLike, of: str, size: int) -> None:
    """Raises ValueError if known indices reach beyond `size`, the number of what they point at."""
    if is_concrete(indices):
        indices = np.asarray(indices)
        inside = bool(((indices >= 0) & (indices < size)).all())
        require(inside, name, f"outside the {of}", f"in [0, {size})")


def require_shape(name: str, array: ArrayLike, pattern: tuple, meaning: str) -> None:
    """Raises ValueError unless the shape fits `pattern`.

    Args:
      pattern: expected sizes; None fits any size, and a leading Ellipsis any number of leading
        axes.
      meaning: how to write the wanted shape, e.g. "[K, M, d] with d = 256".
    """
    shape = np.shape(array)
    sizes = pattern
    if pattern[0] is Ellipsis:
        sizes = pattern[1:]
        tail = shape[len(shape) - len(sizes) :] if len(shape) >= len(sizes) else None
    else:
        tail = shape if len(shape) == len(sizes) else None
    fits = tail is not None and all(want is None or want == size for want, size in zip(sizes, tail))
    require(fits, f"the shape of {name}", shape, meaning)
