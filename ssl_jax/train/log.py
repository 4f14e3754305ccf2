"""Logs of a run: metrics as CSV and JSONL, the progress line, the environment."""

import csv
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ssl_jax.config import InputError, free_on_resume, key
from ssl_jax.data.lookup import listed
from ssl_jax.runtime import distributed, memory, progress, writing

# Columns that depend on the clock; bit-exact comparisons exclude them.
TIMING = ("images_per_second", "data_wait", "mfu", "memory_mib", "seconds")

# Dense bf16 peak FLOP/s per device, from the makers' data sheets; other devices show no MFU.
_PEAK = {
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
}


def defaults() -> dict:
    """The section `log` of the config."""
    return free_on_resume(
        dict(
            every_steps=key(10, "steps between two rows of metrics", "steps", above=0),
            every_seconds=key(
                60.0,
                "longest time between two progress lines; 0 = a line for each row of metrics only",
                "seconds",
                least=0,
            ),
            silent_seconds=key(
                600.0,
                "time without progress after which a process reports the place where it hangs;"
                " 0 = never",
                "seconds",
                least=0,
            ),
        )
    )


class Table:
    """Rows of scalars, stored both in NAME.jsonl and in NAME.csv.

    On resume, rows after the restored step are removed, so that a killed run ends with the same
    rows as an uninterrupted one. Process 0 writes.

    had: the last row in the files before that removal, {} = none. newest: the last step now, -1 =
    none.
    """

    def __init__(self, folder: Path, name: str, *, restored_step: int | None):
        self.jsonl, self.csv = folder / f"{name}.jsonl", folder / f"{name}.csv"
        self.had: dict = {}
        self.newest = -1
        if not distributed.is_first():
            return
        rows = read_rows(self.jsonl)
        self.had = rows[-1] if rows else {}
        self._keep([] if restored_step is None else [r for r in rows if r["step"] <= restored_step])

    def _keep(self, rows, next_row=()):
        self._columns = list(dict.fromkeys(name for row in (*rows, next_row) for name in row))
        self.newest = rows[-1]["step"] if rows else -1
        content = "".join(json.dumps(row) + "\n" for row in rows)
        writing.replace({self.jsonl: content.encode(), self.csv: b""})
        for row in rows:
            self._append_csv(row)

    def write(self, row: dict) -> None:
        """Appends a row, or replaces those from its step on. A key that no earlier row has becomes
        another column of the CSV, which is then written again."""
        if not distributed.is_first():
            return
        self.jsonl.parent.mkdir(parents=True, exist_ok=True)  # a user may have deleted it
        if row["step"] <= self.newest or (self._columns and not row.keys() <= set(self._columns)):
            earlier = [r for r in read_rows(self.jsonl) if r["step"] < row["step"]]
            self._keep(earlier, row)
        self.newest = row["step"]
        with open(self.jsonl, "a") as f:
            f.write(json.dumps(row) + "\n")
        self._append_csv(row)

    def _append_csv(self, row):
        first = not (self.csv.exists() and self.csv.stat().st_size)
        self._columns = self._columns or list(row)
        with open(self.csv, "a", newline="") as f:
            writer = csv.DictWriter(f, self._columns)
            if first:
                writer.writeheader()
            writer.writerow(row)


def read_rows(path: Path) -> list[dict]:
    """Rows of a JSONL file, [] without a file; a line truncated by a kill is dropped."""
    rows = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
    return rows


def scalars(metrics: dict) -> dict[str, float]:
    """Converts device scalars to Python numbers: booleans and integers to int, others to float."""
    host = jax.device_get(metrics)
    return {
        k: int(v) if np.asarray(v).dtype.kind in "biu" else float(v)
        for k, v in sorted(host.items())
    }


