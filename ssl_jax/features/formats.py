"""An embedding as one file: .npz for NumPy, .parquet for tables (pandas, polars, DuckDB)."""

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssl_jax.config import InputError


class Vectors(NamedTuple):
    """An embedding.

    parts: arrays of consecutive images, see `embedding.Plan.compute`; some image can be read.
    names: of the arrays of vectors. about: where they come from, as JSON. class_names: () = none.
    """

    parts: Sequence[Mapping[str, np.ndarray]]
    names: tuple[str, ...]
    about: str
    class_names: Sequence[str]

    @property
    def read(self) -> list[Mapping[str, np.ndarray]]:
        """The parts with images that could be read."""
        return [part for part in self.parts if len(part["index"])]

    def small(self) -> dict[str, np.ndarray]:
        """The arrays of a few numbers an image."""
        first = self.read[0]
        names = ["index", "names", "sizes"] + (["labels"] if "labels" in first else [])
        small = {name: np.concatenate([part[name] for part in self.read]) for name in names}
        small["skipped"] = np.concatenate([part["skipped"] for part in self.parts])
        if self.class_names and "labels" in small:
            small["class_names"] = np.asarray(self.class_names, np.str_)
        small["about"] = np.asarray(self.about)
        for name, shapes in self._shapes().items():
            if (shapes != shapes[0]).any():
                small[f"{name}_shapes"] = shapes
        return small

    def large(self) -> dict[str, tuple[int, ...]]:
        """{name: shape} of the vectors. Patches have the shape [N, h, w, d] where all images have
        one grid, else [all patches, d] beside their grids."""
        large: dict[str, tuple[int, ...]] = {}
        for name in self.names:
            count = sum(part[name].shape[0] for part in self.read)
            large[name] = (count, *self.read[0][name].shape[1:])
        for name, shapes in self._shapes().items():
            if (shapes == shapes[0]).all():
                large[name] = (len(shapes), *map(int, shapes[0]), large[name][-1])
        return large

    def _shapes(self):
        """{name: grids [N, 2]} of the vectors of patches."""
        return {
            name: np.concatenate([part[f"{name}_shapes"] for part in self.read])
            for name in self.names
            if f"{name}_shapes" in self.read[0]
        }


def writer(path: Path) -> Callable[[Path, Vectors], None]:
    """The function (file, vectors) that writes the format of a name. Raises InputError for a name
    of no known format."""
    if path.suffix == ".npz":
        return _write_npz
    if path.suffix == ".parquet":
        return _write_parquet
    raise InputError(f'"{path.name}" is the name of the embedding; it must end in .npz or .parquet')


def joined(vectors: Vectors) -> dict[str, np.ndarray]:
    """All arrays in memory."""
    return vectors.small() | {
        name: np.concatenate([part[name] for part in vectors.read]).reshape(shape)
        for name, shape in vectors.large().items()
    }


def _write_npz(path: Path, vectors: Vectors) -> None:
    """Like numpy.savez, with vectors that need not fit into memory."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in vectors.small().items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
        for name, shape in vectors.large().items():
            descr = np.lib.format.dtype_to_descr(vectors.read[0][name].dtype)
            header = dict(descr=descr, fortran_order=False, shape=shape)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, header)
                for part in vectors.read:
                    file.write(np.ascontiguousarray(part[name]).tobytes())


def _write_parquet(path: Path, vectors: Vectors) -> None:
    """One row an image: name, height, width, label, its name, and a list for each kind of
    vector; patches row after row, beside the number of rows and columns."""
    import pyarrow as arrow  # takes a second
    from pyarrow import parquet

    small = vectors.small()
    notes = {"ssl_jax": vectors.about, "skipped": json.dumps(small["skipped"].tolist())}
    tables = (
        arrow.table(_columns(part, small.get("class_names"), vectors.names))
        for part in vectors.read
    )
    first = next(tables)
    schema = first.schema.with_metadata(notes)
    with parquet.ParquetWriter(path, schema) as file:
        file.write_table(first.cast(schema))
        for table in tables:
            file.write_table(table.cast(schema))


def _columns(part: Mapping, class_names: np.ndarray | None, kinds: Sequence[str]) -> dict[str, Any]:
    """The columns of one part."""
    import pyarrow as arrow

    columns = {
        "name": arrow.array(part["names"].tolist(), arrow.string()),
        "height": part["sizes"][:, 0],
        "width": part["sizes"][:, 1],
    }
    if "labels" in part:
        columns["label"] = part["labels"]
        if class_names is not None:
            names = np.append(class_names, "")[part["labels"]]  # the last one is that of -1
            columns["class"] = arrow.array(names.tolist(), arrow.string())
    for name in kinds:
        vectors = part[name]
        numbers = arrow.array(vectors.reshape(-1))
        for side in vectors.shape[:0:-1]:
            numbers = arrow.FixedSizeListArray.from_arrays(numbers, side)
        if f"{name}_shapes" in part:
            shapes = part[f"{name}_shapes"]
            ends = np.concatenate([[0], np.cumsum(shapes.prod(axis=1))])
            numbers = arrow.LargeListArray.from_arrays(arrow.array(ends), numbers)
            columns |= {f"{name}_rows": shapes[:, 0], f"{name}_columns": shapes[:, 1]}
        columns[name] = numbers
    return columns
