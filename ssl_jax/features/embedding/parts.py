"""Parts of an embedding: consecutive images as arrays, in a folder until all are there."""

import contextlib
import dataclasses
import functools
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ssl_jax.config import InputError, read_json
from ssl_jax.data import base, listing
from ssl_jax.features import store
from ssl_jax.features.extract import check_finite, on_all_devices
from ssl_jax.features.extraction import Work
from ssl_jax.features.telling import Telling
from ssl_jax.features.tokens import DENSE
from ssl_jax.methods.encoder import Encoder

_BYTES = 2**28  # of features in a part
_PLAN = "plan.json"


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which vectors of which images.

    tokens: {name of an array: kind of token, see `features.tokens`}. layers: see there. batch_size:
    images of a forward pass. dtype: of the vectors.
    """

    encoder: Encoder
    source: Telling
    tokens: Mapping[str, str]
    layers: int
    batch_size: int
    dtype: np.dtype

    @functools.cached_property
    def names(self) -> list[str]:
        """What people call the images; once, because some sets are read whole to know it."""
        return _names(self.source)

    def described(self) -> dict[str, Any]:
        """What the result depends on, as JSON."""
        return dict(
            network=self.encoder.digest,
            data=repr(self.source),
            names=zlib.crc32("\n".join(self.names).encode()),
            tokens=sorted(self.tokens),
            layers=self.layers,
            dtype=str(self.dtype),
            images_of_a_part=self.images_of_a_part(),
        )

    def images_of_a_part(self) -> int:
        """So many that a part is small beside memory, and no batch is cut in two."""
        shape = self.encoder.shape
        patches = (shape.image_size // shape.patch) ** 2
        vectors = sum(patches if kind == DENSE else 1 for kind in self.tokens.values())
        batches = _BYTES // (4 * vectors * shape.width * self.layers * self.batch_size)
        return self.batch_size * min(max(batches, 1), max(4096 // self.batch_size, 1))

    def compute(self, start: int, stop: int) -> dict[str, np.ndarray]:
        """The part of images start to stop: of n readable ones "index" [n], "names" [n], "sizes"
        [n, 2] (height and width as stored), "labels" [n] where there are any, each kind of vector
        [n, ...], patches as rows [sum of h * w, d] beside "patches_shapes" [n, 2]; "skipped", names
        of the others."""
        work = Work(
            on_all_devices(self.encoder),
            self.source,
            np.arange(start, stop),
            crop=0,
            multiple=self.encoder.shape.patch,
            allocate=store.allocate,
            masks=False,
        )
        rows, skipped = work.run(dict(self.tokens), self.layers, self.batch_size)
        index = rows["index"]
        stored = base.unresized(self.source)
        sizes = np.asarray([base.shape(stored, int(i)) for i in index], np.int32)
        part = dict(
            index=index,
            names=_text([self.names[int(i)] for i in index]),
            sizes=sizes.reshape(-1, 2),
            skipped=_text([listing.readable(name) for name in skipped]),
        )
        if "labels" in rows:
            part["labels"] = rows["labels"]
        for name in self.tokens:
            if name in rows:  # absent where no image of the part can be read
                check_finite(name, rows[name], index, self.source)
                part |= _flat(name, rows[name], self.dtype)
        return part


class Kept:
    """Parts in a folder, of one plan. Raises InputError where the folder holds those of another, or
    something else."""

    def __init__(self, folder: Path, plan: Mapping[str, Any]):
        self.folder = folder
        known = folder / _PLAN
        if known.exists():
            there = read_json(known)
            differing = sorted(key for key in plan if plan[key] != there.get(key))
            if differing:
                raise InputError(
                    f"{folder} holds parts of another embedding ({', '.join(differing)} differ);"
                    " choose another name for the file"
                )
        else:
            folder.mkdir(exist_ok=True)
            if others := [path.name for path in folder.iterdir() if path.name != f"{_PLAN}.part"]:
                raise InputError(
                    f"{folder} already exists and holds {others[0]}; choose another name for the"
                    " file"
                )
            _replace(known, lambda file: file.write(json.dumps(plan).encode()))

    def read(self, start: int) -> Mapping[str, np.ndarray] | None:
        """The part that begins with this image, its arrays read when they are asked for; None if it
        is not there."""
        path = self._path(start)
        return np.load(path, allow_pickle=False) if path.exists() else None

    def write(self, start: int, part: Mapping[str, np.ndarray]) -> None:
        """Keeps a part, whole or not at all."""
        _replace(self._path(start), lambda file: np.savez(file, allow_pickle=False, **part))

    def all(self) -> list[Mapping[str, np.ndarray]]:
        """All parts in the order of their images."""
        paths = sorted(self.folder.glob("[0-9]*.npz"))
        return [np.load(path, allow_pickle=False) for path in paths]

    def remove(self) -> None:
        """Removes the parts, and the folder if nothing else is in it."""
        for path in (*self.folder.glob("[0-9]*.npz"), *self.folder.glob(f"{_PLAN}*")):
            path.unlink()
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _path(self, start):
        return self.folder / f"{start:012d}.npz"


def _replace(path, write):
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "wb") as file:
        write(file)
    os.replace(temporary, path)


def _flat(name, values, dtype):
    """Vectors as arrays: of patches all rows, and the grid of each image."""
    if isinstance(values, store.Grids):
        flat = {name: values.rows, f"{name}_shapes": values.shapes}
    elif values.ndim == 4:
        shapes = np.tile(np.asarray(values.shape[1:3], np.int64), (len(values), 1))
        flat = {name: store.rows_of(values), f"{name}_shapes": shapes}
    else:
        flat = {name: values}
    return flat | {name: flat[name].astype(dtype)}


def _names(source) -> list[str]:
    """Of all records: where the source has relative paths, those."""
    names = base.unresized(source).list_names() or map(source.name, range(len(source)))
    # File names may be bytes that are no text.
    return [os.fsencode(name).decode(errors="backslashreplace") for name in names]


def _text(names) -> np.ndarray:
    return np.asarray(names, np.str_) if len(names) else np.zeros(0, "<U1")
