"""launch/real_sets.py: the time is shared out, nothing is done twice, weights are kept."""

import importlib
import json
import os
import subprocess
import sys
from unittest import mock

import jax
import pytest

import ssl_jax
from ssl_jax import api
from ssl_jax.methods.encoder import Encoder
from tests import tiny
from tests.conftest import ROOT
from tests.data.records import write_tfds
from tests.test_compare import cells
from tests.test_compare import finished as finished_run


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "launch"))
        return importlib.import_module("real_sets")


def test_every_run_gets_an_equal_share_of_the_time(script, tmp_path, monkeypatch):
    def times(configs, rounds):
        return {"dino": [0.1, 0.1, 9.0], "mae": [0.5, 0.5, 0.5]}

    names = ["dino:cifar10", "mae:cifar10", "dino:imagenette96"]
    with mock.patch.object(script.bench_steps, "times", autospec=True, side_effect=times):
        plan = script.planned(names, 10.0, tmp_path)
    share = 600 * 0.75 / 3
    dino, mae = round(share / 0.1), round(share / 0.5)
    assert plan == {"dino:cifar10": dino, "mae:cifar10": mae, "dino:imagenette96": dino}
    # after a kill: the same numbers, and no timing
    monkeypatch.setattr(script.bench_steps, "times", lambda *_: 1 / 0)
    assert script.planned(names, 99.0, tmp_path) == plan


def test_a_run_is_a_preset_for_so_many_steps(script, tmp_path):
    run = script.run_of("sop:imagenette96", 1000, tmp_path, ["--config.data.dir=/data"])
    assert run.folder == tmp_path / "sop-imagenette96" and run.config == "sop:imagenette96"
    assert run.arguments == (
        "--config.optim.steps=1000",
        "--config.evals.every_steps=250",
        "--config.data.dir=/data",
    )


def test_tables_weights_and_failures(script, tmp_path, monkeypatch, capsys):
    """DINO's run is there, MAE's fails."""
    monkeypatch.setattr(script, "planned", lambda names, *_: dict.fromkeys(names, 100))
    finished_run(
        tmp_path / "dino-cifar10",
        trained={"knn": 60.0, "linear": 65.0},
        untrained={"knn": 30.0, "linear": 35.0},
        raw={"knn": 46.0, "linear": 37.0},
        speed=[1, 640, 640],
    )
    (tmp_path / "dino-cifar10" / "evals.csv").write_text("step,knn\n0,30\n50,55\n100,60\n")
    run = api.prepare(tiny.config("dino"))
    encoder = Encoder(run.config, run.method.init(jax.random.key(0))[0])
    monkeypatch.setattr(script.ssl_jax, "load", lambda folder: encoder)
    monkeypatch.setattr(
        subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 0, "", "")
    )
    arguments = ["--data=/data", "--methods=dino,mae", "--sets=cifar10", f"--workdir={tmp_path}"]
    assert script.main(arguments) == 1
    out = capsys.readouterr().out
    assert "mae:cifar10: FAILED, see" in out
    text = (tmp_path / "table.md").read_text()
    assert cells(text, "dino:cifar10")[:4] == ["60.0 (+14.0)", "65.0 (+28.0)", "100", "100.0"]
    assert cells(text, "raw pixels, cifar10")[:2] == ["46.0", "37.0"]
    assert (tmp_path / "curves.png").stat().st_size > 5000
    record = json.loads((tmp_path / "records.jsonl").read_text())
    assert record["run"] == "dino-cifar10" and record["curve"]["knn"] == [30, 55, 60]
    monkeypatch.undo()
    kept = ssl_jax.load(tmp_path / "dino-cifar10.safetensors")
    assert kept.config.method == "dino"


