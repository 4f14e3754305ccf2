"""Joins several processes into one run, checks that they agree, and gathers values from them."""

import contextlib
import hashlib
import json
import math
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ssl_jax.config import InputError, Unavailable, exit_code, reason, refusal
from ssl_jax.runtime import stop

# Seconds after which a lost process ends the others; a busy machine must not exceed them.
_HEARTBEAT = 30
_TOGETHER = 300  # seconds within which all processes must have connected
_LAST = 24 * 3600  # seconds that the others wait at the end, while process 0 draws
# Phrases in the errors of a collective whose peer is gone.
_LOST = ("Gloo", "Connection closed by peer", "Connection reset by peer", "heartbeat")
_SENT = 2**26  # bytes of features exchanged at a time


def connect(
    coordinator: str | None = None, num_processes: int | None = None, process_id: int | None = None
) -> None:
    """Joins the processes of a run. Must be called before any other JAX function.

    Args:
      coordinator: address:port of process 0. Give all three arguments, or none under SLURM,
        Open MPI, GKE and on TPU slices, where JAX detects them.

    Raises:
      InputError: only some arguments are given, or JAX detects no cluster.
      Unavailable: the cluster does not say who takes part, or nobody answers.
    """
    given = [x is not None for x in (coordinator, num_processes, process_id)]
    if any(given) and not all(given):
        raise InputError(
            "give --coordinator=ADDRESS:PORT, --num-processes=N and --process-id=I together, or"
            " --distributed alone under SLURM, Open MPI, GKE or on a TPU slice"
        )
    if coordinator is not None and not coordinator.rpartition(":")[2].isdecimal():
        raise InputError(f"--coordinator is {coordinator}; give ADDRESS:PORT of process 0")
    if coordinator is not None:
        _check_address(coordinator, process_id == 0)
    if num_processes is not None and process_id is not None and not 0 <= process_id < num_processes:
        raise InputError(f"--process-id is {process_id}; it must lie in [0, {num_processes})")
    # JAX's cluster detection would restrict each process to one GPU of its machine.
    method = "deactivate" if all(given) else None
    try:
        with _announced(coordinator, num_processes, process_id):
            jax.distributed.initialize(
                coordinator,
                num_processes,
                process_id,
                cluster_detection_method=method,
                initialization_timeout=2 * _TOGETHER,  # later than ours: JAX then aborts
                heartbeat_timeout_seconds=_HEARTBEAT,
                shutdown_timeout_seconds=_LAST,
            )
        stop.take_back()
    except RuntimeError as error:
        if "before any JAX" not in str(error):
            raise Unavailable(f"the processes cannot be connected: {reason(error)}") from error
        raise InputError(
            "JAX was used before the processes were connected; a module of --import and a config"
            " file must not compute with JAX when they are imported"
        ) from error
    except ValueError as error:
        if all(given):
            raise
        raise InputError(
            "--distributed finds no SLURM, Open MPI, GKE or TPU slice here; give"
            " --coordinator=ADDRESS:PORT --num-processes=N --process-id=I"
        ) from error


def _check_address(coordinator: str, is_local: bool) -> None:
    """Raises InputError for an unknown host name and for a port of this machine that is in use.
    JAX waits for minutes on the first and aborts on the second."""
    host, _, port = coordinator.rpartition(":")
    try:
        if not 0 < int(port) < 2**16:
            raise OSError("no such port")
        socket.getaddrinfo(host.strip("[]"), port)
        if is_local:
            socket.create_server(("", int(port))).close()
    except OSError as error:
        raise InputError(
            f"--coordinator={coordinator}: {error.strerror or error}; give the address of process 0"
            " and a free port on its machine"
        ) from error


