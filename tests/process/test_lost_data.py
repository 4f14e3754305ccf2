"""Data that end a run, or an evaluation of it, cost no step that was done."""

import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from ssl_jax import api
from ssl_jax.config import InputError
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.decode import Unreadable
from ssl_jax.report import evaluation
from ssl_jax.runtime import stop
from ssl_jax.views import batches
from tests import compiling, tiny, tiny_run
from tests.process import runs


class Fading(ArraySource):
    """Float images of which, while `bad` holds, none can be read after the first 60 reads."""

    bad, reads = False, 0

    def __getitem__(self, i):
        self.reads += 1
        if self.bad and self.reads > 60:
            raise Unreadable(self.name(i), "the disk is gone")
        return super().__getitem__(i)


@pytest.mark.slow
def test_data_that_end_a_run_cost_no_step(tmp_path):
    images = np.random.default_rng(0).random((32, 24, 24, 3), np.float32)
    records, config = Fading(images), tiny.config("dino", checkpoint__every_steps=100)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    api.train(config, whole, records=records)
    records.bad, records.reads = True, 0
    with pytest.raises(InputError, match=r"data\.max_unreadable"):
        api.train(config, cut, records=records)
    step = runs.rows(cut)[-1]["step"]
    assert 5 < step < 12 and runs.newest(cut) == step
    records.bad = False
    api.train(config, cut, records=records)
    found = runs.differences(cut, whole)
    assert found.names == () and found.rows == 12


def test_an_evaluation_that_is_refused_costs_no_step(tmp_path, monkeypatch):
    """Its images were in order before the run; the last checkpoint may be hours old."""
    at = []

    def scored(self, *network, draw_next):
        at.append(1)
        if len(at) == 2:
            raise InputError("1 of 20 images to evaluate cannot be used")
        return {"knn": 1.0}

    monkeypatch.setattr(evaluation.Evaluation, "__call__", scored)
    config = tiny_run.get_config("dino")
    config.checkpoint.every_steps = 100
    with pytest.raises(InputError, match="1 of 20"):
        api.train(config, tmp_path)
    assert runs.newest(tmp_path) == 4


DEADLY = """
import os, signal, time
from multiprocessing import shared_memory
import numpy as np

shared_memory._SHM_NAME_PREFIX = os.environ["BLOCKS"]  # of the workers of this test

class Images:
    def __len__(self):
        return 35

    def __getitem__(self, i):
        if i == int(os.environ["DEADLY"]):
            if "HANGS" in os.environ:
                print("hangs", flush=True)
                time.sleep(600)
            os.kill(os.getpid(), signal.SIGKILL)
        return {"image": np.full((24, 24, 3), 7 * i, np.uint8)}

def images():
    return Images()
"""


@pytest.fixture
def train(tmp_path):
    """train(record, workers=1, *options, **environment): a run that this record disturbs."""
    (tmp_path / "deadly.py").write_text(DEADLY)
    keys = ("data.kind=python:deadly.images", "evals.tasks=()", "checkpoint.every_steps=100")

    def started(record, *options, workers=1, **variables):
        variables |= dict(DEADLY=str(record), BLOCKS=f"/t{os.getpid()}_")
        env = compiling.environment(PYTHONPATH=f"{runs.ROOT}:{tmp_path}", **variables)
        given = [f"--config.{key}" for key in (*keys, f"data.workers={workers}", *options)]
        return runs.Run("tests/tiny_run.py:dino", tmp_path / "run", *given, env=env)

    yield started
    assert not [*Path("/dev/shm").glob(f"t{os.getpid()}_*")], "shared memory is left"


@pytest.mark.slow
def test_an_image_that_kills_its_reader_ends_the_run_with_one_line(train, tmp_path):
    """The system kills a data worker again and again: the step is saved, the exit code is 2."""
    run = train(batches.permutation(35, 0, 0)[31], "log.every_steps=5")  # the last of an epoch
    assert run.ended() == (2,), run.text()
    assert sum(line.startswith("ssl-jax: ") for line in run.lines) == 1
    assert "data.workers=1" in run.text() and "Traceback" not in run.text()
    assert runs.newest(tmp_path / "run") == 3
    run = train(-1, "log.every_steps=5")
    assert run.ended() == (0,) and "resuming from step 3" in run.text()
    assert [row["step"] for row in runs.rows(tmp_path / "run")] == [5, 10, 12]  # the last one too
    leaked = re.findall(r"(\d+) leaked shared_memory", run.text())
    assert sum(map(int, leaked)) <= 1  # the last one may be on its way


@pytest.mark.slow
@pytest.mark.parametrize("workers, later", [(0, False), (0, True), (1, True)])
def test_a_reader_that_hangs_holds_no_exit(workers, later, train, tmp_path):
    """As of a disk on the network that is gone. In start-up nothing is unsaved; later the steps so
    far are saved."""
    record = batches.permutation(35, 0, 0)[31 if later else 0]
    run = train(record, workers=workers, HANGS="1")
    # The line of step 1 comes when the fourth batch is waited for.
    assert run.until(run.says("step +1/12" if later else "hangs"), 120), run.text()
    time.sleep(0.5)
    run.signal(signal.SIGTERM)
    began = time.monotonic()
    assert run.ended(60) == (75,), run.text()
    assert time.monotonic() - began < 2 * stop.PATIENCE
    assert not later or runs.newest(tmp_path / "run") == 3
