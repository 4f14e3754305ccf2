"""Writes an embedding to one file: .npz for NumPy, .parquet for tables (pandas, polars, DuckDB)."""

import itertools
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssl_jax.config import InputError


class Vectors(NamedTuple):
    """An embedding."""

    # {name: array} of consecutive images, see `embedding.Plan.compute`; iterated several times
    parts: Iterable[Mapping[str, np.ndarray]]
    names: Sequence[str]  # of the arrays of vectors
    labelled: bool  # whether an image has a label
    others: Mapping[str, np.ndarray]  # further arrays, each for all parts

    def readable(self) -> Iterator[Mapping[str, np.ndarray]]:
        """The parts with a readable image."""
        return (part for part in self.parts if len(part["index"]))

    def described(self) -> tuple[dict[str, np.ndarray], dict[str, tuple[int, ...]]]:
        """(small arrays by name, shapes of the vectors by name). Patches have the shape
        [N, h, w, d] if all images have the same grid, else [all patches, d], with their grids among
        the small arrays."""
        names = ["index", "names", "sizes", *(["labels"] if self.labelled else [])]
        kinds: dict[str, list] = {}
        columns: dict[str, list] = {}
        for part in self.readable():
            for name in (*names, *(f"{name}_shapes" for name in self.names)):
                if name in part:  # copied, so that the file can be closed
                    columns.setdefault(name, []).append(np.array(part[name]))
            for name in self.names:
                kinds.setdefault(name, []).append(part[name].shape)
        whole = {name: np.concatenate(arrays) for name, arrays in columns.items()}
        small = {name: whole[name] for name in names} | dict(self.others)
        large: dict[str, tuple[int, ...]] = {}
        for name, sizes in kinds.items():
            large[name] = (sum(count for count, *_ in sizes), *sizes[0][1:])
            shapes = whole.get(f"{name}_shapes")
            if shapes is not None and (shapes == shapes[0]).all():
                large[name] = (len(shapes), *map(int, shapes[0]), large[name][-1])
            elif shapes is not None:
                small[f"{name}_shapes"] = shapes
        return small, large

    def joined(self) -> dict[str, np.ndarray]:
        """All arrays in memory."""
        small, large = self.described()
        return small | {
            name: np.concatenate([part[name] for part in self.readable()]).reshape(shape)
            for name, shape in large.items()
        }


def writer(path: Path) -> Callable[[Path, Vectors], None]:
    """The function (path, vectors) that writes the format of the path's suffix. Raises InputError
    for an unknown suffix."""
    writers = {".npz": _write_npz, ".parquet": _write_parquet}
    if path.suffix not in writers:
        raise InputError(
            f'"{path.name}" is the name of the embedding; it must end in {" or ".join(writers)}'
        )
    return writers[path.suffix]


def _write_npz(path: Path, vectors: Vectors) -> None:
    """Like numpy.savez, with vectors that need not fit into memory."""
    small, large = vectors.described()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in small.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
        for name, shape in large.items():
            descr = np.lib.format.dtype_to_descr(next(vectors.readable())[name].dtype)
            header = dict(descr=descr, fortran_order=False, shape=shape)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, header)
                for part in vectors.readable():
                    file.write(np.ascontiguousarray(part[name]).tobytes())


def _write_parquet(path: Path, vectors: Vectors) -> None:
    """One row per image: name, height, width, label, class name, and a list for each kind of
    vector; patches row by row, with the number of rows and columns."""
    import pyarrow as arrow  # takes a second
    from pyarrow import parquet

    others = vectors.others
    notes = {"ssl_jax": str(others["about"]), "skipped": json.dumps(others["skipped"].tolist())}
    tables = (arrow.table(_columns(part, vectors)) for part in vectors.readable())
    first = next(tables)
    schema = first.schema.with_metadata(notes)
    with parquet.ParquetWriter(path, schema) as file:
        for table in itertools.chain((first,), tables):
            file.write_table(table.cast(schema))


def _columns(part: Mapping, vectors: Vectors) -> dict[str, Any]:
    import pyarrow as arrow

    columns = {
        "name": arrow.array(part["names"].tolist(), arrow.string()),
        "height": part["sizes"][:, 0],
        "width": part["sizes"][:, 1],
    }
    if vectors.labelled:
        columns["label"] = part["labels"]
        if (class_names := vectors.others.get("class_names")) is not None:
            names = np.append(class_names, "")[part["labels"]]  # label -1 takes the last one
            columns["class"] = arrow.array(names.tolist(), arrow.string())
    for name in vectors.names:
        rows = part[name]
        numbers = arrow.array(rows.reshape(-1))
        for side in rows.shape[:0:-1]:
            numbers = arrow.FixedSizeListArray.from_arrays(numbers, side)
        if f"{name}_shapes" in part:
            shapes = part[f"{name}_shapes"]
            ends = np.concatenate([[0], np.cumsum(shapes.prod(axis=1))])
            numbers = arrow.LargeListArray.from_arrays(arrow.array(ends), numbers)
            columns |= {f"{name}_rows": shapes[:, 0], f"{name}_columns": shapes[:, 1]}
        columns[name] = numbers
    return columns
