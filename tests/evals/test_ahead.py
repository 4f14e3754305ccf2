"""Records are made ahead in their order, and a reader that hangs holds nobody."""

import itertools
import signal
import subprocess
import sys
import threading
import time

import pytest

from ssl_jax.features import ahead as module
from ssl_jax.features.ahead import ahead
from tests import compiling
from tests.process import runs


def test_batches_come_in_order_and_few_are_made_ahead():
    made = []

    def double(i):
        made.append(i)
        return 2 * i

    batches = ahead(double, ([3 * i, 3 * i + 1, 3 * i + 2] for i in range(20)), 2)
    assert next(batches) == [0, 2, 4] and max(made) < 9
    assert [i for batch in batches for i in batch] == list(range(6, 120, 2))
    assert sorted(made) == list(range(60))


def test_an_error_waits_for_nothing_that_hangs_or_has_not_begun(monkeypatch):
    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    made, goes_on = [], threading.Event()

    def read(i):
        made.append(i)
        if i == 0:
            raise OSError("gone")
        goes_on.wait(60)

    batches = ahead(read, [range(1000)], 0)
    with pytest.raises(OSError, match="gone"):
        next(batches)
    assert len(made) < 100 and not goes_on.is_set()
    goes_on.set()


IMAGES = """
import collections, os, time
import numpy as np

READS = collections.Counter()

class Images:
    def __len__(self):
        return 35

    def __getitem__(self, i):
        READS[i] += 1
        if READS[i] > int(os.environ["READS"]):
            print("hangs", flush=True)
            time.sleep(600)
        return {"image": np.full((24, 24, 3), 7 * i, np.uint8)}

def images():
    return Images()
"""
DATA = [
    "--config.evals.rank.data.kind=python:hanging.images",
    "--config.evals.rank.data.size=0",
    "--config.evals.rank.data.test_split=train",
]
# How often images are read before the threads of an evaluation do so: as training and as test
# images in advance, then for their size; here the evaluation of step 4 hangs, not that of step 0.
COMMANDS = {
    "train": (5, signal.SIGTERM, 75, ["--config=tests/tiny_run.py:dino", *DATA]),
    "eval": (3, signal.SIGINT, -signal.SIGINT, ["zoo/sop_quickstart", "--task=rank", *DATA]),
    "embed": (2, signal.SIGINT, 75, ["zoo/sop_quickstart", "--size=0"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_hangs_in_an_evaluation_holds_no_exit(command, tmp_path):
    """As of a disk on the network that is gone."""
    (tmp_path / "hanging.py").write_text(IMAGES)
    reads, number, code, options = COMMANDS[command]
    more = {
        "train": [f"--workdir={tmp_path / 'run'}", "--config.evals.tasks=rank"],
        "embed": [f"--out={tmp_path / 'x.npz'}", "--config.data.kind=python:hanging.images"],
    }
    environment = dict(PYTHONPATH=f"{runs.ROOT}:{tmp_path}", READS=str(reads))
    process = subprocess.Popen(
        [sys.executable, "-m", "ssl_jax", command, *options, *more.get(command, [])],
        env=compiling.environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=runs.ROOT,
        # Shells start what runs in the background with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        lines = itertools.takewhile(lambda line: line != "hangs\n", process.stdout)
        text = "".join(lines)
        assert process.poll() is None, text
        time.sleep(0.5)
        process.send_signal(number)
        assert process.wait(20) == code
    finally:
        process.kill()
        process.communicate()
    if command == "train":
        assert runs.newest(tmp_path / "run") == 4
