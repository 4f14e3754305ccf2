"""An embedding as one file: .npz for NumPy, .parquet for tables (pandas, polars, DuckDB)."""

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.features.embedding.parts import Plan

Parts = Sequence[Mapping[str, np.ndarray]]


def writer(path: Path) -> Callable[[Path, Parts, Plan], None]:
    """The function (file, parts, plan) that writes the format of a name. Raises InputError for a
    name of no known format."""
    if path.suffix == ".npz":
        return _write_npz
    if path.suffix == ".parquet":
        return _write_parquet
    raise InputError(f'"{path.name}" is the name of the embedding; it must end in .npz or .parquet')


def joined(parts: Parts, plan: Plan) -> dict[str, np.ndarray]:
    """The arrays of all parts in memory."""
    small, large = _described(parts, plan)
    return small | {
        name: np.concatenate([part[name] for part in parts if name in part]).reshape(shape)
        for name, shape in large.items()
    }


def _described(parts, plan) -> tuple[dict[str, np.ndarray], dict[str, tuple[int, ...]]]:
    """(arrays of a few numbers an image, {name: shape} of the vectors). Patches have the shape
    [N, h, w, d] where all images have one grid, else [all patches, d] beside their grids."""
    read = [part for part in parts if len(part["index"])]
    if not read:
        raise InputError(f"no readable image in {plan.source}")
    names = ["index", "names", "sizes"] + (["labels"] if "labels" in read[0] else [])
    small = {name: np.concatenate([part[name] for part in read]) for name in names}
    small["skipped"] = np.concatenate([part["skipped"] for part in parts])
    class_names = getattr(plan.source, "class_names", None)
    if class_names and "labels" in small:
        small["class_names"] = np.asarray(class_names, np.str_)
    small["about"] = np.asarray(json.dumps(_about(plan)))
    large = {}
    for name in plan.tokens:
        count = sum(part[name].shape[0] for part in read)
        large[name] = (count, *read[0][name].shape[1:])
        if f"{name}_shapes" in read[0]:
            shapes = np.concatenate([part[f"{name}_shapes"] for part in read])
            if (shapes == shapes[0]).all():
                large[name] = (len(shapes), *map(int, shapes[0]), large[name][-1])
            else:
                small[f"{name}_shapes"] = shapes
    return small, large


def _about(plan) -> dict[str, Any]:
    """Where the vectors come from."""
    return dict(
        network=repr(plan.encoder),
        digest=plan.encoder.digest,
        data=repr(plan.source),
        tokens=sorted(plan.tokens),
        layers=plan.layers,
    )


def _write_npz(path: Path, parts: Parts, plan: Plan) -> None:
    """Like numpy.savez, with vectors that need not fit into memory."""
    small, large = _described(parts, plan)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, array in small.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
        for name, shape in large.items():
            descr = np.lib.format.dtype_to_descr(plan.dtype)
            header = dict(descr=descr, fortran_order=False, shape=shape)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array_header_1_0(file, header)
                for part in parts:
                    if name in part:
                        file.write(np.ascontiguousarray(part[name]).tobytes())


def _write_parquet(path: Path, parts: Parts, plan: Plan) -> None:
    """One row an image: name, height, width, label, its name, and a list for each kind of
    vector; patches row after row, beside the number of rows and columns."""
    import pyarrow as arrow  # takes a second
    from pyarrow import parquet

    small, _ = _described(parts, plan)
    notes = {"ssl_jax": str(small["about"]), "skipped": json.dumps(small["skipped"].tolist())}
    written = None
    try:
        for part in parts:
            if not len(part["index"]):
                continue
            table = arrow.table(_columns(part, small.get("class_names"), plan))
            if written is None:
                schema = table.schema.with_metadata(notes)
                written = parquet.ParquetWriter(path, schema)
            written.write_table(table.cast(schema))
    finally:
        if written is not None:
            written.close()


def _columns(part, class_names, plan) -> dict:
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
    for name in plan.tokens:
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
