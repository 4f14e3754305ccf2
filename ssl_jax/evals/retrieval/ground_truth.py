"""Ground truth of the revisited Oxford and Paris benchmark (Radenovic et al. 2018)."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ssl_jax.config import InputError, local, reason

_LISTS = ("easy", "hard", "junk")


class GroundTruth(NamedTuple):
    """N images and Q queries, named by their files without the extension."""

    images: tuple[str, ...]
    queries: tuple[str, ...]
    boxes: np.ndarray  # [Q, 4] float64 (left, top, right, bottom), the object in the query image
    # rows of `images` for each query, where the object is clearly, partly or barely visible
    easy: tuple[np.ndarray, ...]
    hard: tuple[np.ndarray, ...]
    junk: tuple[np.ndarray, ...]


def read(path: str | Path, folder: str | Path = "") -> GroundTruth:
    """Reads a ground truth from a JSON file, at `path` or relative to `folder`, with the content of
    the benchmark's gnd_roxford5k.pkl or gnd_rparis6k.pkl: {"imlist": [name], "qimlist": [name],
    "gnd": [{"bbx": [4 numbers], "easy": [row], "hard": [row], "junk": [row]}]}.

    Raises:
      InputError: the file does not exist, or has other content.
    """
    path = local(path)
    path = path if path.is_file() else local(folder) / path
    if path.suffix == ".pkl":
        raise InputError(
            f"{path} is a pickle, which can run anything when it is read; if you trust it, make a"
            f" .json of it in a checkout: python -m launch.revisited_json {path}"
        )
    if not path.is_file():
        raise InputError(
            f"no file {path}; give the benchmark's gnd_roxford5k or gnd_rparis6k as JSON, which"
            " launch/revisited_json.py makes of its .pkl"
        )
    try:
        return _checked(json.loads(path.read_bytes()))
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is not a ground truth of the revisited Oxford or Paris benchmark:"
            f" {reason(error)}"
        ) from error


def _checked(content) -> GroundTruth:
    images, queries = (tuple(map(str, content[name])) for name in ("imlist", "qimlist"))
    entries = content["gnd"]
    if len(entries) != len(queries):
        raise ValueError(f"{len(queries)} queries but {len(entries)} entries")
    rows = {name: tuple(_rows(entry[name], len(images)) for entry in entries) for name in _LISTS}
    boxes = np.array([np.asarray(entry["bbx"], np.float64).reshape(4) for entry in entries])
    return GroundTruth(images, queries, boxes.reshape(-1, 4), **rows)


def _rows(values, count):
    rows = np.asarray(values).reshape(-1)
    rows = rows.astype(np.int64) if len(rows) else np.empty(0, np.int64)
    if len(rows) and not 0 <= rows.min() <= rows.max() < count:
        raise ValueError(f"rows {rows.min()}..{rows.max()} of {count} images")
    return rows
