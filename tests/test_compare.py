"""launch/compare.py: runs that are there are not made again, failures are named, and the table is
computed as its heading says.
"""

import csv
import importlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from configs import compare as recipes
from launch.claims_papers import PAPERS
from ssl_jax import api


@pytest.fixture(scope="module")
def compare():
    return importlib.import_module("launch.compare")


@pytest.fixture(scope="module")
def runs(compare):
    return compare.runs


def finished(folder, *, trained, untrained, raw, speed, batch=64, size=32):
    """A run folder as `ssl-jax train` leaves it; speed: images per second of each row; size: of
    large views."""
    folder.mkdir(parents=True)
    scores = {"untrained network": untrained, "raw pixels": raw, "trained": trained}
    (folder / "results.json").write_text(json.dumps(scores))
    (folder / "environment.json").write_text(json.dumps({"git": "0123456789"}))
    config = {"optim": {"batch_size": batch}, "views": {"global_size": size}}
    (folder / "config.json").write_text(json.dumps(config))
    rows = [{"step": 10 * i, "images_per_second": s, "loss": 5 - i} for i, s in enumerate(speed)]
    with (folder / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def cells(text: str, name: str) -> list[str]:
    (row,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_the_table_has_means_spreads_and_margins(compare, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        subprocess, "run", lambda *a, **k: pytest.fail("a finished run was started again")
    )
    # The first row of metrics holds compilation: 1 image a second must not count.
    for seed, knn in ((0, 20.0), (1, 24.0)):
        finished(
            tmp_path / f"dino-{seed}",
            trained={"knn": knn},
            untrained={"knn": 11.0},
            raw={"knn": 13.0 + seed},
            speed=[1, 400],
        )
        finished(
            tmp_path / f"stellar-{seed}",
            trained={"knn": 15.0, "dense": 22.0, "psnr": 14.0},
            untrained={"knn": 12.0, "dense": 17.0, "psnr": 2.0},
            raw={"knn": 13.0, "dense": 18.0},
            speed=[1, 160, 160],
            size=64,
        )
    assert (
        compare.main(["--methods", "dino,stellar", "--seeds", "0,1", "--workdir", str(tmp_path)])
        == 0
    )
    text = (tmp_path / "table.md").read_text()
    assert text in capsys.readouterr().out
    # k-NN, linear, dense, PSNR, margin, seeds: the better baseline of dino is 13 with seed 0 and 14
    # with seed 1.
    margin = "k-NN +8.5 ± 2.1 (+7.0)"
    assert cells(text, "DINO, 32 px") == ["22.0 ± 2.8", "-", "-", "-", margin, "2"]
    # PSNR has no baseline of raw pixels.
    margins = "k-NN +2.0 ± 0.0 (+2.0), dense mIoU +4.0 ± 0.0 (+4.0), PSNR +12.0 ± 0.0 (+12.0)"
    assert cells(text, "STELLAR, 64 px") == [
        "15.0 ± 0.0",
        "-",
        "22.0 ± 0.0",
        "14.0 ± 0.0",
        margins,
        "2",
    ]
    # Baselines are of the runs that saw images of that size.
    assert cells(text, "raw pixels, 32 px")[0] == "13.5 ± 0.7"
    assert cells(text, "raw pixels, 64 px")[0] == "13.0 ± 0.0"
    both = ["--methods", "dino,stellar", "--seeds", "0,1,2", "--workdir", str(tmp_path)]
    assert compare.main([*both, "--finished"]) == 0  # seed 2 is not made
    assert (tmp_path / "table.md").read_text() == text
    elsewhere = [f"--records={tmp_path / 'records.jsonl'}", f"--workdir={tmp_path / 'new'}"]
    assert compare.main([*both, *elsewhere, "--finished"]) == 0  # folders are not needed
    assert (tmp_path / "new" / "table.md").read_text() == text


def test_the_short_table_has_the_untrained_network_in_brackets(compare):
    def run(knn, untrained):
        scores = {"linear": 2.0, "dense": 3.0}
        return {
            "trained": {"knn": knn, "psnr": 9.0} | scores,
            "untrained": {"knn": untrained} | scores,
            "raw": {"knn": 1.0} | scores,
        }

    rows = compare.short_table({("sop", 0): run(20.0, 10.0), ("sop", 1): run(22.0, 11.0)})
    assert rows == [
        ["method", "k-NN", "linear", "dense mIoU"],
        ["SOP", "21.0 ± 1.4 (10.5)", "2.0 ± 0.0 (2.0)", "3.0 ± 0.0 (3.0)"],
        ["raw pixels", "1.0 ± 0.0", "2.0 ± 0.0", "3.0 ± 0.0"],
    ]


def test_a_run_that_fails_is_named_and_does_not_stop_the_others(
    compare, tmp_path, capsys, monkeypatch
):
    commands = []

    def run(command, **kwargs):
        commands.append(command)
        if "--config.seed=1" in command:
            folder = tmp_path / "new" / "dino-1"
            folder.rmdir()
            finished(
                folder,
                trained={"knn": 20.0},
                untrained={"knn": 11.0},
                raw={"knn": 13.0},
                speed=[1, 400],
            )

    monkeypatch.setattr(subprocess, "run", run)
    arguments = [
        "--methods",
        "dino",
        "--seeds",
        "0,1",
        "--workdir",
        str(tmp_path / "new"),
        "--config.optim.steps=7",
    ]
    assert compare.main(arguments) == 1
    out = capsys.readouterr().out
    assert "dino-0: FAILED, see" in out and "| DINO, 32 px | 20.0 |" in out
    assert len(commands) == 2 and all("--config.optim.steps=7" in command for command in commands)


def test_runs_share_the_cores_and_all_end(runs, tmp_path, monkeypatch):
    """Two at a time, each on half of the cores; what is finished is not started."""
    monkeypatch.setattr(runs.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(runs.shutil, "which", lambda name: name)
    started = []

    def run(command, **kwargs):
        folder = Path(next(a for a in command if a.startswith("--workdir=")).partition("=")[2])
        started.append((folder.name, command[2]))
        (folder / "results.json").write_text("{}")

    monkeypatch.setattr(subprocess, "run", run)
    wanted = [runs.Run("compare:dino", tmp_path / name) for name in "abcd"]
    wanted[0].folder.mkdir()
    (wanted[0].folder / "results.json").write_text("{}")
    assert dict(runs.train_all(wanted, jobs=2)) == dict.fromkeys(wanted, True)
    assert sorted(name for name, _ in started) == ["b", "c", "d"]
    assert {cores for _, cores in started} <= {"0,2", "1,3"}


def test_tables_go_between_their_marks(runs, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- scores -->\nold\n<!-- end of scores -->\nafter\n")
    runs.fill(page, "scores", runs.markdown([["a", "b"], [1, 2]]))
    table = "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    assert page.read_text() == f"before\n<!-- scores -->\n{table}<!-- end of scores -->\nafter\n"
    with pytest.raises(ValueError, match="needs one line <!-- other -->"):
        runs.fill(page, "other", "")


@pytest.mark.parametrize(
    "document, name",
    [
        ("README.md", "nine methods"),
        ("docs/results.md", "nine methods"),
        ("docs/results.md", "quickstart"),
        ("docs/results.md", "rule of claims"),
        *(("docs/results.md", f"claims: {paper}") for paper in PAPERS),
        ("docs/results.md", "evaluation"),
        ("docs/results.md", "reconstruction"),
        ("docs/results.md", "real sets"),
        ("docs/results.md", "real sets, GPU"),
        ("docs/benchmarks.md", "steps"),
        ("docs/benchmarks.md", "evals"),
    ],
)
def test_documents_have_the_places_that_scripts_fill(runs, root, tmp_path, document, name):
    page = tmp_path / "page.md"
    page.write_text((root / document).read_text(encoding="utf-8"))
    runs.fill(page, name, "| new |\n")
    assert f"<!-- {name} -->\n| new |\n<!-- end of {name} -->\n" in page.read_text()


def test_the_quickstart_table_has_margins_over_the_better_baseline(compare, tmp_path, capsys):
    for seed, knn in ((0, 70.0), (1, 74.0)):
        finished(
            tmp_path / f"run-{seed}",
            trained={"knn": knn, "linear": 75.0, "dense": 28.0},
            untrained={"knn": 52.0 + seed, "linear": 60.0, "dense": 20.0},
            raw={"knn": 28.0, "linear": 9.0, "dense": 27.0},
            speed=[1, 64, 64],
        )
    page = tmp_path / "page.md"
    page.write_text("<!-- quickstart -->\n<!-- end of quickstart -->\n")
    module = importlib.import_module("launch.quickstart_table")
    folders = [str(tmp_path / f"run-{seed}") for seed in (0, 1)]
    assert module.main([*folders, f"--document={page}"]) == 0
    text = page.read_text()
    margins = ["+19.5 ± 2.1 (+18.0)", "+15.0 ± 0.0 (+15.0)", "+1.0 ± 0.0 (+1.0)"]
    assert cells(text, "margin (worst seed)") == margins
    assert cells(text, "trained") == ["72.0 ± 2.8", "75.0 ± 0.0", "28.0 ± 0.0"]
    assert "Runs with different seeds: 2; minutes of training: 0, 0. Commit" in text


def test_provenance_names_the_commit_and_the_machine(runs):
    assert re.match(r"Commit \w+; .+, \d+ cores; Python 3\.\d+\.\d+, jax 0\.", runs.provenance())


@pytest.mark.parametrize("argument", ["--methods=dyno", "--optim.steps=7"])
def test_what_it_does_not_know_is_refused_by_name(compare, tmp_path, capsys, argument):
    with pytest.raises(SystemExit):
        compare.main([argument, "--workdir", str(tmp_path)])
    assert argument.removeprefix("--methods=") in capsys.readouterr().err


@pytest.mark.parametrize("method", recipes.METHODS)
def test_every_recipe_shares_images_batch_and_network(method):
    """Whole pictures are scored at the size of a view."""
    config, reference = (api.prepare(recipes.get_config(name)).config for name in (method, "dino"))
    assert config.data == reference.data
    assert config.evals.dense == reference.evals.dense
    for name in ("knn", "linear", "rank"):
        pictures = config.evals[name].data
        assert (pictures.kind, pictures.size) == ("photos", config.views.global_size)
        assert {**config.evals[name], "data": 0} == {**reference.evals[name], "data": 0}
    for key in ("batch_size", "lr", "warmup_epochs", "weight_decay"):
        assert config.optim[key] == reference.optim[key]
    for key in ("width", "depth", "heads", "patch", "position_std", "init_std"):
        assert config.model[key] == reference.model[key]
