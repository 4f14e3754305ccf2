"""Arrays of features, in memory or in files, of images of one size or of many."""

import contextlib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ssl_jax.config import InputError, json_object, reading
from ssl_jax.runtime import lock

_SHAPES = "_shapes"
_META = "meta.json"
_EXAMPLES: dict[str, Any] = {"key": {}, "arrays": {}, "notes": {}}  # types in _META
IN_MEMORY = 2**31  # bytes; larger arrays are files
_TEMPORARY = re.compile(r"\.[0-9a-f]+_\w{8}")  # name of a temporary folder of `Entry.new`
_UNFINISHED = 600.0  # seconds without a heartbeat, several times as many as a lock allows


class Grids(Sequence):
    """Arrays [h, w, ...] of N images of different sizes, concatenated.

    rows: [sum of h * w, ...], image by image. shapes: [N, 2] int64, (h, w).
    """

    def __init__(self, rows: np.ndarray, shapes: np.ndarray):
        self.rows, self.shapes = rows, shapes
        self._ends = np.cumsum(shapes.prod(axis=1))

    @classmethod
    def of(cls, grids: "np.ndarray | Grids") -> "Grids":
        """Grids of an array [N, h, w, ...], without a copy; Grids are returned unchanged."""
        if isinstance(grids, Grids):
            return grids
        shapes = np.tile(np.asarray(grids.shape[1:3], np.int64), (len(grids), 1))
        return cls(grids.reshape(-1, *grids.shape[3:]), shapes)

    def __len__(self):
        return len(self.shapes)

    def __getitem__(self, i):
        if not -len(self) <= i < len(self):
            raise IndexError(f"image {i} of {len(self)}")
        end = self._ends[i]
        part = self.rows[end - self.shapes[i].prod() : end]
        return part.reshape(*self.shapes[i], *self.rows.shape[1:])


def flat(arrays: Mapping[str, "np.ndarray | Grids"]) -> dict[str, np.ndarray]:
    """Replaces Grids by two arrays: their rows under NAME, their shapes under NAME_shapes."""
    result: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        if isinstance(array, Grids):
            result |= {name: array.rows, f"{name}{_SHAPES}": array.shapes}
        else:
            result[name] = array
    return result


def folded(arrays: Mapping[str, np.ndarray]) -> "dict[str, np.ndarray | Grids]":
    """The inverse of `flat`."""
    result: dict[str, np.ndarray | Grids] = {}
    for name, array in arrays.items():
        if not name.endswith(_SHAPES):
            shapes = arrays.get(f"{name}{_SHAPES}")
            result[name] = array if shapes is None else Grids(array, np.asarray(shapes))
    return result


class Table:
    """Arrays of N images, whose rows are filled in any order and may stay empty.

    sizes: [N, 2], height and width of the images, in pixels. folder: see `allocate`.
    """

    def __init__(self, sizes: np.ndarray, folder: Path | None = None):
        self._sizes, self._folder = sizes, folder
        self._arrays: dict[str, np.ndarray | Grids] = {}

    def put(self, name: str, rows: Sequence[int], values: np.ndarray, side: int = 0) -> None:
        """Writes values [n, ...] to n rows of the array `name`, which the first call allocates.

        side: side of the square that one value of [n, h, w, ...] covers, in pixels, where h and w
          depend on the image's size; 0 = they do not.
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
            shape = len(self._sizes), *values.shape[1:]
            return allocate(name, shape, values.dtype, self._folder)
        shapes = self._sizes // side
        size = int(shapes.prod(axis=1).sum())
        rows = allocate(name, (size, *values.shape[3:]), values.dtype, self._folder)
        return Grids(rows, shapes)

    def arrays(self, filled: np.ndarray) -> "dict[str, np.ndarray | Grids]":
        """All arrays, with only the rows that are True in `filled` [N]."""
        return {name: _ordered(array, filled) for name, array in self._arrays.items()}


def _ordered(array, filled):
    if filled.all():
        return array
    if not isinstance(array, Grids):
        return _without_gaps(array, filled)
    of_row = np.repeat(filled, array.shapes.prod(axis=1))
    return Grids(_without_gaps(array.rows, of_row), array.shapes[filled])


def _without_gaps(array, filled):
    """The filled rows, moved together in place, because a copy may not fit in memory."""
    count = int(filled.sum())
    for new, old in enumerate(np.flatnonzero(filled)):
        if new != old:
            array[new] = array[old]
    return array[:count]


def allocate(
    name: str, shape: tuple[int, ...], dtype: DTypeLike, folder: Path | None = None
) -> np.ndarray:
    """An array in the file NAME.npy of `folder`; without a folder in memory, or above IN_MEMORY in
    a temporary file. Raises InputError if the disk is too full."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if folder is None and size <= IN_MEMORY:
        return np.empty(shape, dtype)
    place = folder or tempfile.gettempdir()
    free = shutil.disk_usage(place).free
    if free < size:
        raise InputError(
            f"{name} features of {size / 2**30:.1f} GiB do not fit the {free / 2**30:.1f} GiB free"
            f" in {place}; make room there, or {'choose' if folder else 'set TMPDIR to'} another"
            " folder"
        )
    if folder:
        return _file(folder / f"{name}.npy", shape, dtype)
    with tempfile.NamedTemporaryFile(prefix=f"ssl_jax_{name}_", suffix=".npy") as file:
        # The file is unlinked at the end of the block; its space is freed with the array, however
        # the process ends.
        return _file(file.name, shape, dtype)


