"""Trackers, each in its offline form: what they hold, and that a continued run repeats no step."""

import sys
import types

import numpy as np
import pytest
from PIL import Image

from ssl_jax.config import InputError, Unavailable
from ssl_jax.train import log, trackers
from tests import tiny

RESULTS = {"untrained network": {"knn": 20.0}, "trained": {"knn": 40.0, "linear": 50.0}}


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


def test_tensorboard_holds_each_step_once(tmp_path):
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    first(tmp_path / "run", {"tensorboard": True}).close()
    for go_on in (second, again):
        go_on(tmp_path / "run", {"tensorboard": True})
    values = []
    for path in sorted((tmp_path / "run" / "tensorboard").iterdir()):
        content = path.read_bytes()
        while content:  # length, its checksum, an event, its checksum
            length = int.from_bytes(content[:8], "little")
            event = event_pb2.Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            if event.HasField("session_log"):  # TensorBoard drops what was written past it
                values = [(step, value) for step, value in values if step < event.step]
            values += [(event.step, value) for value in event.summary.value]

    def of(tag):
        return [(step, value) for step, value in values if value.tag == tag]

    assert [(step, round(v.simple_value, 4)) for step, v in of("loss")] == [
        (step, round(1 / step, 4)) for step in range(1, 9)
    ]
    assert [(step, v.simple_value) for step, v in of("knn")][:2] == [(0, 20), (8, 40)]
    assert not of("mfu")
    ((step, value),) = of("pictures/curves")
    assert (step, value.image.height, value.image.width) == (8, 8, 12)
    ((_, value),) = of("comparison/text_summary")
    text = value.tensor.string_val[0].decode()
    assert "| features | knn | linear |" in text and "| trained | 40 | 50 |" in text
    ((_, value),) = of("config/text_summary")
    assert '"batch_size": 8' in value.tensor.string_val[0].decode()


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


def test_a_hosted_tracker_gets_each_row_once_also_when_it_is_switched_on_later(
    tmp_path, monkeypatch
):
    fake = _Fake()
    monkeypatch.setattr(trackers, "_package", lambda name: fake)
    mine = {"trackio": "mine"}
    for index, choices in enumerate(((mine, mine, mine), ({}, mine, mine))):
        fake.rows.clear()
        folder = tmp_path / str(index) / "run"  # two runs whose folders have one name are two
        folder.parent.mkdir()
        for write_rows, choice in zip((first, second, again), choices):
            write_rows(folder, choice)
        assert [step for step, row in fake.rows if "loss" in row] == [*range(1, 9)]
        assert [step for step, row in fake.rows if "knn" in row] == [0, 8]
        table = [["untrained network", 20.0, None], ["trained", 40.0, 50.0]]
        assert [(step, row) for step, row in fake.rows if not {"loss", "knn"} & set(row)] == [
            (8, {"pictures/curves": str(folder / "curves.png")}),
            (8, {"comparison": (["features", "knn", "linear"], table)}),
        ]
    names = [words["name"] for words in fake.inits]
    assert len(set(names[:3])) == len(set(names[3:])) == 1 and names[0] != names[3]
    assert all(words["resume"] == "allow" for words in fake.inits)


def test_a_tracker_gets_what_it_missed(tmp_path, monkeypatch):
    """Rows written while it was disabled, all rows in another project, and scores of evaluations
    that were added at the end."""
    fake, folder = _Fake(), tmp_path / "run"
    monkeypatch.setattr(trackers, "_package", lambda name: fake)
    first(folder, {"trackio": "mine"})
    second(folder, {})
    again(folder, {"trackio": "mine"})
    assert [step for step, row in fake.rows if "loss" in row] == [*range(1, 9)]
    assert [step for step, row in fake.rows if "knn" in row] == [0, 8]
    fake.rows.clear()
    tracked, tables = opened(folder, {"trackio": "mine"}, 8)
    write(tracked, tables, "evals", {"step": 8, "knn": 40.0, "rank": 3.0})
    tracked.final(8, RESULTS | {"raw pixels": {"rank": 2.0}}, [])
    assert fake.rows[0] == (8, {"rank": 3.0}) and [*fake.rows[1][1]] == ["comparison"]
    fake.rows.clear()
    opened(folder, {"trackio": "other"}, 8)
    assert [step for step, row in fake.rows if "loss" in row] == [*range(1, 9)]
    assert fake.inits[-1]["name"] != fake.inits[0]["name"]


@pytest.mark.parametrize("name", ["12:30:00", "run#3", "50%", "a?", "lr=1e-3"])
def test_names_of_folders_that_are_no_ids(name, monkeypatch, tmp_path):
    inits = []
    run = types.SimpleNamespace(define_metric=lambda *_, **__: None)
    init = lambda **words: inits.append(words) or run  # noqa: E731
    wandb = types.SimpleNamespace(__name__="wandb", init=init)
    monkeypatch.setattr(trackers, "_package", lambda name: wandb)
    for _ in range(2):  # the second start resumes the same run
        opened(tmp_path / name, {"wandb": "mine"}, 0)
    first_id, second_id = (words["id"] for words in inits)
    assert first_id == second_id and not set("/\\#?%:") & set(first_id)
    assert inits[0]["name"].startswith(name)


def test_a_tracker_that_does_not_start(monkeypatch, tmp_path):
    def init(**words):
        raise ConnectionError("no route\nto host")

    wandb = types.SimpleNamespace(__name__="wandb", init=init)
    monkeypatch.setattr(trackers, "_package", lambda name: wandb)
    with pytest.raises(Unavailable, match="log.wandb.*no route to host"):
        opened(tmp_path / "run", {"wandb": "mine"}, 0)


@pytest.mark.parametrize("name, value", [("tensorboard", True), ("wandb", "a"), ("trackio", "a")])
def test_a_tracker_that_is_not_installed_is_refused(monkeypatch, tmp_path, name, value):
    monkeypatch.setitem(sys.modules, trackers._PACKAGES[name], None)
    config = tiny.config("dino")
    trackers.check(config, tmp_path)
    config.log[name] = value
    with pytest.raises(InputError, match=rf"log\.{name}"):
        trackers.check(config, tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"tensorboard": 3}', '{"missing": {"wandb": []}}'])
def test_a_record_of_trackers_that_somebody_changed(tmp_path, text):
    (tmp_path / "trackers.json").write_text(text)
    with pytest.raises(InputError, match="trackers.json"):
        trackers.check(tiny.config("dino"), tmp_path)
