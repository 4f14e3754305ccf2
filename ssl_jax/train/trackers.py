"""Sends numbers, pictures, tables and the config of a run to TensorBoard, Weights & Biases and
trackio, each if the config enables it.

A resumed run continues its records in a tracker without repeating a step: TensorBoard drops events
after the checkpoint; the others are not sent rows that the killed process had already sent,
according to the tables in the run directory. A tracker that was disabled for a while, or is new,
gets the rows that it missed; another project is a new tracker. Trackers write in the background, so
a killed process may lose the last seconds.
"""

import hashlib
import importlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from ssl_jax import config as config_lib
from ssl_jax import extras
from ssl_jax.config import InputError, Unavailable, full_reason, key
from ssl_jax.runtime import distributed
from ssl_jax.train import log

_FLUSHED = 10  # seconds after which TensorBoard's events are written
_FILE = "trackers.json"
_PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "trackio": "trackio"}


def defaults() -> dict:
    """The keys of trackers in the section `log`."""
    return dict(
        tensorboard=key(
            False, "also write TensorBoard files (needs tensorboardX)", acts="writes files"
        ),
        wandb=key(
            "", 'Weights & Biases project for the metrics; "" = none', acts="connects to a server"
        ),
        trackio=key(
            "",
            "project in trackio, stored on this machine, that gets the metrics (needs trackio);"
            ' "" = none',
            acts="is written into",
        ),
        tracked_pictures=key(
            False, "send pictures to the trackers at every evaluation; False = only at the end"
        ),
    )


