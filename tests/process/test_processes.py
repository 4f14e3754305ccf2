"""Several real processes as one run: they compute what one does, stop together, and none waits for
one that is gone.
"""

import signal
import time

import numpy as np
import pytest

from ssl_jax import cli
from ssl_jax.convert import own
from ssl_jax.methods import METHODS
from tests import compiling
from tests.process import runs
from tests.process.runs import Run

DEVICES = 8  # of all processes together
STEPS = 10


def start(method, workdir, processes, *options, steps=STEPS, own=None):
    """A run on DEVICES devices; own: {process: options for it alone}."""
    options = ("--config.mesh.data=0", f"--config.optim.epochs={steps / 4}", *options)
    more = dict(processes=processes, own=own)
    env = compiling.environment(DEVICES // processes, TINY_RUN_CUTS_FROM="64")
    return Run(f"tests/tiny_run.py:{method}", workdir, *options, env=env, **more)


def one_device(method, folder, *options, steps=STEPS):
    """The folder of a run on one device of this process."""
    command = ["ssl-jax", "train", f"--config={runs.ROOT}/tests/tiny_run.py:{method}", *options]
    command += [f"--workdir={folder}", "--config.mesh.data=1", f"--config.optim.epochs={steps / 4}"]
    assert cli.main(command) == 0
    return folder


def same_losses(workdir, whole, steps=STEPS):
    """As promised for ten steps; then rounding grows."""
    mine, others = (np.array([row["loss"] for row in runs.rows(f)]) for f in (workdir, whole))
    assert len(mine) == len(others) == steps
    np.testing.assert_allclose(mine[:10], others[:10], rtol=5e-6)
    np.testing.assert_allclose(mine, others, rtol=1e-4)


@pytest.mark.slow
def test_two_processes_train_as_one_device(tmp_path):
    """And features are extracted in shares, and put together again."""
    options = ("--config.evals.best=knn",)
    whole = one_device("sop", tmp_path / "one", *options)
    run = start("sop", tmp_path / "two", 2, *options)
    assert run.ended() == (0, 0), run.text()
    same_losses(tmp_path / "two", whole)
    for name in ("results.txt", "evals.jsonl"):
        assert (tmp_path / "two" / name).read_text() == (whole / name).read_text()
    best, other = (own.read(folder / "best.safetensors") for folder in (tmp_path / "two", whole))
    assert best.notes == other.notes
    first, second = run.text(0), run.text(1)
    assert "img/s" in first and "img/s" not in second, "the first alone reports"


@pytest.mark.nightly  # in CI sop has two processes, and dino four below
@pytest.mark.parametrize(
    "method, processes",
    [(f"{name}_whole", 2 + 2 * (i % 2)) for i, name in enumerate(sorted(METHODS), 1)],
)
def test_processes_train_as_one_device(method, processes, tmp_path):
    options = ("--config.evals.tasks=()", "--config.checkpoint.every_steps=100")
    whole = one_device(method, tmp_path / "one", *options)
    run = start(method, tmp_path / "all", processes, *options)
    assert run.ended() == (0,) * processes, run.text()
    same_losses(tmp_path / "all", whole)


SHORT = ((4, 2, signal.SIGTERM), (2, 4, signal.SIGKILL), (1, 1, None))
LONG = ((8, 1, signal.SIGTERM), (4, 2, signal.SIGKILL), (1, 8, signal.SIGTERM), (2, 4, None))


@pytest.mark.parametrize(
    "stages, steps",
    [
        pytest.param(SHORT, 12, marks=pytest.mark.slow, id="4-2-1"),
        pytest.param(LONG, 20, marks=pytest.mark.nightly, id="8-4-1-2"),
    ],
)
def test_a_run_moves_between_numbers_of_processes(stages, steps, tmp_path):
    """Told to stop, with a process lost, told again, each time with weights cut otherwise; the
    losses stay those of one. stages: (processes, mesh.fsdp, what the last one is sent)."""
    folder, options = tmp_path / "run", ("--config.evals.tasks=()",)
    whole = one_device("dino", tmp_path / "one", *options, steps=steps)
    for processes, fsdp, number in stages:
        run = start("dino", folder, processes, *options, f"--config.mesh.fsdp={fsdp}", steps=steps)
        if number:
            assert run.until(run.says("img/s")), run.text()
            run.signal(number, processes - 1)
        began = time.monotonic()
        codes = run.ended()
        if number == signal.SIGKILL:  # of one: the others notice
            assert time.monotonic() - began < 90
            assert codes and not {0, 75} & set(codes), run.text()
            assert "another process is gone" in run.text(0) or "heartbeat" in run.text(0)
        else:  # to one: all save
            assert codes == (75 if number else 0,) * processes, run.text()
    assert [row["step"] for row in runs.rows(folder)] == list(range(1, steps + 1))
    same_losses(folder, whole, steps)


def test_processes_that_differ_are_named(tmp_path):
    run = start("dino", tmp_path, 2, own={1: ["--config.optim.lr=0.5"]})
    assert run.ended() == (2, 2), run.text()
    for text in (run.text(0), run.text(1)):
        assert "optim.lr" in text and "Traceback" not in text
    assert not (tmp_path / "checkpoints").exists()
