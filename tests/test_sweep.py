"""launch/sweep.py: which runs a grid or a list means, and a table of what differs."""

import importlib
import json
import shlex
import subprocess

import pytest

from tests.test_compare import finished


@pytest.fixture(scope="module")
def sweep():
    return importlib.import_module("launch.sweep")


def test_a_grid_is_every_combination(sweep):
    assert sweep.of_grid(["a.b=1,2", "seed=0"]) == [("a.b=1", "seed=0"), ("a.b=2", "seed=0")]


def test_a_list_keeps_values_with_commas_and_skips_comments(sweep, tmp_path):
    (tmp_path / "list").write_text("a=1 b=2,3  # a pair\n\n# nothing\nc='x y'\n")
    assert sweep.of_list(tmp_path / "list") == [("a=1", "b=2,3"), ("c=x y",)]


def test_differing_keys(sweep):
    configs = [
        {"seed": 0, "model.width": 96, "run.total_steps": 5},
        {"seed": 1, "model.width": 96, "run.total_steps": 6, "sop.anchors": "fixed"},
    ]
    assert sweep.differing(configs) == ["seed", "sop.anchors"]


def run_folder(folder, rate, knn):
    finished(
        folder, trained={"knn": knn}, untrained={"knn": 10.0}, raw={"knn": 5.0}, speed=[1, 400]
    )
    config = {"optim": {"batch_size": 64, "lr": rate}, "views": {"global_size": 32}}
    (folder / "config.json").write_text(json.dumps(config))


def test_runs_that_are_there_are_only_compared(sweep, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("a run was started again"))
    for rate, knn in (("1e-3", 40.0), ("2e-3", 50.0)):
        run_folder(tmp_path / f"optim.lr={rate}", float(rate), knn)
    grid = ["--config=quickstart", "--grid", "optim.lr=1e-3,2e-3", "--workdir", str(tmp_path)]
    assert sweep.main(grid) == 0
    wanted = [
        "| optim.lr | k-NN |",
        "| --- | --- |",
        "| 0.001 | 40.0 |",
        "| 0.002 | 50.0 |",
        "| untrained network | 10.0 ± 0.0 |",
        "| raw pixels | 5.0 ± 0.0 |",
    ]
    assert capsys.readouterr().out.splitlines()[-6:] == wanted
    assert (tmp_path / "table.md").read_text().splitlines() == wanted
    assert sweep.main(["--table", *(str(f) for f in sorted(tmp_path.glob("*/")))]) == 0
    assert capsys.readouterr().out.splitlines() == wanted


def test_bad_arguments_end_with_one_line(sweep, capsys):
    for arguments in (["--grid", "a=1"], ["--config=quickstart"], ["--config=quickstart", "--x"]):
        with pytest.raises(SystemExit) as ended:
            sweep.main(arguments)
        assert ended.value.code == 2
    assert "--grid" in capsys.readouterr().err


def test_a_failed_run_is_named(sweep, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: None)
    grid = ["--config=quickstart", "--grid", "seed=0", "--workdir", str(tmp_path)]
    assert sweep.main(grid) == 1
    assert f"seed=0: FAILED, see {tmp_path}/seed=0.log" in capsys.readouterr().out


def test_an_array_of_jobs(sweep, tmp_path, monkeypatch):
    """One line for each run that has no results; a run that has is left out."""
    run_folder(tmp_path / "optim.lr=1", 1.0, 40.0)
    queued = []

    def sbatch(command, **options):
        queued.append((command, options["env"]["RUNS"]))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", sbatch)
    grid = ["--config=sop:vits16", "--grid", "optim.lr=1,2", "--grid", "data.dir=/a b"]
    run_folder(tmp_path / "optim.lr=1,data.dir=_a b", 1.0, 40.0)
    assert sweep.main([*grid, "--workdir", str(tmp_path), "--slurm=--time=1:00:00"]) == 0
    ((command, file),) = queued
    assert command[:2] == ["sbatch", "--array=0-0"] and "--time=1:00:00" in command
    (line,) = open(file).read().splitlines()
    assert shlex.split(line) == [
        "--config=sop:vits16",
        f"--workdir={tmp_path}/optim.lr=2,data.dir=_a b",
        "--config.optim.lr=2",
        "--config.data.dir=/a b",
    ]
