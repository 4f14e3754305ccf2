"""What a run writes while it goes: tables that a kill cut short, and which code it was."""

from ssl_jax.train import log


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
