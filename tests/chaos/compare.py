"""Whether two run folders hold the same: every array, row of metrics and score."""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from ssl_jax.train import checkpoint, log
from ssl_jax.train.state import TrainState


class Differences(NamedTuple):
    """names: of what differs, or is in one of the folders alone."""

    arrays: int
    rows: int
    names: tuple[str, ...]


def differences(run: Path, whole: Path) -> Differences:
    """Of the newest checkpoints, bit for bit, and of the tables without the clock's columns."""
    one, two = _arrays(run), _arrays(whole)
    names = [n for n in sorted(one.keys() | two.keys()) if not _same(one.get(n), two.get(n))]
    count = 0
    for table in ("metrics", "evals"):
        rows, others = (_rows(folder / f"{table}.jsonl") for folder in (run, whole))
        count += len(others)
        if len(rows) != len(others):
            names.append(f"{table}: {len(rows)} rows of {len(others)}")
        names += [
            f"{table}, step {a['step']}" for a, b in zip(rows, others, strict=False) if a != b
        ]
    for name in ("results.json", "unreadable.txt"):
        contents = [_lines(folder / name) for folder in (run, whole)]
        if contents[0] != contents[1]:
            names.append(name)
    return Differences(len(two), count, tuple(names))


def _arrays(folder: Path) -> dict[str, np.ndarray]:
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def fields_of(saved, step):
        return saved.read(step, TrainState._fields, lambda shape: one), step

    fields, step = checkpoint.newest(folder, fields_of)
    leaves, _ = jax.tree_util.tree_flatten_with_path(fields)
    found = {jax.tree_util.keystr(path, simple=True, separator="/"): _bits(x) for path, x in leaves}
    return found | {"step of the checkpoint": np.array(step)}


def _bits(array):
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)


def _same(one, two):
    if one is None or two is None or (one.dtype, one.shape) != (two.dtype, two.shape):
        return False
    return one.tobytes() == two.tobytes()


def _rows(path):
    return [{k: v for k, v in r.items() if k not in log.TIMING} for r in log.read_rows(path)]


def _lines(path):
    return sorted(path.read_text().splitlines()) if path.exists() else None
