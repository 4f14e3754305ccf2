"""Worker processes of the loader: the same batches, whatever is killed."""

import io
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import chex
import jax
import numpy as np
import pytest
from PIL import Image

from ssl_jax.config import InputError
from ssl_jax.data.folder import Folder
from ssl_jax.views import loader
from tests.data.records import save
from tests.views import batches as sets

pytestmark = pytest.mark.slow


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_workers_give_the_same_batches_and_errors_also_when_one_is_killed(tmp_path, monkeypatch):
    """The same batches to the bit, one broken file replaced; then the error of a worker."""
    monkeypatch.setattr(loader, "_UNIT", 3)
    for i, image in enumerate(sets.IMAGES):
        save(tmp_path / f"{i:02d}.png", image)
    stream = io.BytesIO()
    Image.fromarray(sets.IMAGES[9]).save(stream, "PNG")
    (tmp_path / "09.png").write_bytes(stream.getvalue()[:100])
    options = dict(start_record=16, max_unreadable=0.05)
    alone = sets.loader(Folder(tmp_path), **options)
    together = sets.loader(Folder(tmp_path), workers=2, **options)
    replaced = 0
    for number in range(9):
        if number == 2:
            victim = multiprocessing.active_children()[0]
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
        batch = next(together)
        chex.assert_trees_all_equal(next(alone), batch, strict=True)
        assert together.state() == alone.state() == {"record": 16 + 8 * (number + 1)}
        assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(batch))  # not shared memory
        replaced += batch["replaced"].sum()
    assert replaced and len(multiprocessing.active_children()) == 2
    alone.close()
    (tmp_path / "20.png").write_bytes(b"")
    # The workers had read ahead, so the file that broke just now may take some batches to show.
    with pytest.raises(InputError, match=r"data.max_unreadable=0.05: .*2 of 37 .*(09|20)\.png"):
        for _ in range(100):
            next(together)
    assert wait_until(lambda: not multiprocessing.active_children())


def test_a_worker_repeats_and_augments_as_threads_do():
    views = sets.labelled(repeats=3)
    whole = sets.take(2, views=views, total_records=16)
    together = sets.loader(views=views, workers=1, total_records=16)
    chex.assert_trees_all_equal(whole, list(together), strict=True)
    with pytest.raises(StopIteration):
        next(together)


MAIN = """
import multiprocessing, time
from tests.views import batches

if __name__ == "__main__":
    made = batches.loader(workers=2)
    next(made), next(made)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(600)
"""


def test_a_script_that_trains_where_it_is_imported_is_told_of_the_guard(tmp_path, root):
    """Each worker imports it, and would train too."""
    code = "from ssl_jax import api\nfrom tests import tiny\n"
    code += "api.train(tiny.config('dino', data__workers=1), 'run')"
    (tmp_path / "main.py").write_text(code)
    options = dict(capture_output=True, text=True, cwd=tmp_path)
    options |= dict(env={**os.environ, "PYTHONPATH": str(root)})
    done = subprocess.run([sys.executable, "main.py"], **options)
    assert done.returncode == 1 and len(said := done.stderr.splitlines()) < 50  # of one process
    assert "data.workers=1" in said[-1] and "__main__" in said[-1]
    assert [path.name for path in tmp_path.iterdir()] == ["main.py"]


def test_workers_end_with_a_killed_main_process(tmp_path, root):
    (tmp_path / "main.py").write_text(MAIN)
    environment = {**os.environ, "PYTHONPATH": str(root)}
    # Python's resource tracker says on stderr what it cleans up.
    options = dict(stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    main = subprocess.Popen([sys.executable, str(tmp_path / "main.py")], **options)
    workers = [int(pid) for pid in main.stdout.readline().split()]
    assert len(workers) == 2
    # Signals for the whole group reach workers too; the main process decides when they end.
    for pid in workers:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    time.sleep(0.5)
    assert all(alive(pid) for pid in workers)
    main.kill()
    main.wait()
    assert wait_until(lambda: not any(alive(pid) for pid in workers))


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:  # an orphan that has ended but was not yet collected
        return file.read().rpartition(")")[2].split()[0] != "Z"
