"""Trackers, each in its offline form: what they hold, and that a continued run repeats no step."""

import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest
from PIL import Image

from ssl_jax.config import InputError
from ssl_jax.train import log, trackers
from tests import tiny
from tests.conftest import ROOT

RESULTS = {"untrained network": {"knn": 20.0}, "trained": {"knn": 40.0, "linear": 50.0}}
# A run that ends after step 5, goes on from step 3 and is complete: what each process writes.
RUN = """
import json, sys
from pathlib import Path
from ssl_jax.train import log, trackers
from tests.train import test_trackers
folder, tracker, value, end = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
tracked = test_trackers.{what}(folder, {{tracker: json.loads(value)}})
if end == "stopped":
    tracked.close()
if end == "killed":
    import os, time
    time.sleep(2)  # for what writes in a thread
    os._exit(9)
"""


def opened(folder, choice, start):
    """(trackers, tables) of a process that begins after step `start`."""
    folder.mkdir(exist_ok=True)
    config = tiny.config("dino")
    config.log.update(choice)
    tables = {
        name: log.Table(folder, name, restored_step=start or None) for name in ("metrics", "evals")
    }
    return trackers.Trackers(folder, config, start, tables), tables


def write(tracked, tables, name, row):
    tables[name].write(row)
    tracked.write(name, row)


def first(folder, choice):
    tracked, tables = opened(folder, choice, 0)
    write(tracked, tables, "evals", {"step": 0, "knn": 20.0})
    for step in range(1, 6):
        write(tracked, tables, "metrics", {"step": step, "loss": 1 / step, "mfu": None})
    return tracked


def second(folder, choice):
    tracked, tables = opened(folder, choice, 3)
    for step in range(4, 9):
        write(tracked, tables, "metrics", {"step": step, "loss": 1 / step, "mfu": None})
    write(tracked, tables, "evals", {"step": 8, "knn": 40.0})
    tracked.final(8, RESULTS, [picture(folder), folder / "moving.gif"])
    tracked.close()


def again(folder, choice):
    """The report of a run that is complete."""
    tracked, tables = opened(folder, choice, 8)
    write(tracked, tables, "evals", {"step": 8, "knn": 40.0})
    tracked.final(8, RESULTS, [picture(folder)])
    tracked.close()


def picture(folder):
    path = folder / "curves.png"
    Image.fromarray(np.full((8, 12, 3), 77, np.uint8)).save(path)
    return path


def whole(folder, tracker, value, end, **environment):
    """The three processes of a run, of which the first ends so."""
    for what, ends in (("first", end), ("second", "complete"), ("again", "complete")):
        script, arguments = RUN.format(what=what), [folder, tracker, json.dumps(value), ends]
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            cwd=ROOT,
            env=os.environ | environment,
            capture_output=True,
            timeout=300,
        )
        assert done.returncode == (9 if ends == "killed" else 0), done.stdout + done.stderr


def test_tensorboard_holds_each_step_once(tmp_path):
    pytest.importorskip("tensorboardX")
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    )
    choice = {"tensorboard": True}
    first(tmp_path / "run", choice).close()
    second(tmp_path / "run", choice)
    again(tmp_path / "run", choice)
    read = accumulator.EventAccumulator(
        str(tmp_path / "run" / "tensorboard"), size_guidance={"images": 0, "tensors": 0}
    ).Reload()
    assert [e.step for e in read.Scalars("loss")] == list(range(1, 9))
    assert [round(e.value, 4) for e in read.Scalars("loss")][:2] == [1, 0.5]
    assert [(e.step, e.value) for e in read.Scalars("knn")][:2] == [(0, 20), (8, 40)]
    assert "mfu" not in read.Tags()["scalars"]
    (image,) = read.Images("pictures/curves")
    assert (image.step, image.height, image.width) == (8, 8, 12)
    (table,) = read.Tensors("comparison/text_summary")
    text = table.tensor_proto.string_val[0].decode()
    assert "| features | knn | linear |" in text and "| trained | 40 | 50 |" in text
    (config,) = read.Tensors("config/text_summary")
    assert '"batch_size": 8' in config.tensor_proto.string_val[0].decode()


def test_tensorboard_files_are_written_without_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX")
    first(tmp_path / "run", {"tensorboard": True}).close()
    second(tmp_path / "run", {"tensorboard": True})
    written = [path.read_bytes() for path in sorted((tmp_path / "run" / "tensorboard").iterdir())]
    assert len(written) == 2 and len(written[0]) > 100
    assert b"pictures/curves" in written[1] and b"comparison" in written[1]


