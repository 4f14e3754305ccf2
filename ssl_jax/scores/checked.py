"""Checks of the arrays that scores are computed from."""

import numpy as np
from numpy.typing import ArrayLike


def real(values: ArrayLike) -> np.ndarray:
    """An array of floats of at least 32 bits: sums and products of others overflow."""
    array = np.asarray(values)
    return array.astype(np.promote_types(array.dtype, np.float32), copy=False)


def finite(values: ArrayLike, what: str) -> np.ndarray:
    """`real(values)`. Raises ValueError for values that are not finite, which would count as the
    largest or the smallest."""
    array = real(values)
    with np.errstate(invalid="ignore"):
        total = array.sum(dtype=np.float64)  # needs no array of its own
    if not np.isfinite(total):
        raise ValueError(f"{what} {array.shape} have values that are not finite")
    return array


def classes(labels: ArrayLike, num_classes: int, what: str = "labels") -> np.ndarray:
    """Labels as int32. Raises ValueError unless they are whole numbers in [0, num_classes)."""
    array = np.asarray(labels)
    is_float = array.dtype.kind == "f"
    whole = array.dtype.kind in "biu" or (is_float and (array == np.rint(array)).all())
    if not whole or array.size and not 0 <= array.min() <= array.max() < num_classes:
        raise ValueError(f"{what} must be integers in [0, {num_classes})")
    return array.astype(np.int32)
