"""Where features are kept: in memory, in a temporary file if they are too large for it, or in a
folder from which later evaluations read them."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ssl_jax.config import InputError

IN_MEMORY = 2**31  # bytes of one array; larger ones are files
_META = "meta.json"

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


def allocate(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array in memory, or above IN_MEMORY in a temporary file."""
    size = _bytes(shape, dtype)
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


def _bytes(shape, dtype):
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


class Cache:
    """Extracted features in a folder: one subfolder for each key, a .npy file for each array.

    key: what the features depend on, as JSON; its hash names the subfolder.
    """

    def __init__(self, root: str | Path, key: Mapping[str, Any]):
        self._key = json.loads(json.dumps(key, sort_keys=True))
        text = json.dumps(self._key, sort_keys=True)
        self.path = Path(root).expanduser() / hashlib.sha256(text.encode()).hexdigest()[:20]

    def read(self) -> tuple[dict[str, np.ndarray], dict] | None:
        """(arrays by name, memory-mapped; what else was kept), or None where there is nothing.

        Raises InputError for a damaged entry.
        """
        try:
            kept = json.loads((self.path / _META).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise self._damaged(_META) from error
        arrays = {}
        for name, (shape, dtype) in kept["arrays"].items():
            file = f"{name}.npy"
            try:
                array = np.load(self.path / file, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError) as error:
                raise self._damaged(file) from error
            if [list(array.shape), str(array.dtype)] != [shape, dtype]:
                raise self._damaged(file)
            arrays[name] = array
        return arrays, kept["notes"]

    def _damaged(self, file):
        return InputError(
            f"evals.cache: {self.path / file} is damaged; choose another folder for evals.cache, or"
            ' "" to keep no features'
        )

    @contextlib.contextmanager
    def writing(self) -> Iterator["Writer"]:
        """A Writer of a new entry, which appears whole at the end of the block or not at all."""
        with contextlib.suppress(FileExistsError):
            self.path.parent.mkdir(parents=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{self.path.name}_", dir=self.path.parent))
        try:
            writer = Writer(folder)
            yield writer
            writer.close(self._key)
            # Two evaluations may have made the same entry at once; the first one stays.
            with contextlib.suppress(OSError):
                folder.rename(self.path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class Writer:
    """The arrays of a cache's entry while they are made."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.notes: dict[str, Any] = {}
        self._arrays: dict[str, np.ndarray] = {}

    def allocate(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """A new array of the entry, in its file."""
        size, free = _bytes(shape, dtype), shutil.disk_usage(self._folder).free
        if free < size:
            raise InputError(
                f"evals.cache: {name} of {size / 2**30:.1f} GiB does not fit the"
                f" {free / 2**30:.1f} GiB free in {self._folder.parent}"
            )
        path = self._folder / f"{name}.npy"
        array = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)
        self._arrays[name] = array
        return array

    def keep(self, name: str, array: np.ndarray) -> None:
        """Puts an array, or the first rows of one that was allocated, into the entry."""
        self._arrays[name] = array

    def close(self, key: Mapping[str, Any]) -> None:
        """Writes what is not in its file yet, and what the entry holds."""
        for name, array in self._arrays.items():
            path = self._folder / f"{name}.npy"
            # The whole of a file that was allocated is written already.
            whole = isinstance(array, np.memmap) and path.exists()
            if not whole or np.load(path, mmap_mode="r").shape != array.shape:
                other = self._folder / f"{name}.new.npy"
                np.save(other, array, allow_pickle=False)
                other.replace(path)
        described = {n: [list(a.shape), str(a.dtype)] for n, a in self._arrays.items()}
        meta = {"key": key, "arrays": described, "notes": self.notes}
        (self._folder / _META).write_text(json.dumps(meta, indent=1))