def test_steps_given_are_not_planned_and_what_is_on_record_needs_no_data(
    script, tmp_path, monkeypatch, capsys
):
    """DINO's run is on record, so MAE's alone is trained, beside others; then nothing is."""
    record = {
        **{kind: {"knn": 50.0, "linear": 55.0} for kind in ("trained", "untrained", "raw")},
        "ms": 10.0,
        "minutes": 1.0,
        "curve": {"step": [0, 5], "knn": [30, 50]},
        "made": {"commit": "abc", "processor": "P", "cores": 2, "python": "3", "jax": "0"},
    }
    record["made"]["accelerators"] = "1 x GPU"
    file = tmp_path / "all.jsonl"
    file.write_text(json.dumps({"run": "dino-cifar10"} | record) + "\n")
    asked = []

    def train_all(wanted, jobs, records):
        asked.append(([(run.config, run.arguments[0]) for run in wanted], jobs))
        return [(run, records["dino-cifar10"]) for run in wanted if run.config == "dino:cifar10"]

    monkeypatch.setattr(script, "train_all", train_all)
    monkeypatch.setattr(script, "planned", lambda names, *_: {} if not names else 1 / 0)
    arguments = ["--methods=mae,dino", "--sets=cifar10", f"--workdir={tmp_path}"]
    arguments += [f"--records={file}", "--steps=7", "--jobs=3"]
    with pytest.raises(SystemExit):
        script.main(arguments)
    assert "--data" in capsys.readouterr().err
    assert script.main([*arguments, "--data=/data"]) == 0
    assert sorted(asked[-1][0])[1] == ("mae:cifar10", "--config.optim.steps=7")
    assert len(asked[-1][0]) == 2 and asked[-1][1] == 3
    assert script.main([*arguments, "--finished"]) == 0
    assert [name for name, _ in asked[-1][0]] == ["dino:cifar10"]
    assert "P, 2 cores, 1 x GPU; Python 3" in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize("argument", ["--methods=dyno", "--sets=cifar100", "--epochs=7"])
def test_what_it_does_not_know_is_refused_by_name(script, tmp_path, capsys, argument):
    with pytest.raises(SystemExit):
        script.main([argument, "--data=/data", f"--workdir={tmp_path}"])
    assert argument.split("=")[1 if "epochs" not in argument else 0] in capsys.readouterr().err


@pytest.mark.parametrize("name", ["gpu_results.sh", "real_sets.sh"])
def test_the_scripts_want_the_folder_of_the_data(root, name):
    command = ["bash", str(root / "launch" / name)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and "FOLDER_OF_TFDS_SETS" in result.stderr


def test_data_that_are_not_there_are_one_line(root, tmp_path):
    script = root / "launch" / "real_sets.py"
    command = [sys.executable, str(script), "--data", str(tmp_path / "none"), "--methods=dino"]
    command += ["--sets=imagenette96", f"--workdir={tmp_path / 'runs'}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "real_sets.py: " in line]
    assert f"data.dir: {tmp_path / 'none'} does not exist" in line
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_the_gpu_script_times_trains_scores_and_keeps_weights(root, tmp_path):
    """As a user runs it, on ten pictures of 8 pixels that stand for Imagenette; then again."""
    write_tfds(tmp_path, "imagenette96", {"train": range(10), "validation": [10, 11]}, mask=False)
    small = ["optim.batch_size=8", "model.depth=1", "views.local_count=0", "dino.prototypes=16"]
    command = ["bash", str(root / "launch" / "gpu_results.sh"), str(tmp_path)]
    command += [
        "--methods=dino",
        "--sets=imagenette96",
        "--minutes=0.01",
        f"--workdir={tmp_path / 'runs'}",
    ]
    command += [f"--config.{change}" for change in small]
    environment = os.environ | {"PYTHON": sys.executable}
    for _ in range(2):
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment
        )
        log = tmp_path / "runs" / "dino-imagenette96.log"
        assert result.returncode == 0, result.stdout + result.stderr
        scores = cells(result.stdout, "dino:imagenette96")
        assert float(scores[0].split()[0]) in (0, 50, 100) and int(scores[2]) >= 1
    assert (tmp_path / "runs" / "curves.png").stat().st_size > 5000
    kept = ssl_jax.load(tmp_path / "runs" / "dino-imagenette96.safetensors")
    assert kept.config.model.depth == 1
    assert log.read_text().count("compiling the step") == 1  # the second time nothing was trained
