"""Several real processes as one run: they compute what one does, stop together, and none waits for
one that is gone.
"""

import csv
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from ssl_jax import cli
from ssl_jax.methods import METHODS
from tests import compiling
from tests.conftest import ROOT

DEVICES = 8  # of all processes together
STEPS = 20


def start(method, workdir, processes, of=None, steps=STEPS, more=()):
    """The processes of a run; `of`: {process: arguments for it alone}; more: for all."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ssl_jax", "train", f"--config=tests/tiny_run.py:{method}"]
    command += [
        f"--workdir={workdir}",
        "--config.mesh.data=0",
        f"--config.optim.epochs={steps / 4}",
        *more,
    ]
    found = []
    for index in range(processes):
        place = (f"--coordinator=localhost:{port}", f"--num-processes={processes}")
        place = (*place, f"--process-id={index}") if processes > 1 else ()
        found.append(
            subprocess.Popen(
                [*command, *place, *(of or {}).get(index, ())],
                cwd=ROOT,
                env=compiling.environment(DEVICES // processes, TINY_RUN_CUTS_FROM="64"),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return found


def ended(processes, seconds=900):
    """[(exit code, output)]."""
    try:
        outputs = [p.communicate(timeout=seconds)[0] for p in processes]
    finally:
        for p in processes:
            p.kill()
    return [(p.returncode, output) for p, output in zip(processes, outputs, strict=True)]


def rows(workdir, table="metrics"):
    path = workdir / f"{table}.csv"
    return list(csv.DictReader(path.open())) if path.exists() else []


def losses(workdir):
    return np.array([float(row["loss"]) for row in rows(workdir)])


def wait_for_a_row(workdir, processes, since):
    """Until these processes, which were started then, have made a step."""
    log, before, until = workdir / "metrics.csv", None, time.monotonic() + 900
    while True:
        if any(p.poll() is not None for p in processes) or time.monotonic() > until:
            raise AssertionError(ended(processes, seconds=60))
        if log.exists() and log.stat().st_mtime > since:  # rows after the checkpoint are cut off
            count = len(rows(workdir))
            if before is not None and count > before:
                return
            before = count
        time.sleep(0.02)


def same_losses(workdir, whole):
    """As promised for ten steps; then rounding grows."""
    np.testing.assert_allclose(losses(workdir)[:10], losses(whole)[:10], rtol=5e-6)
    np.testing.assert_allclose(losses(workdir), losses(whole), rtol=1e-4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Folder of a run of one process."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    ((code, output),) = ended(start("dino", folder, 1))
    assert code == 0, output
    return folder


@pytest.mark.slow
def test_two_processes_train_as_one(whole, tmp_path):
    (code, output), (other, silent) = ended(start("dino", tmp_path, 2))
    assert (code, other) == (0, 0), output + silent
    assert [row["step"] for row in rows(tmp_path)] == [str(i + 1) for i in range(STEPS)]
    same_losses(tmp_path, whole)
    # Features are extracted in shares, and put together again.
    assert rows(tmp_path, "evals") == rows(whole, "evals")
    assert (tmp_path / "results.txt").read_text() == (whole / "results.txt").read_text()
    # The first alone reports.
    assert "eval at step" in output and "img/s" in output
    assert "eval at step" not in silent and "img/s" not in silent


# Which number of processes each method is tried with in every run of the tests; all were tried with
# both.
@pytest.mark.slow
@pytest.mark.parametrize(
    "method, processes", [(n, 2 + 2 * (i % 2)) for i, n in enumerate(sorted(METHODS), 1)]
)
def test_processes_train_as_one_device(method, processes, tmp_path):
    more = ("--config.evals.tasks=()", "--config.checkpoint.every_steps=100")
    alone = ["ssl-jax", "train", f"--config=tests/tiny_run.py:{method}", *more]
    alone += [f"--workdir={tmp_path / 'one'}", "--config.mesh.data=1", "--config.optim.epochs=2.5"]
    assert cli.main(alone) == 0
    results = ended(start(method, tmp_path / "all", processes, steps=10, more=more))
    assert [code for code, _ in results] == [0] * processes, results
    np.testing.assert_allclose(losses(tmp_path / "all"), losses(tmp_path / "one"), rtol=5e-6)
    assert len(losses(tmp_path / "all")) == 10


@pytest.mark.slow
def test_a_run_moves_from_eight_processes_to_four_one_and_two(whole, tmp_path):
    """Told to stop, with a process lost, told again, each time with weights cut otherwise; the
    losses stay those of one."""
    stages = ((8, 1, signal.SIGTERM), (4, 2, signal.SIGKILL), (1, 8, signal.SIGTERM), (2, 4, None))
    for processes, fsdp, number in stages:
        since = time.time()
        running = start("dino", tmp_path, processes, more=(f"--config.mesh.fsdp={fsdp}",))
        if number:
            wait_for_a_row(tmp_path, running, since)
            running[-1].send_signal(number)
        began = time.monotonic()
        codes, outputs = zip(*ended(running), strict=True)
        if number == signal.SIGKILL:  # of one: the others notice
            assert time.monotonic() - began < 90
            assert 0 not in codes and 75 not in codes, outputs
            assert "heartbeat" in outputs[0] or "Connection" in outputs[0], outputs[0]
        else:  # to one: all save
            assert codes == (75 if number else 0,) * processes, outputs
    assert [row["step"] for row in rows(tmp_path)] == [str(i + 1) for i in range(STEPS)]
    same_losses(tmp_path, whole)


def test_processes_that_differ_are_named(tmp_path):
    results = ended(start("dino", tmp_path, 2, of={1: ["--config.optim.lr=0.5"]}))
    for code, output in results:
        assert code == 2
        assert "processes [1] differ from process 0 in optim.lr" in output
        assert "Traceback" not in output
    assert "optim.lr = 0.5" in results[1][1]
    assert not (tmp_path / "checkpoints").exists()
