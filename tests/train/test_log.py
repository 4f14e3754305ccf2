"""What a run writes while it goes: tables that a kill cut short, and which code it was."""

import resource
import sys

import pytest

from ssl_jax.runtime import memory
from ssl_jax.train import log


@pytest.mark.parametrize("system, unit", [("linux", 1024), ("darwin", 1)])
def test_memory_of_the_process_is_in_bytes(monkeypatch, system, unit):
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.setattr(sys, "platform", system)
    assert memory.peak() == pytest.approx(used * unit, rel=0.1)


def test_rows_past_the_restored_step_are_cut(tmp_path):
    table = log.Table(tmp_path, "metrics", restored_step=None)
    for step in range(1, 6):
        table.write({"step": step, "loss": step / 3})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')  # a kill in the middle of a line
    table = log.Table(tmp_path, "metrics", restored_step=3)
    assert len(log.read_rows(tmp_path / "metrics.jsonl")) == 3
    table.write({"step": 4, "loss": 0.5})
    rows = log.read_rows(tmp_path / "metrics.jsonl")
    losses = {1: 1 / 3, 2: 2 / 3, 3: 1, 4: 0.5}
    assert [(row["step"], row["loss"]) for row in rows] == [*losses.items()]
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert lines[0] == "step,loss" and len(lines) == 5


def test_a_new_key_is_a_new_column(tmp_path):
    """As of an evaluation that is added when a run is resumed."""
    table = log.Table(tmp_path, "evals", restored_step=None)
    table.write({"step": 0, "knn": 1.0})
    table = log.Table(tmp_path, "evals", restored_step=0)
    table.write({"step": 4, "knn": 2.0, "rank": 3.0})
    table.write({"step": 8, "rank": 4.0})
    wanted = ["step,knn,rank", "0,1.0,", "4,2.0,3.0", "8,,4.0"]
    assert (tmp_path / "evals.csv").read_text().splitlines() == wanted
    log.Table(tmp_path, "evals", restored_step=8)
    assert (tmp_path / "evals.csv").read_text().splitlines() == wanted


def test_sessions_are_kept(tmp_path, monkeypatch):
    assert log.note_session(tmp_path, 0) is None
    monkeypatch.setattr(log, "code", lambda: "other")
    assert log.note_session(tmp_path, 8)["code"] != "other"
    assert log.note_session(tmp_path, 4)["step"] == 0  # of an older checkpoint
    rows = log.read_rows(tmp_path / "sessions.jsonl")
    assert [(row["step"], row["code"] == "other") for row in rows] == [(0, False), (4, True)]


def test_two_commits_of_one_version_are_told_apart(monkeypatch, tmp_path):
    (tmp_path / "train").mkdir()
    monkeypatch.setattr(log, "__file__", str(tmp_path / "train" / "log.py"))
    (tmp_path / "a.py").write_text("x = 1\n")
    first = log.code()
    assert first == log.code()
    (tmp_path / "a.py").write_text("x = 2\n")
    second = log.code()
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, log.code()}) == 3
