"""Ground truth of the revisited Oxford and Paris benchmark (Radenovic et al. 2018), read from its
pickle without running anything in it.
"""

import io
import json
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssl_jax.config import InputError, local, reason

_LISTS = ("easy", "hard", "junk")


class GroundTruth(NamedTuple):
    """N images, Q queries. Names are those of files without the extension."""

    images: tuple[str, ...]
    queries: tuple[str, ...]
    boxes: np.ndarray  # [Q, 4] float64 (left, top, right, bottom), the object in the query image
    # per query, rows of `images`: the object is seen clearly, under difficulties, or hardly
    easy: tuple[np.ndarray, ...]
    hard: tuple[np.ndarray, ...]
    junk: tuple[np.ndarray, ...]


def read(path: str | Path) -> GroundTruth:
    """The ground truth in a file `gnd_roxford5k.pkl` or `gnd_rparis6k.pkl`, or in a .json of the
    same content: {"imlist": [name], "qimlist": [name], "gnd": [{"bbx": [4 numbers], "easy": [row],
    "hard": [row], "junk": [row]}]}.

    Raises:
      InputError: no such file, or another content.
    """
    path = local(path)
    if not path.is_file():
        raise InputError(
            f"no file {path}; give the benchmark's gnd_roxford5k.pkl or gnd_rparis6k.pkl,"
            " or a .json of the same content"
        )
    data = path.read_bytes()
    try:
        content = json.loads(data) if path.suffix == ".json" else _plain(data)
        return _checked(content)
    # A broken pickle raises nearly anything.
    except Exception as error:
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


def _plain(data: bytes) -> Any:
    """What a pickle of builtins and NumPy arrays holds. Raises UnpicklingError for one that names
    any other class or function."""
    return _array(_Restricted(io.BytesIO(data), encoding="latin1").load())


def _array(value):
    """`value` with the arrays in it made."""
    if isinstance(value, dict):
        return {key: _array(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_array(entry) for entry in value]
    return value.made() if isinstance(value, _Array) else value


class _Dtype:
    """Stands for numpy.dtype: the name of a type of numbers and the order of its bytes."""

    def __init__(self, name, align=False, copy=True):
        self._name, self._order = str(name), "="

    def __setstate__(self, state):
        self._order = state[1]

    def made(self) -> np.dtype:
        dtype = np.dtype(self._name)
        if dtype.kind not in "biuf":
            raise pickle.UnpicklingError(f"an array of {self._name}")
        return dtype.newbyteorder(self._order if self._order in "<>" else "=")


class _Array:
    """Stands for numpy.ndarray, so that NumPy never sees a state that was not checked."""

    def __setstate__(self, state):
        _, self._shape, self._dtype, self._fortran, self._data = state

    def made(self) -> np.ndarray:
        data = self._data.encode("latin1") if isinstance(self._data, str) else self._data
        values = np.frombuffer(data, self._dtype.made())
        return values.reshape(self._shape, order="F" if self._fortran else "C")


def _reconstructed(kind, shape, typecode):
    return _Array()


def _scalar(dtype, data):
    data = data.encode("latin1") if isinstance(data, str) else data
    return np.frombuffer(data, dtype.made(), count=1)[0].item()


def _encoded(text, encoding):
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding}")
    return text.encode("latin1")


def _nothing():
    """How older pickles write the data of an empty array: bytes(), without arguments."""
    return b""


_ADMITTED: dict[tuple[str, str], Any] = {
    ("_codecs", "encode"): _encoded,
    ("__builtin__", "bytes"): _nothing,
}
for _core in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _ADMITTED[_core, "_reconstruct"] = _reconstructed
    _ADMITTED[_core, "scalar"] = _scalar
_ADMITTED["numpy", "ndarray"] = _Array
_ADMITTED["numpy", "dtype"] = _Dtype


class _Restricted(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) not in _ADMITTED:
            raise pickle.UnpicklingError(f"the pickle asks for {module}.{name}")
        return _ADMITTED[module, name]
