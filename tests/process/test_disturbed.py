"""A real run that is stopped and killed in every phase ends with the bits of an undisturbed one."""

import signal

import pytest

from ssl_jax import cli
from ssl_jax.runtime.lock import FILE
from tests.process import runs
from tests.process.runs import Run

CONFIG = "tests/slow_run.py:dino"
OPTIONS = ("--config.evals.slow.seconds=0.15", "--config.data.workers=1")


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """The folder of a run to which nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    run = Run(CONFIG, folder, *OPTIONS)
    assert run.ended() == (0,), run.text()
    return folder


def stopped(folder, condition, number, answer, seconds=2):
    """A run that goes on until the condition holds, and is then asked to stop, which it answers at
    once."""
    run = Run(CONFIG, folder, *OPTIONS)
    assert run.until(condition(run)), run.text()
    run.signal(number)
    said = run.says(f"^{signal.Signals(number).name}: {answer}")
    assert run.until(said, seconds) or said(), run.text()
    assert run.ended() == (75,), run.text()
    assert not (folder / FILE).exists(), "the lock is left"
    return run


def killed(folder, condition):
    run = Run(CONFIG, folder, *OPTIONS)
    assert run.until(condition(run)), run.text()
    run.signal(signal.SIGKILL)
    assert run.ended() == (-signal.SIGKILL,)
    return run


@pytest.mark.slow
def test_a_disturbed_run_ends_as_an_undisturbed_one(undisturbed, tmp_path):
    folder = tmp_path / "run"

    # In its start, long before JAX is imported.
    stopped(folder, lambda run: run.listens, signal.SIGTERM, "stopping now", seconds=60)
    assert not folder.exists()

    run = stopped(folder, lambda run: run.says("^compiling the step"), signal.SIGINT, "stopping")
    assert not run.says("img/s")() and not runs.rows(folder)

    # In a step. Meanwhile the folder can be read, and no other run begins in it.
    run = Run(CONFIG, folder, *OPTIONS)
    saved = folder / "checkpoints" / "2"
    assert run.until(lambda: run.has_rows(3)() and saved.is_dir()), run.text()
    run.signal(signal.SIGSTOP)
    other = Run(CONFIG, folder, *OPTIONS)
    assert other.ended() == (2,) and f"process {run.processes[0].pid} on" in other.text()
    assert cli.main(["ssl-jax", "check", str(folder)]) == 0
    run.signal(signal.SIGKILL)
    assert run.ended() == (-signal.SIGKILL,) and (folder / FILE).exists()

    run = killed(folder, lambda run: run.saves)
    assert run.says("is gone and left its run unfinished")()

    evaluating = r"evaluating at step (4|8): slow, \d+ of 12 parts"
    stopped(folder, lambda run: run.says(evaluating), signal.SIGTERM, "leaving the evaluation")
    step = runs.newest(folder)
    assert step in (4, 8) and runs.rows(folder, "evals")[-1]["step"] == step - 4

    answer = "(saving a checkpoint after this step|leaving the evaluation)"
    stopped(folder, lambda run: run.says(rf"step +{step + 1}/12"), signal.SIGINT, answer)
    assert runs.newest(folder) > step
    assert runs.rows(folder, "evals")[-1]["step"] >= step, "what was left out is made up for"

    drawing = r"final report: slow, \d+ of 12 parts"
    stopped(folder, lambda run: run.says(drawing), signal.SIGTERM, "stopping now")
    assert runs.newest(folder) == 12

    # Twice, while it draws: it goes at once, if the first was not obeyed before.
    run = Run(CONFIG, folder, *OPTIONS)
    assert run.until(run.says(drawing)), run.text()
    for _ in range(2):
        run.signal(signal.SIGINT)
    assert run.ended()[0] in (75, 130), run.text()

    run = Run(CONFIG, folder, *OPTIONS)
    assert run.ended() == (0,), run.text()
    assert not run.says("compiling|img/s")(), "the report alone was missing"
    assert (folder / "pictures" / "slow.png").is_file()
    found = runs.differences(folder, undisturbed)
    assert found.names == () and found.arrays > 20 and found.rows == 16


@pytest.mark.nightly
def test_killed_within_a_span_of_steps(tmp_path):
    """With images that the device keeps."""
    changes = {
        "data.cache": "device",
        "log.every_steps": 6,
        "checkpoint.every_steps": 5,
        "data.crop_on": "device",
    }
    options = (*OPTIONS, *(f"--config.{key}={value}" for key, value in changes.items()))
    whole, folder = tmp_path / "whole", tmp_path / "run"
    run = Run(CONFIG, whole, *options)
    assert run.ended() == (0,), run.text()
    run = Run(CONFIG, folder, *options)
    saved = folder / "checkpoints" / "5"
    assert run.until(saved.is_dir), run.text()
    run.signal(signal.SIGKILL)
    assert run.ended() == (-signal.SIGKILL,)
    run = Run(CONFIG, folder, *options)
    assert run.ended() == (0,), run.text()
    found = runs.differences(folder, whole)
    assert found.names == () and found.arrays > 20 and found.rows > 2
