"""Reads a run directory for reports, without the method.

The directory may come from anybody, so everything the report uses is checked here.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssl_jax.config import InputError, local, read_json, reading
from ssl_jax.evals import registry

_LARGEST = 2**28  # bytes of a table
_LAST_STEP = 2**31  # steps are counted in 32 bits

# Examples of the types in config.json and environment.json that the report uses.
_EXAMPLES: dict[str, Any] = {
    "run": {},
    "run.total_steps": 0,
    "optim": {},
    "optim.batch_size": 0,
    "seed": 0,
    "evals": {},
    "expected": {},
    "versions": {},
    "devices": ("",),
    "command": ("",),
}


class RunFolder(NamedTuple):
    """The content of a run directory; fields whose files do not exist yet are empty.

    name: the directory's name, with as many parents as distinguish it from the other runs.
    config: the resolved config. environment: versions, machine, command.
    results: {row: {score: number}} of the final comparison, see `registry.ROWS`.
    metrics, scores: columns of metrics.csv and evals.csv, {} without rows.
    pictures: PNG and GIF files. failed: names of the pictures that could not be drawn.
    """

    name: str
    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    results: dict[str, dict[str, float]]
    metrics: dict[str, np.ndarray]
    scores: dict[str, np.ndarray]
    pictures: tuple[Path, ...]
    failed: tuple[str, ...]

    @property
    def step(self) -> int:
        """The last step in metrics.csv; 0 if there is none."""
        steps = self.metrics.get("step", np.zeros(0))
        steps = steps[np.isfinite(steps)]
        return int(steps[-1]) if len(steps) else 0

    @property
    def total_steps(self) -> int:
        """The planned number of steps; 0 if the config does not have it."""
        return int(self.config.get("run", {}).get("total_steps", 0))

    def headings(self) -> dict[str, tuple[str, str]]:
        """{score: (evaluation, heading)} of the main scores of the config's evaluations. The
        heading of an unknown type is its name."""
        result = {}
        for name, section in self.config.get("evals", {}).items():
            if not isinstance(section, Mapping) or "type" not in section:
                continue
            kind = str(section["type"])
            heading = registry.TYPES[kind].heading if kind in registry.TYPES else kind
            if heading:
                score = registry.score_name(name, kind, kind)
                result[score] = name, heading if name == kind else f"{name} {heading}"
        return result


def read(paths: Sequence[str | Path]) -> list[RunFolder]:
    """Reads the runs in these folders, in order.

    Raises:
      InputError: a folder does not exist, is not a run directory or is given twice, or a file in it
        is damaged.
    """
    folders = [local(path) for path in paths]
    for folder in folders:
        _check(folder)
    resolved = [folder.resolve() for folder in folders]
    for i, folder in enumerate(resolved):
        if folder in resolved[:i]:
            raise InputError(f"{folders[i]} is given twice; name each run once")
    names = distinct([folder.parts for folder in resolved])
    return [_read(name, folder) for name, folder in zip(names, folders)]


def distinct(parts: Sequence[Sequence[str]]) -> list[str]:
    """The last part of each path, with as many parents as distinguish it from the others:
    [("a", "x"), ("b", "x"), ("c",)] -> ["a/x", "b/x", "c"]."""
    count = [1] * len(parts)
    while True:
        names = ["/".join(part[-n:]) for part, n in zip(parts, count)]
        longer = [names.count(name) > 1 and n < len(p) for name, n, p in zip(names, count, parts)]
        if not any(longer):
            return names
        count = [n + more for n, more in zip(count, longer)]


def _check(folder: Path) -> None:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {what}; give a run directory (--workdir of train)")
    if (folder / "config.json").is_file():
        return
    above = next((p for p in folder.resolve().parents if (p / "config.json").is_file()), None)
    inside = sorted(path.parent.name for path in folder.glob("*/config.json"))
    hint = f"; did you mean {above}?" if above else ""
    if inside:
        hint = f"; it holds the runs {', '.join(inside[:6])}: name one of them"
    raise InputError(f"{folder} is not a run directory: it has no config.json{hint}")


def _read(name: str, folder: Path) -> RunFolder:
    pictures = folder / "pictures"
    results = _json(folder / "results.json", {})
    for row, scores in results.items():
        if not isinstance(scores, dict) or not all(map(_is_number, scores.values())):
            raise InputError(f'{folder / "results.json"}: "{row}" is not an object of numbers')
    return RunFolder(
        name=name,
        path=folder,
        config=_json(folder / "config.json", _EXAMPLES),
        environment=_json(folder / "environment.json", _EXAMPLES),
        results=results,
        metrics=_columns(folder / "metrics.csv"),
        scores=_columns(folder / "evals.csv"),
        pictures=tuple(
            path
            for path in sorted([*pictures.glob("*.png"), *pictures.glob("*.gif")])
            if _is_there(path, folder)
        ),
        failed=tuple(sorted(p.name.removesuffix(".failed.txt") for p in pictures.glob("*.txt"))),
    )


def _is_there(path: Path, folder: Path) -> bool:
    """Whether `path` is a regular file. Raises InputError for a link out of the folder, because the
    page would publish a file of this machine."""
    if path.is_file() and not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{path} links out of the run directory; replace it with a copy")
    return path.is_file()


def _json(path: Path, examples: Mapping[str, Any]) -> dict:
    """The object in a JSON file, see `read_json`, without null; {} if there is no file."""
    return _without_null(read_json(path, examples)) if _is_there(path, path.parent) else {}


def _without_null(value):
    if not isinstance(value, dict):
        return value
    return {name: _without_null(item) for name, item in value.items() if item is not None}


def _is_number(value) -> bool:
    """Whether `value` is a number that a float can represent."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)


def _columns(path: Path) -> dict[str, np.ndarray]:
    return read_metrics(path) if _is_there(path, path.parent) else {}


def read_metrics(path: Path) -> dict[str, np.ndarray]:
    """Columns of a metrics CSV as float64 arrays, with NaN for empty and non-numeric cells; {} if
    there is no file or no row. Raises InputError for other files."""
    try:
        text = reading.read_bytes(path, _LARGEST).decode() if path.exists() else ""
        lines = list(csv.DictReader(io.StringIO(text, newline="")))
    except (csv.Error, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} is not a table of metrics: {error}") from error
    if not lines:
        return {}
    if "step" not in lines[0]:
        raise InputError(f'{path} is not a table of metrics: it needs a column "step"')
    table = {n: np.array([_number(row[n]) for row in lines]) for n in lines[0] if n is not None}
    steps = table["step"][np.isfinite(table["step"])]
    if (np.abs(steps) > _LAST_STEP).any():
        raise InputError(f"{path} is not a table of metrics: a step is {np.abs(steps).max():g}")
    return table


def _number(text) -> float:
    try:
        return float(text)
    except (TypeError, ValueError):
        return float("nan")