@pytest.mark.nightly
def test_wandb_offline_goes_on_as_the_same_run(tmp_path):
    pytest.importorskip("wandb")
    folder = tmp_path / "run"
    # Killed, it would lack what W&B writes every 15 seconds.
    whole(folder, "wandb", "tests", "stopped", WANDB_MODE="offline", WANDB_SILENT="true")
    parts = sorted((folder / "wandb").glob("offline-run-*"))
    name = json.loads((folder / "trackers.json").read_text())["wandb"]
    # One run, of three processes.
    assert len(parts) == 3 and all(part.name.endswith(f"-{name}") for part in parts)
    assert len(list((folder / "wandb").rglob("curves_*.png"))) == 1


@pytest.mark.nightly
def test_trackio_goes_on_as_the_same_run(tmp_path):
    pytest.importorskip("trackio")
    folder, kept = tmp_path / "run", tmp_path / "trackio"
    whole(folder, "trackio", "tests", "killed", TRACKIO_DIR=str(kept))
    name = json.loads((folder / "trackers.json").read_text())["trackio"]
    code = f"""
import json
from trackio.sqlite_storage import SQLiteStorage
names = SQLiteStorage.get_runs("tests")
print(json.dumps([len(names), SQLiteStorage.get_logs("tests", {name!r})], default=str))
"""
    env = os.environ | {"TRACKIO_DIR": str(kept)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    count, rows = json.loads(done.stdout.splitlines()[-1])
    assert count == 1
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 9))
    assert [(row["step"], row["knn"]) for row in rows if "knn" in row] == [(0, 20), (8, 40)]
    (image,) = [row["pictures/curves"] for row in rows if "pictures/curves" in row]
    assert (kept / "media" / image["file_path"]).is_file()
    (table,) = [row["comparison"] for row in rows if "comparison" in row]
    assert {"features": "trained", "knn": 40.0, "linear": 50.0} in table["_value"]


class _Fake:
    """A hosted tracker that keeps what it gets."""

    __name__ = "trackio"

    def __init__(self):
        self.rows, self.inits = [], []

    def init(self, **words):
        self.inits.append(words)
        return types.SimpleNamespace(
            log=lambda values, step: self.rows.append((step, values)), finish=lambda: None
        )

    Image = staticmethod(lambda path: path)
    Table = staticmethod(lambda columns, data: (columns, data))


def test_a_tracker_that_is_switched_on_later_gets_the_rows_so_far(tmp_path, monkeypatch):
    fake = _Fake()
    monkeypatch.setattr(trackers, "_package", lambda name: fake)
    first(tmp_path / "run", {})
    second(tmp_path / "run", {"trackio": "mine"})
    assert [step for step, row in fake.rows if "loss" in row] == [*range(1, 9)]
    assert [step for step, row in fake.rows if "knn" in row] == [0, 8]
    assert fake.inits[0]["name"].startswith("run-") and fake.inits[0]["resume"] == "allow"
    # Two runs whose folders have one name are two runs.
    (tmp_path / "other").mkdir()
    second(tmp_path / "other" / "run", {"trackio": "mine"})
    assert fake.inits[1]["name"] != fake.inits[0]["name"]


def test_pictures_and_tables_come_once(tmp_path, monkeypatch):
    fake = _Fake()
    monkeypatch.setattr(trackers, "_package", lambda name: fake)
    first(tmp_path / "run", {"trackio": "mine"})
    second(tmp_path / "run", {"trackio": "mine"})
    again(tmp_path / "run", {"trackio": "mine"})
    assert [step for step, row in fake.rows if "loss" in row] == [*range(1, 9)]
    table = [["untrained network", 20.0, None], ["trained", 40.0, 50.0]]
    assert [(step, row) for step, row in fake.rows if not {"loss", "knn"} & set(row)] == [
        (8, {"pictures/curves": str(tmp_path / "run" / "curves.png")}),
        (8, {"comparison": (["features", "knn", "linear"], table)}),
    ]
    assert len({words["name"] for words in fake.inits}) == 1


@pytest.mark.parametrize("name, value", [("tensorboard", True), ("wandb", "a"), ("trackio", "a")])
def test_a_tracker_that_is_not_installed_is_refused(monkeypatch, name, value):
    monkeypatch.setitem(sys.modules, trackers._PACKAGES[name], None)
    config = tiny.config("dino")
    trackers.check(config)
    config.log[name] = value
    with pytest.raises(InputError, match=rf"log\.{name}"):
        trackers.check(config)
