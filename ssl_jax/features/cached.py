"""Extracted features in a folder from which later evaluations read them."""

import contextlib
import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ssl_jax.config import InputError, local
from ssl_jax.data.decode import Unreadable
from ssl_jax.features import store

_META = "meta.json"


class Cache:
    """Extracted features in a folder: one subfolder for each key, a .npy file for each array.

    key: what the features depend on, as JSON; its hash names the subfolder.
    """

    def __init__(self, root: str | Path, key: Mapping[str, Any]):
        self._key = json.loads(json.dumps(key, sort_keys=True))
        text = json.dumps(self._key, sort_keys=True)
        self.path = local(root) / hashlib.sha256(text.encode()).hexdigest()[:20]

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
        size, free = store.bytes_of(shape, dtype), shutil.disk_usage(self._folder).free
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


def fingerprint(source: Any, index: Sequence[int] | np.ndarray) -> dict[str, str]:
    """What tells the images of a source from others of the same names: a hash of three of them."""
    chosen = sorted({int(index[0]), int(index[len(index) // 2]), int(index[-1])})
    return {
        str(i): hashlib.sha256(np.ascontiguousarray(source[i]["image"]).tobytes()).hexdigest()
        for i in chosen
    }


def check_images(kept: Cache, known: Mapping[str, str], source: Any) -> None:
    """Refuses an entry whose images, by their `fingerprint`, are not those of the source. Raises
    InputError."""
    for i, digest in known.items():
        try:
            now = fingerprint(source, [int(i)])[i]
        except Unreadable:
            now = None
        if now != digest:
            raise InputError(
                f"evals.cache: {kept.path} holds features of other images ({source.name(int(i))}"
                ' has changed); choose another folder for evals.cache, or ""'
            )
