"""Arrays of features: in memory, or in a temporary file if they are too large for it; of images of
one size or of many."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from ssl_jax.config import InputError

_SHAPES = "_shapes"
IN_MEMORY = 2**31  # bytes of one array; larger ones are files

Allocate = Callable[[str, tuple[int, ...], DTypeLike], np.ndarray]


class Grids(Sequence):
    """Arrays [h, w, ...] of N images whose sizes differ, in one array.

    rows: [sum of h * w, ...], one image after the other. shapes: [N, 2] int64, (h, w).
    """

    def __init__(self, rows: np.ndarray, shapes: np.ndarray):
        self.rows, self.shapes = rows, shapes
        self._ends = np.cumsum(shapes.prod(axis=1))

    def __len__(self):
        return len(self.shapes)

    def __getitem__(self, i):
        if not -len(self) <= i < len(self):
            raise IndexError(f"image {i} of {len(self)}")
        end = self._ends[i]
        part = self.rows[end - self.shapes[i].prod() : end]
        return part.reshape(*self.shapes[i], *self.rows.shape[1:])


def rows_of(grids: "np.ndarray | Grids") -> np.ndarray:
    """[all patches, d] of patch features: an array [N, h, w, d] or Grids; no copy."""
    return grids.rows if isinstance(grids, Grids) else grids.reshape(-1, grids.shape[-1])


def flat(rows: Mapping[str, "np.ndarray | Grids"]) -> dict[str, np.ndarray]:
    """Arrays alone: Grids as their rows and shapes."""
    found: dict[str, np.ndarray] = {}
    for name, array in rows.items():
        if isinstance(array, Grids):
            found |= {name: array.rows, f"{name}{_SHAPES}": array.shapes}
        else:
            found[name] = array
    return found


def folded(arrays: Mapping[str, np.ndarray]) -> "dict[str, np.ndarray | Grids]":
    """What `flat` was made of."""
    found: dict[str, np.ndarray | Grids] = {}
    for name, array in arrays.items():
        if not name.endswith(_SHAPES):
            shapes = arrays.get(f"{name}{_SHAPES}")
            found[name] = array if shapes is None else Grids(array, np.asarray(shapes))
    return found


def allocate(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array in memory, or above IN_MEMORY in a temporary file."""
    size = bytes_of(shape, dtype)
    if size <= IN_MEMORY:
        return np.empty(shape, dtype)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < size:
        raise InputError(
            f"features of {size / 2**30:.1f} GiB do not fit the {free / 2**30:.1f} GiB free in"
            f" {tempfile.gettempdir()}; set evals.cache or TMPDIR to a folder with more room"
        )
    handle, path = tempfile.mkstemp(prefix=f"ssl_jax_{name}_", suffix=".npy")
    os.close(handle)
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)
    Path(path).unlink()  # the space is free again when the array is, however the process ends
    return array


def bytes_of(shape: tuple[int, ...], dtype: DTypeLike) -> int:
    """Size of such an array."""
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
