"""Arrays of features: in memory, or in files where they are too large for it or kept for the next
time; of images of one size or of many."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike

from ssl_jax.config import InputError, local, read_json

_SHAPES = "_shapes"
_META = "meta.json"
_PLAN = "plan.json"
IN_MEMORY = 2**31  # bytes of one array; larger ones are files

Allocate = Callable[[str, tuple[int, ...], DTypeLike], np.ndarray]


class Grids(Sequence):
    """Arrays [h, w, ...] of N images whose sizes differ, in one array.

    rows: [sum of h * w, ...], one image after the other. shapes: [N, 2] int64, (h, w).
    """

    def __init__(self, rows: np.ndarray, shapes: np.ndarray):
        self.rows, self.shapes = rows, shapes
        self._ends = np.cumsum(shapes.prod(axis=1))

    @classmethod
    def of(cls, grids: "np.ndarray | Grids") -> "Grids":
        """Grids of an array [N, h, w, d] too; no copy."""
        if isinstance(grids, Grids):
            return grids
        shapes = np.tile(np.asarray(grids.shape[1:3], np.int64), (len(grids), 1))
        return cls(rows_of(grids), shapes)

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


def flat(arrays: Mapping[str, "np.ndarray | Grids"]) -> dict[str, np.ndarray]:
    """Arrays alone: Grids as their rows and, under NAME_shapes, their shapes."""
    result: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if isinstance(array, Grids):
            result |= {name: array.rows, f"{name}{_SHAPES}": array.shapes}
        else:
            result[name] = array
    return result


def folded(arrays: Mapping[str, np.ndarray]) -> "dict[str, np.ndarray | Grids]":
    """What `flat` was made of."""
    result: dict[str, np.ndarray | Grids] = {}
    for name, array in arrays.items():
        if not name.endswith(_SHAPES):
            shapes = arrays.get(f"{name}{_SHAPES}")
            result[name] = array if shapes is None else Grids(array, np.asarray(shapes))
    return result


class Table:
    """Arrays of N images whose rows are filled in any order, some perhaps never.

    sizes: [N, 2], height and width of the images, in pixels. allocate: makes the arrays.
    """

    def __init__(self, sizes: np.ndarray, allocate: Allocate):
        self._sizes, self._allocate = sizes, allocate
        self._arrays: dict[str, np.ndarray | Grids] = {}

    def put(self, name: str, rows: Sequence[int], values: np.ndarray, side: int = 0) -> None:
        """Puts values [n, ...] into n rows of an array, which the first ones make.

        side: in pixels, of what a value stands for in values [n, h, w, ...] of images that may
          differ in size; 0 = each image has as many.
        """
        if name not in self._arrays:
            self._arrays[name] = self._empty(name, values, side)
        array = self._arrays[name]
        if isinstance(array, Grids):
            for row, value in zip(rows, values):
                array[row][:] = value
        else:
            array[rows] = values

    def _empty(self, name, values, side):
        if not side or (self._sizes == self._sizes[0]).all():
            return self._allocate(name, (len(self._sizes), *values.shape[1:]), values.dtype)
        shapes = self._sizes // side
        size = int(shapes.prod(axis=1).sum())
        return Grids(self._allocate(name, (size, *values.shape[3:]), values.dtype), shapes)

    def arrays(self, filled: np.ndarray) -> "dict[str, np.ndarray | Grids]":
        """All arrays, without the rows that are not `filled` [N]."""
        return {name: _ordered(array, filled) for name, array in self._arrays.items()}


def _ordered(array, filled):
    if filled.all():
        return array
    if not isinstance(array, Grids):
        return _without_gaps(array, filled)
    of_row = np.repeat(filled, array.shapes.prod(axis=1))
    return Grids(_without_gaps(array.rows, of_row), array.shapes[filled])


def _without_gaps(array, filled):
    """The filled rows, moved together in place: a copy may not fit into memory."""
    count = int(filled.sum())
    for new, old in enumerate(np.flatnonzero(filled)):
        if new != old:
            array[new] = array[old]
    return array[:count]


def allocate(name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """An array in memory, or above IN_MEMORY in a temporary file."""
    size = _bytes_of(shape, dtype)
    if size <= IN_MEMORY:
        return np.empty(shape, dtype)
    folder = tempfile.gettempdir()
    _check_room(f"features of {size / 2**30:.1f} GiB do", size, folder, "evals.cache or TMPDIR")
    handle, path = tempfile.mkstemp(prefix=f"ssl_jax_{name}_", suffix=".npy")
    os.close(handle)
    array = _file(path, shape, dtype)
    Path(path).unlink()  # the space is free again when the array is, however the process ends
    return array


def _file(path, shape, dtype):
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)


def _bytes_of(shape, dtype):
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize


def _check_room(what, size, folder, keys):
    """Refuses an array for which a folder has no room. Raises InputError."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise InputError(
            f"{what} not fit the {free / 2**30:.1f} GiB free in {folder}; set {keys} to a folder"
            " with more room"
        )