def progress_line(row: dict, total_steps: int, eta: str) -> str:
    """One line for the console: position, time left, loss, learning rate, speed, data wait, MFU,
    memory.
    """
    parts = [
        f"step {row['step']:>6}/{total_steps}",
        f"{100 * row['step'] / total_steps:3.0f}%",
        f"eta {eta}",
        f"loss {row['loss']:.4f}",
        f"lr {row['lr']:.2e}",
        f"{progress.speed(row['images_per_second'])} img/s",
        f"data-wait {100 * row['data_wait']:.1f}%",
    ]
    if row.get("mfu") is not None:
        parts.append(f"mfu {100 * row['mfu']:.1f}%")
    parts.append(f"mem {row['memory_mib']:.0f} MiB")
    for name in ("nonfinite", "replaced"):
        if row.get(name):
            parts.append(f"{name} {row[name]}")
    return "  ".join(parts)


def clock(seconds: float) -> str:
    minutes, seconds = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def peak_flops(devices: Sequence[jax.Device] | np.ndarray) -> float | None:
    """Summed bf16 peak of the devices in FLOP/s, or None if it is not known."""
    kind = devices[0].device_kind
    peak = next((p for name, p in _PEAK.items() if name in kind), None)
    return None if peak is None else peak * len(devices)


def memory_mib() -> float:
    """Peak memory in MiB of the first accelerator, or of this process on a CPU."""
    stats = jax.local_devices()[0].memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"] / 2**20
    return memory.peak() / 2**20


def versions() -> dict[str, str | None]:
    """{package: installed version, None if it is not installed as a package}."""
    result: dict[str, str | None] = {}
    for name in (
        "ssl-jax",
        "jax",
        "jaxlib",
        "flax",
        "optax",
        "orbax-checkpoint",
        "grain",
        "numpy",
        "ml_collections",
        "pillow",
        "opencv-python-headless",
        "scipy",
        "tensorflow-datasets",
    ):
        try:
            result[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            result[name] = None
    return result


def code() -> str:
    """A digest of the package's sources; two commits of one version may differ in it."""
    folder, digest = Path(__file__).parent.parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def environment() -> dict:
    """Versions, devices, git revision and command, for reproducing the run. Slow: it calls git."""
    return {
        "python": platform.python_version(),
        "machine": platform.platform(),
        "processor_count": os.cpu_count(),
        "devices": [f"{d.platform} {d.device_kind}" for d in jax.devices()],
        "process_count": jax.process_count(),
        "versions": versions(),
        "git": git_revision(),
        "command": sys.argv,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
    }


def note_session(folder: Path, step: int) -> dict | None:
    """Records the environment of a start that trains from `step` on, as environment.json and as a
    row of sessions.jsonl. Returns the row before it, None for the first."""
    path, now = folder / "sessions.jsonl", environment()
    earlier = [row for row in read_rows(path) if row["step"] <= step]
    write_json(folder / "environment.json", now)
    rows = [*earlier, {"step": step, "code": code(), **now}]
    writing.replace({path: "".join(json.dumps(row) + "\n" for row in rows).encode()})
    return earlier[-1] if earlier else None


def git_revision() -> str | None:
    """The commit that is checked out, with "-dirty" after changes; None without one, or git."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        dirty = subprocess.run(
            [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("-dirty" if dirty else "")


# Files in a run directory, the config first.
_FILES = (
    *("config.json", "environment.json", "sessions.jsonl", "unreadable.txt", "pictures"),
    *("metrics.csv", "metrics.jsonl", "evals.csv", "evals.jsonl", "results.json", "results.txt"),
)


def check_new(folder: Path) -> None:
    """Raises InputError if a folder without checkpoints holds files of another origin that a run
    would overwrite."""
    existing = [name for name in _FILES if (folder / name).exists()]
    try:
        is_run = {"method", "run"} <= json.loads((folder / _FILES[0]).read_text()).keys()
    except (OSError, ValueError, AttributeError):
        is_run = False
    if existing and not is_run:
        raise InputError(
            f"--workdir={folder} holds {listed(existing)} that no run wrote; choose another folder"
        )


def write_json(path: Path, value: Any) -> None:
    """Writes JSON atomically."""
    writing.replace({path: f"{json.dumps(value, indent=2, sort_keys=True)}\n".encode()})