@contextlib.contextmanager
def _announced(coordinator, num_processes, process_id) -> Iterator[None]:
    """Prints which processes are awaited, and ends this one with a message when none connects."""
    who = "this process" if coordinator is None else f"process {process_id} of {num_processes}"
    awaited = "process 0" if process_id else "the others"
    whom = f"{awaited}{f' at {coordinator}' if coordinator else ''}"
    print(f"{who} is waiting up to {_TOGETHER} s for {whom}", flush=True)

    def end():
        print(
            f"ssl-jax: {who}: no connection to {whom} within {_TOGETHER} s; start all processes"
            " with the same --coordinator, reachable from each",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)  # not the code of bad input: a late machine may come at the next start

    ending = threading.Timer(_TOGETHER, end)
    ending.daemon = True
    ending.start()
    try:
        yield
    finally:
        ending.cancel()


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Ends a failing process at once, so that the others notice, and synchronises all at the end.

    By default JAX makes a failed process wait for the others at exit, while they wait for it in
    the next collective.
    """
    if jax.process_count() == 1:
        yield
        return
    from jax.experimental import multihost_utils

    # Process 0 coordinates: if it ended before others that got the same signal, JAX would abort
    # them.
    wait = stop.leave_last() if is_first() else 0.0
    try:
        yield
    except stop.Interrupted:
        # Leave without JAX's shutdown, which would wait for processes that got no signal.
        sys.stdout.flush()
        time.sleep(wait)
        os._exit(stop.EXIT_PREEMPTED)
    except BaseException as error:
        where = f"process {jax.process_index()} of {jax.process_count()}"
        # A process lost during a save may surface as a checkpoint error.
        lost = any(word in str(error) for word in _LOST)
        line = "" if lost else refusal(error)
        if line:
            print(f"ssl-jax: {where}: {line}", file=sys.stderr)
        elif lost:
            first = str(error).strip().splitlines()[0]
            print(
                f"ssl-jax: {where}: another process is gone ({first[:200]}); start all processes"
                " again to resume from the newest checkpoint",
                file=sys.stderr,
            )
        else:
            traceback.print_exc()
            print(f"ssl-jax: {where} failed", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code(error) if line else 1)
    multihost_utils.sync_global_devices("end")


def is_first() -> bool:
    """Whether this is process 0, which writes the shared logs, tables and pictures."""
    return jax.process_index() == 0


def agree(facts: Mapping[str, object]) -> None:
    """Checks that all processes hold equal values. A collective: all processes must call it.

    Args:
      facts: {name: value}, such as config keys, versions and the length of the data.

    Raises:
      InputError: in every process, naming the values and the processes that differ.
    """
    if jax.process_count() == 1:
        return
    names = sorted(facts)
    # Names first: they may differ between two versions of the package.
    head = gather_array(_digest(names))
    rank = jax.process_index()
    if (head != head[0]).any():
        differing = np.flatnonzero((head != head[0]).any(axis=1)).tolist()
        raise InputError(
            f"processes {differing} and process 0 run different versions of the package or of the"
            " config's method; install the same version everywhere"
        )
    values = gather_array(np.stack([_digest(facts[name]) for name in names]))
    differs = (values != values[0]).any(axis=-1)  # [processes, names]
    if not differs.any():
        return
    numbers = np.flatnonzero(differs.any(axis=1)).tolist()
    differ_in = [name for name, here in zip(names, differs.any(axis=0), strict=True) if here]
    shown = ", ".join(f"{name} = {facts[name]!r}" for name in differ_in[:5])
    raise InputError(
        f"processes {numbers} differ from process 0 in {', '.join(differ_in)} (process {rank} has"
        f" {shown}); start all processes with the same config, code, packages and data"
    )


def _digest(value: object) -> np.ndarray:
    return np.frombuffer(hashlib.sha256(repr(value).encode()).digest()[:8], np.uint32)


def share(indices: np.ndarray, shared: bool = True) -> np.ndarray:
    """This process's part of the record indices, or all of them if `shared` is false;
    `gather_rows` concatenates the results."""
    if not shared:
        return indices
    return np.array_split(indices, jax.process_count())[jax.process_index()]


def gather_rows(rows: np.ndarray) -> np.ndarray:
    """Concatenates the rows [n, ...] of all processes in process order; n may differ."""
    if jax.process_count() == 1:
        return rows
    counts = gather_array(np.asarray([len(rows)]))[:, 0]
    if not counts.max():
        return rows
    width = max(1, rows.dtype.itemsize * math.prod(rows.shape[1:]))  # rows may have no elements
    step = max(1, min(_SENT // (width * jax.process_count()), counts.max()))
    parts: list[list[np.ndarray]] = [[] for _ in counts]
    for start in range(0, counts.max(), step):
        piece = rows[start : start + step]
        padded = np.zeros((step, *rows.shape[1:]), rows.dtype)
        padded[: len(piece)] = piece
        for process, part in enumerate(gather_array(padded)):
            parts[process].append(part[: max(0, counts[process] - start)])
    return np.concatenate([np.concatenate(part) for part in parts])


def gather_array(value: np.ndarray) -> np.ndarray:
    """Stacks one array per process, of equal shape and type, to [processes, ...]."""
    from jax.experimental import multihost_utils

    # As bytes: JAX would truncate 64-bit values to 32 bits.
    raw = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
    gathered = np.asarray(multihost_utils.process_allgather(raw))
    return gathered.view(value.dtype).reshape(-1, *value.shape)


def gather_json(value: Any) -> list:
    """Gathers one JSON-serialisable value per process into a list."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = gather_array(np.asarray([len(text)]))[:, 0]
    padded = np.zeros(lengths.max(), np.uint8)
    padded[: len(text)] = text
    parts = zip(gather_array(padded), lengths, strict=True)
    return [json.loads(part[:length].tobytes()) for part, length in parts]


def unseen_by(path: Path, seconds: float) -> list[int]:
    """The processes that do not see a file of process 0 within so many seconds, which a shared disk
    may need. All processes must call it."""
    gather_json(None)  # the file is there now, or will not be
    end = time.monotonic() + seconds
    while not (seen := path.exists()) and time.monotonic() < end:
        time.sleep(0.1)
    return [i for i, sees in enumerate(gather_json(seen)) if not sees]


def local(tree: Any) -> Any:
    """Gathers the arrays of a mesh into this process's memory. All processes must call it."""
    if jax.process_count() == 1:
        return tree
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(tree, tiled=True)