class Entry:
    """Features of a key in a cache: a subfolder with a .npy file for each array.

    root: the folder of the cache. key: what the features depend on, as JSON; its hash names the
    subfolder.
    """

    def __init__(self, root: str | Path, key: Mapping[str, Any]):
        self._key = json.loads(json.dumps(key, sort_keys=True))
        text = json.dumps(self._key, sort_keys=True)
        self.path = local(root) / hashlib.sha256(text.encode()).hexdigest()[:20]

    def read(self) -> "tuple[dict[str, np.ndarray | Grids], dict] | None":
        """(arrays by name, memory-mapped; notes), or None where there is nothing.

        Raises InputError for a damaged entry.
        """
        try:
            meta = json.loads((self.path / _META).read_text())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise self._damaged(_META) from error
        arrays = {}
        for name, (shape, dtype) in meta["arrays"].items():
            file = f"{name}.npy"
            try:
                array = np.load(self.path / file, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError) as error:
                raise self._damaged(file) from error
            if [list(array.shape), str(array.dtype)] != [shape, dtype]:
                raise self._damaged(file)
            arrays[name] = array
        return folded(arrays), meta["notes"]

    def _damaged(self, file):
        return InputError(
            f"evals.cache: {self.path / file} is damaged; choose another folder for evals.cache, or"
            ' "" to keep no features'
        )

    @contextlib.contextmanager
    def new(self) -> Iterator["Writer"]:
        """A Writer of the entry; what it has not finished at the end of the block is removed."""
        with contextlib.suppress(FileExistsError):
            self.path.parent.mkdir(parents=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{self.path.name}_", dir=self.path.parent, ignore_cleanup_errors=True
        ) as folder:
            yield Writer(Path(folder), self.path, self._key)


class Writer:
    """An entry of a cache while it is made, which appears whole or not at all."""

    def __init__(self, folder: Path, path: Path, key: Mapping[str, Any]):
        self._folder, self._path, self._key = folder, path, key

    def allocate(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """A new array of the entry, in its file."""
        size = _bytes_of(shape, dtype)
        what = f"evals.cache: {name} of {size / 2**30:.1f} GiB does"
        _check_room(what, size, self._folder.parent, "evals.cache")
        return _file(self._folder / f"{name}.npy", shape, dtype)

    def finish(self, arrays: Mapping[str, "np.ndarray | Grids"], notes: Mapping[str, Any]) -> None:
        """Writes the arrays, as far as they are not in the files that were allocated, and notes."""
        described = {}
        for name, array in flat(arrays).items():
            path = self._folder / f"{name}.npy"
            # The whole of a file that was allocated is written already.
            whole = isinstance(array, np.memmap) and path.exists()
            if not whole or np.load(path, mmap_mode="r").shape != array.shape:
                other = self._folder / f"{name}.new.npy"
                np.save(other, array, allow_pickle=False)
                other.replace(path)
            described[name] = [list(array.shape), str(array.dtype)]
        meta = {"key": self._key, "arrays": described, "notes": notes}
        (self._folder / _META).write_text(json.dumps(meta, indent=1))
        # Two evaluations may have made the same entry at once; the first one stays.
        with contextlib.suppress(OSError):
            self._folder.rename(self._path)


class Parts:
    """Consecutive parts of a work in a folder, until all are there; each is a file of arrays.

    plan: what they depend on, as JSON. Raises InputError where the folder holds parts of another
    plan, or something else.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any]):
        self._folder = folder
        path = folder / _PLAN
        if path.exists():
            stored = read_json(path)
            differing = sorted(key for key in plan if plan[key] != stored.get(key))
            if differing:
                raise InputError(
                    f"{folder} holds parts of another embedding ({', '.join(differing)} differ);"
                    " choose another name for the file"
                )
            return
        folder.mkdir(exist_ok=True)
        if others := [path.name for path in folder.iterdir() if path.name != f"{_PLAN}.part"]:
            raise InputError(
                f"{folder} already exists and holds {others[0]}; choose another name for the file"
            )
        _replace(path, lambda file: file.write(json.dumps(plan).encode()))

    def read(self, start: int) -> Mapping[str, np.ndarray] | None:
        """The part that begins with this record, its arrays read when they are taken; None if it is
        not there."""
        path = self._path(start)
        return np.load(path, allow_pickle=False) if path.exists() else None

    def write(self, start: int, part: Mapping[str, np.ndarray]) -> None:
        """Keeps a part, whole or not at all."""
        _replace(self._path(start), lambda file: np.savez(file, allow_pickle=False, **part))

    def all(self) -> list[Mapping[str, np.ndarray]]:
        """All parts in the order of their records."""
        paths = sorted(self._folder.glob("[0-9]*.npz"))
        return [np.load(path, allow_pickle=False) for path in paths]

    def remove(self) -> None:
        """Removes the parts, and the folder if nothing else is in it."""
        for path in (*self._folder.glob("[0-9]*.npz"), *self._folder.glob(f"{_PLAN}*")):
            path.unlink()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _path(self, start):
        return self._folder / f"{start:012d}.npz"


def _replace(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "wb") as file:
        write(file)
    os.replace(temporary, path)