def _file(path, shape, dtype):
    return np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(dtype), shape=shape)


class Entry:
    """Arrays and notes in a folder, one .npy file per array; they are written atomically.

    path: the folder. key: everything the arrays depend on, as JSON values.
    """

    def __init__(self, path: Path, key: Mapping[str, Any]):
        self.path, self._key = path, json.loads(json.dumps(key, sort_keys=True))

    def read(self) -> "tuple[dict[str, np.ndarray | Grids], dict] | None":
        """(memory-mapped arrays by name, notes), or None if the entry does not exist.

        Raises InputError for a damaged entry, or one with another key, and OSError if the disk
        fails.
        """
        meta = self._meta()
        if meta is None:
            return None
        if differing := sorted(n for n, x in self._key.items() if x != meta["key"].get(n)):
            raise InputError(
                f"{self.path} holds other features ({', '.join(differing)} differ); choose another"
                " name"
            )
        arrays = {}
        for name, (shape, dtype) in meta["arrays"].items():
            file = f"{name}.npy"
            try:
                array = np.load(self.path / file, mmap_mode="r", allow_pickle=False)
            except (FileNotFoundError, EOFError, ValueError) as error:
                raise self._damaged(file) from error
            if [list(array.shape), str(array.dtype)] != [shape, dtype]:
                raise self._damaged(file)
            arrays[name] = array
        return folded(arrays), meta["notes"]

    def _meta(self):
        """The checked content of the meta file; None without one. Refuses array names that are
        paths, as others may have written the file."""
        try:
            text = reading.read_bytes(self.path / _META)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            meta = json_object(text, _META, _EXAMPLES)
            arrays = meta["arrays"]
            sound = all(
                name.isidentifier() and isinstance(entry, list) and len(entry) == 2
                for name, entry in arrays.items()
            )
        except (InputError, KeyError) as error:
            raise self._damaged(_META) from error
        if not sound or not {"key", "notes"} <= meta.keys():
            raise self._damaged(_META)
        return meta

    def _damaged(self, file):
        return InputError(
            f"{self.path / file} is damaged; remove {self.path}, or choose another folder"
        )

    @contextlib.contextmanager
    def new(self) -> Iterator[Path]:
        """A temporary folder for the files of a new entry, see `allocate`; it is removed at the end
        of the block unless `finish` was called. Removes such folders of killed processes."""
        with contextlib.suppress(FileExistsError):
            self.path.parent.mkdir(parents=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{self.path.name}_", dir=self.path.parent, ignore_cleanup_errors=True
        ) as folder:
            place = Path(folder)
            of_this_process = lock.Lock(place).take()
            try:
                self._remove_unfinished(place)
                yield place
            finally:
                of_this_process.release()

    def _remove_unfinished(self, new: Path) -> None:
        """Removes temporary folders, of all entries next to this one, whose locks have no process.
        It looks only at locks without a recent heartbeat, because no others can be told at once.
        new: a folder that was just made, from whose date the disk's time is read."""
        recent = new.stat().st_mtime - _UNFINISHED
        for file in self.path.parent.glob(f".*_*/{lock.FILE}"):
            folder = file.parent
            with contextlib.suppress(OSError, InputError):  # InputError: it has a process
                old = _TEMPORARY.fullmatch(folder.name) and file.stat().st_mtime < recent
                if old and not lock.is_held(file):
                    of_the_dead = lock.Lock(folder, lambda line: None).take()
                    for other in (*folder.glob("*.npy"), folder / _META):
                        other.unlink(missing_ok=True)
                    of_the_dead.release()
                    folder.rmdir()

    def finish(
        self, folder: Path, arrays: Mapping[str, "np.ndarray | Grids"], **notes: Any
    ) -> None:
        """Makes the folder the entry: writes the arrays that have no file there, and the notes."""
        described = {}
        for name, array in flat(arrays).items():
            described[name] = [list(array.shape), str(array.dtype)]
            path = folder / f"{name}.npy"
            if isinstance(array, np.memmap) and path.exists():
                existing = np.load(path, mmap_mode="r")
                if [list(existing.shape), str(existing.dtype)] == described[name]:
                    continue  # the array is this file
            other = folder / f"{name}.new.npy"
            np.save(other, array, allow_pickle=False)
            other.replace(path)
        meta = {"key": self._key, "arrays": described, "notes": notes}
        (folder / _META).write_text(json.dumps(meta, indent=1))
        (folder / lock.FILE).unlink(missing_ok=True)  # a finished entry needs none
        try:
            folder.rename(self.path)
        except OSError:
            # Two evaluations may write the same entry at once; the first one is kept.
            if not (self.path / _META).exists():
                raise

    def remove(self) -> None:
        """Removes the files of the entry, and its folder if it is empty then."""
        meta = self._meta() or {"arrays": {}}
        for file in (*(f"{name}.npy" for name in meta["arrays"]), _META):
            (self.path / file).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()
