"""Records are read ahead in order, in batches of one shape; a reader that hangs holds nobody."""

import itertools
import signal
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.features import feed
from ssl_jax.features.feed import Batch, View, ahead
from tests import compiling
from tests.evals import fakes
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
    monkeypatch.setattr(feed, "_PATIENCE", 0.01)
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


def _cut(row, record):
    """Two views of each record but the third, which is left out."""
    value = int(record["image"][0, 0, 0])
    return [View((row, value, i), record["image"]) for i in range(2) if row != 2]


def test_views_come_in_order_without_records_that_cannot_be_read():
    images = np.arange(1, 8, dtype=np.uint8).repeat(12).reshape(7, 2, 2, 3)
    source = fakes.Source(images, broken=(1, 5))
    batches = list(feed.feed(source, [6, 5, 4, 3, 1, 0], _cut, 2))
    assert [batch.skipped for batch in batches] == [[5], [], [1]]
    seen = [[view.what for view in batch.views] for batch in batches]
    assert seen == [[(0, 7, 0), (0, 7, 1)], [(3, 4, 0), (3, 4, 1)], [(5, 1, 0), (5, 1, 1)]]
    assert feed.readable(source, [0, 1, 5], 1)[1]["image"].max() == 1  # the next after the end
    with pytest.raises(InputError, match="7 images"):
        feed.readable(source, [1, 5], 0)


def test_batches_of_known_shapes_keep_the_order_of_rows():
    shapes = np.array([[4, 4], [2, 9], [4, 4], [4, 4], [2, 9], [4, 4], [4, 4]])
    plan = [(rows.tolist(), size) for rows, size in feed.planned(shapes, 3)]
    assert plan == [([1, 4], 2), ([0, 2, 3], 3), ([5, 6], 2)]
    assert [size for _, size in feed.planned(shapes[:1].repeat(4, axis=0), 3)] == [3, 3]


def _stream(*widths):
    views = [View(i, np.full((2, width, 3), i, np.float32)) for i, width in enumerate(widths)]
    return (Batch([view], 1, []) for view in views)


def test_each_image_gets_its_own_features():
    shapes = []

    def read(images):
        shapes.append(images.shape[:1] + images.shape[2:3])
        return images.mean(axis=(1, 2, 3))

    batches = feed.by_shape(_stream(4, 5, 4, 4, 5, 4, 4, 6, 6, 6), 4)
    features = [pair for views, x in feed.encoded(read, batches) for pair in zip(views, x)]
    assert sorted((view.what, x) for view, x in features) == [(i, i) for i in range(10)]
    # five of width 4: a whole batch and one that is filled up to it; others to a power of two
    assert shapes == [(4, 4), (2, 5), (4, 4), (4, 6)]
    assert list(feed.encoded(read, [Batch([], 3, [])])) == []


def test_a_batch_that_does_not_fit_is_named():
    def read(images):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")

    with pytest.raises(InputError, match="1 images of 2 x 4 pixels.*evals.batch_size"):
        list(feed.encoded(read, _stream(4)))


def test_few_images_wait_however_many_shapes_there_are():
    taken = []

    def stream():
        for batch in _stream(*range(4, 44), *[4] * 3):  # forty shapes
            taken.append(batch)
            yield batch

    batches = feed.by_shape(stream(), 2)
    assert next(batches).views[0].what == 0 and len(taken) <= 18
    assert sum(len(batch.views) for batch in batches) == 42


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
            os.write(1, b"hangs\\n")  # at once: several threads write
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