class Trackers:
    """The trackers of a run; process 0 writes.

    folder: the run directory, whose trackers.json holds the run's names in the trackers.
    start: step from which the run resumes. tables: {"metrics": log.Table, "evals": ...}, already
    without later rows.
    """

    def __init__(self, folder: Path, config: ConfigDict, start: int, tables: Mapping[str, Any]):
        self._writers: list[Any] = []
        if not distributed.is_first():
            return
        chosen = [name for name in _PACKAGES if config.log[name]]
        self._known = folder / _FILE
        self._names = names = _recorded(folder)
        had = {title: table.had for title, table in tables.items()}
        # {tracker: {table: the last row it was sent}} of those that miss rows since then.
        missing: dict = names.setdefault("missing", {})
        missing |= {x: had for x in _PACKAGES if x in names and x not in (*chosen, *missing)}
        for name in chosen:
            package, project = _package(name), config.log[name]
            new = name not in names or names.get(f"{name}_project", project) != project
            if new:
                names[name] = f"{folder.name}-{uuid.uuid4().hex[:8]}"
            names[f"{name}_project"] = project
            gap = missing.pop(name, None)
            gap = {} if new else gap
            sent = had if gap is None else gap
            if name == "tensorboard":
                writer: Any = _TensorBoard(package, folder / "tensorboard", start)
            else:
                writer = _Hosted(package, project, names[name], folder, config, sent)
            self._writers.append(writer)
            if new:
                writer.config(config)
            if gap is not None:
                for title, table in tables.items():
                    last = gap.get(title, {}).get("step", -1)
                    for row in log.read_rows(table.jsonl):
                        if row["step"] > last:
                            writer.numbers(title, row["step"], _numbers(row))
        if chosen or missing:
            log.write_json(self._known, names)

    def write(self, table: str, row: Mapping[str, Any]) -> None:
        """Sends a row of "metrics" or "evals"."""
        for writer in self._writers:
            writer.numbers(table, row["step"], _numbers(row))

    def pictures(self, step: int, paths: Sequence[Path]) -> None:
        """Sends the PNG files among `paths` under their stems."""
        for writer in self._writers:
            writer.pictures(step, {path.stem: path for path in paths if path.suffix == ".png"})

    def final(
        self, step: int, results: Mapping[str, Mapping[str, float]], paths: Sequence[Path]
    ) -> None:
        """Sends the final scores {row: {score: number}} as a table, and the pictures; once for the
        same scores."""
        text = json.dumps([step, results], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        if not self._writers or self._names.get("final") == digest:
            return
        self.pictures(step, paths)
        scores = list(dict.fromkeys(score for row in results.values() for score in row))
        rows = [[name, *(row.get(score) for score in scores)] for name, row in results.items()]
        for writer in self._writers:
            writer.table("comparison", step, ["features", *scores], rows)
        log.write_json(self._known, self._names | {"final": digest})

    def close(self) -> None:
        """Waits until everything is written."""
        for writer in self._writers:
            writer.close()
        self._writers = []


def check(config: ConfigDict, folder: Path) -> None:
    """Raises InputError if the package of an enabled tracker is not installed, or if trackers.json
    in the run directory is invalid."""
    _recorded(folder)
    for name in _PACKAGES:
        if config.log[name]:
            _package(name)


def _recorded(folder: Path) -> dict[str, Any]:
    """The contents of trackers.json: names of the run and its projects in the trackers, a digest of
    the final scores that were sent, and `missing`, see `Trackers`."""
    path, examples = folder / _FILE, dict.fromkeys(_PACKAGES, "")
    recorded = config_lib.read_json(path, examples) if path.exists() else {}
    recorded = {name: value for name, value in recorded.items() if value is not None}
    missing = recorded.get("missing", {})
    tables = missing.values() if isinstance(missing, dict) else [None]
    rows = [row for x in tables for row in (x.values() if isinstance(x, dict) else [None])]
    if not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: missing must hold the last rows that trackers were sent")
    return recorded


class _TensorBoard:
    def __init__(self, package, folder: Path, start: int):
        # TensorBoard drops earlier files' events from this step on.
        purged = start + 1 if start else 0
        # File names contain the time in seconds, and two processes may start within one.
        suffix = f".{start}"
        words: dict = dict(purge_step=purged, filename_suffix=suffix, flush_secs=_FLUSHED)
        self._writer = package.SummaryWriter(str(folder), **words)

    def config(self, config):
        text = config_lib.to_json(config)
        self._writer.add_text("config", f"```\n{text}\n```", 0)

    def numbers(self, table, step, row):
        for name, value in row.items():
            self._writer.add_scalar(name, value, step)

    def pictures(self, step, paths):
        for name, path in paths.items():
            pixels = np.asarray(Image.open(path).convert("RGB"))
            self._writer.add_image(f"pictures/{name}", pixels, step, dataformats="HWC")

    def table(self, name, step, columns, rows):
        lines = [columns, ["---"] * len(columns), *([_text(x) for x in row] for row in rows)]
        text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        self._writer.add_text(name, text, step)

    def close(self):
        self._writer.close()


class _Hosted:
    """Weights & Biases, or trackio, which offers the same functions."""

    def __init__(self, package, project, name, folder, config, sent):
        self._package, self._sent = package, dict(sent)
        words = dict(project=project, name=name, config=config.to_dict(), resume="allow")
        self._own_axis = package.__name__ == "wandb"
        if self._own_axis:  # an id may have fewer characters than a name
            words |= dict(id=re.sub(r"[/\\#?%:]", "-", name.lstrip()), dir=str(folder))
        try:
            self._run = package.init(**words)
        except Exception as error:  # a name that it refuses, no account, no connection
            why = full_reason(error)
            silent = re.search(r"timed? ?out|ConnectionError|connection (refused|reset)", why, re.I)
            raise (Unavailable if silent else InputError)(
                f"log.{package.__name__}={project!r}: {package.__name__} did not start: {why}; set"
                f' log.{package.__name__}="" to train without it'
            ) from error
        if self._own_axis:
            # The built-in step counter only grows, and would drop rows of an earlier step.
            self._run.define_metric("step")
            self._run.define_metric("*", step_metric="step")

    def config(self, config):
        del config  # passed to `init` already

    def numbers(self, table, step, row):
        earlier = self._sent.get(table, {})
        if step == earlier.get("step"):  # scores of evaluations that were added later
            row = {name: value for name, value in row.items() if name not in earlier}
        if row and step >= earlier.get("step", -1):
            self._log(step, row)
            same = earlier if step == earlier.get("step") else {}
            self._sent[table] = {**same, **row, "step": step}

    def pictures(self, step, paths):
        images = {f"pictures/{n}": self._package.Image(str(p)) for n, p in paths.items()}
        if images:
            self._log(step, images)

    def table(self, name, step, columns, rows):
        self._log(step, {name: self._package.Table(columns=columns, data=rows)})

    def _log(self, step, values):
        if self._own_axis:
            self._run.log({"step": step, **values})
        else:
            self._run.log(values, step=step)

    def close(self):
        self._run.finish()


def _numbers(row):
    return {name: value for name, value in row.items() if name != "step" and value is not None}


def _text(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str("" if value is None else value)


def _package(name: str):
    try:
        return importlib.import_module(_PACKAGES[name])
    except ImportError as error:
        raise InputError(
            f"log.{name} is set but {_PACKAGES[name]} is not installed; {extras.install('track')}"
        ) from error
