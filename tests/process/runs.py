"""Real runs of `ssl-jax train` in processes of their own: started, watched, signalled, waited for,
compared.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ssl_jax.train import checkpoint, log
from ssl_jax.train.state import TrainState
from tests import compiling

ROOT = Path(__file__).resolve().parent.parent.parent


class Run:
    """The processes of a run that is started or goes on, and the lines they print.

    config, options: as `ssl-jax train` takes them. own: {process: options for it alone}. program:
    what Python is to run. env: of the processes; by default they share the tests' compilation
    cache.
    """

    def __init__(
        self,
        config: str,
        workdir: Path,
        *options: str,
        processes: int = 1,
        own: Mapping[int, Sequence[str]] | None = None,
        program: Sequence[str] = ("-m", "ssl_jax"),
        env: Mapping[str, str] | None = None,
    ):
        self.workdir = workdir
        self.lines: list[str] = []
        self.outputs: list[list[str]] = [[] for _ in range(processes)]
        command = [sys.executable, *program, "train", f"--config={config}", f"--workdir={workdir}"]
        place = [f"--coordinator=localhost:{free_port()}", f"--num-processes={processes}"]
        pipe: Any = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        pipe |= dict(errors="replace", env=env or compiling.environment(1), cwd=ROOT)
        self.processes, self._readers = [], []
        for index, output in enumerate(self.outputs):
            mine = [*place, f"--process-id={index}"] if processes > 1 else []
            mine += (own or {}).get(index, ())
            process = subprocess.Popen([*command, *options, *mine], start_new_session=True, **pipe)
            reader = threading.Thread(target=self._read, args=(process, output), daemon=True)
            self.processes.append(process)
            self._readers.append(reader)
            reader.start()

    def _read(self, process, output):
        for line in process.stdout:
            self.lines.append(line.rstrip())
            output.append(line.rstrip())

    def text(self, index: int | None = None) -> str:
        return "\n".join(list(self.lines if index is None else self.outputs[index]))

    def says(self, pattern: str) -> Callable[[], bool]:
        """A condition: a line that fits was printed."""
        wanted = re.compile(pattern)
        return lambda: any(wanted.search(line) for line in list(self.lines))

    def listens(self) -> bool:
        """A condition: SIGTERM has a handler, where the system tells."""
        status = Path(f"/proc/{self.processes[0].pid}/status")
        found = re.search(r"SigCgt:\s*(\w+)", status.read_text()) if status.exists() else None
        return found is None or bool(int(found[1], 16) >> (signal.SIGTERM - 1) & 1)

    def saves(self) -> bool:
        """A condition: a checkpoint is half written. What a killed save left before is none."""
        folder = self.workdir / "checkpoints"
        names = os.listdir(folder) if folder.is_dir() else ()
        return any("tmp" in name for name in names) and self.says("img/s")()

    def has_rows(self, count: int) -> Callable[[], bool]:
        """A condition: the tables hold the metrics of so many steps."""
        return lambda: len(log.read_rows(self.workdir / "metrics.jsonl")) >= count

    def until(self, condition: Callable[[], bool], seconds: float = 600) -> bool:
        """Whether the condition held before a process ended or the time was over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if condition():
                return True
            if any(process.poll() is not None for process in self.processes):
                return False
            time.sleep(0.001)
        return False

    def signal(self, number: int, index: int | None = None) -> None:
        """To one process, or to all. SIGKILL takes the workers of its loader with it."""
        for process in self.processes if index is None else [self.processes[index]]:
            if process.poll() is None:
                if number == signal.SIGKILL:
                    os.killpg(process.pid, number)
                else:
                    process.send_signal(number)

    def workers(self) -> list[int]:
        """Process ids of the data workers of the first process."""
        found, first = [], self.processes[0].pid
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                group = os.getpgid(int(folder.name))
                if group == first and "spawn_main" in (folder / "cmdline").read_text():
                    found.append(int(folder.name))
        return found

    def ended(self, seconds: float = 600) -> tuple[int, ...] | None:
        """Exit codes of the processes; None if they hang: then they are killed."""
        deadline = time.monotonic() + seconds
        try:
            codes = tuple(p.wait(max(0, deadline - time.monotonic())) for p in self.processes)
        except subprocess.TimeoutExpired:
            codes = None
        self.signal(signal.SIGKILL)
        for process, reader in zip(self.processes, self._readers, strict=True):
            process.wait()
            reader.join(5)
        return codes


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


class Differences(NamedTuple):
    """names: of what differs, or is in one of the folders alone."""

    arrays: int
    rows: int
    names: tuple[str, ...]


def differences(run: Path, whole: Path) -> Differences:
    """Of two run folders: of their newest checkpoints, bit for bit, of their tables without the
    clock's columns, of their results."""
    one, two = _arrays(run), _arrays(whole)
    names = [n for n in sorted(one.keys() | two.keys()) if not _same(one.get(n), two.get(n))]
    count = 0
    for table in ("metrics", "evals"):
        mine, others = (rows(folder, table) for folder in (run, whole))
        count += len(others)
        if len(mine) != len(others):
            names.append(f"{table}: {len(mine)} rows of {len(others)}")
        pairs = zip(mine, others, strict=False)
        names += [f"{table}, step {a['step']}" for a, b in pairs if a != b]
    for name in ("results.json", "unreadable.txt"):
        if _lines(run / name) != _lines(whole / name):
            names.append(name)
    return Differences(len(two), count, tuple(names))


def rows(folder: Path, table: str = "metrics") -> list[dict]:
    """Without the clock's columns."""
    found = log.read_rows(folder / f"{table}.jsonl")
    return [{k: v for k, v in row.items() if k not in log.TIMING} for row in found]


def newest(folder: Path) -> int | None:
    """Step of the newest complete checkpoint."""
    saved = checkpoint.Checkpoints(folder / "checkpoints", create=False)
    try:
        return saved.latest()
    finally:
        saved.close()


def _arrays(folder):
    one = jax.sharding.SingleDeviceSharding(jax.devices()[0])

    def fields_of(saved, step):
        return saved.read(step, TrainState._fields, lambda shape: one), step

    fields, step = checkpoint.newest(folder, fields_of)
    leaves, _ = jax.tree_util.tree_flatten_with_path(fields)
    found = {jax.tree_util.keystr(path, simple=True, separator="/"): _bits(x) for path, x in leaves}
    return found | {"step of the checkpoint": np.array(step)}


def _bits(array):
    is_key = jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if is_key else array)


def _same(one, two):
    if one is None or two is None or (one.dtype, one.shape) != (two.dtype, two.shape):
        return False
    return one.tobytes() == two.tobytes()


def _lines(path):
    return sorted(path.read_text().splitlines()) if path.exists() else None
