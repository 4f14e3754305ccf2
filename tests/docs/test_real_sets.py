"""launch/real_sets.py: the time is shared out, nothing is done twice, weights are kept."""

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
from tests.data.records import write_tfds
from tests.docs.scripts import cells, finished, load

script = load("real_sets")


def test_every_run_gets_an_equal_share_of_the_time(tmp_path, monkeypatch):
    def times(configs, rounds):
        return {"dino": [0.1, 0.1, 9.0], "mae": [0.5, 0.5, 0.5]}

    names = ["dino:cifar10", "mae:cifar10", "dino:imagenette96"]
    with mock.patch.object(script.bench_steps, "times", autospec=True, side_effect=times):
        plan = script.planned(names, 10.0, tmp_path)
    share = 600 * 0.75 / 3
    dino, mae = round(share / 0.1), round(share / 0.5)
    assert plan == {"dino:cifar10": dino, "mae:cifar10": mae, "dino:imagenette96": dino}
    # After a kill: the same numbers, and no timing.
    monkeypatch.setattr(script.bench_steps, "times", lambda *_: 1 / 0)
    assert script.planned(names, 99.0, tmp_path) == plan
    run = script.run_of("sop:imagenette96", 1000, tmp_path, ["--config.data.dir=/data"])
    assert run.folder == tmp_path / "sop-imagenette96" and run.config == "sop:imagenette96"
    keys = ("optim.steps=1000", "evals.every_steps=250", "data.dir=/data")
    assert run.arguments == tuple(f"--config.{key}" for key in keys)


def test_tables_weights_and_failures(tmp_path, monkeypatch, capsys):
    """DINO's run is there, MAE's fails."""
    monkeypatch.setattr(script, "planned", lambda names, *_: dict.fromkeys(names, 100))
    finished(
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
    assert "mae:cifar10: FAILED" in capsys.readouterr().out
    text = (tmp_path / "table.md").read_text()
    assert cells(text, "dino:cifar10")[:4] == ["60.0 (+14.0)", "65.0 (+28.0)", "100", "100.0"]
    assert cells(text, "raw pixels, cifar10")[:2] == ["46.0", "37.0"]
    record = json.loads((tmp_path / "records.jsonl").read_text())
    assert record["run"] == "dino-cifar10" and record["curve"]["knn"] == [30, 55, 60]
    # What is on record is neither trained nor planned.
    assert script.main([*arguments, "--finished"]) == 0
    assert (tmp_path / "table.md").read_text() == text
    monkeypatch.undo()
    assert ssl_jax.load(tmp_path / "dino-cifar10.safetensors").config.method == "dino"


@pytest.mark.nightly
def test_the_gpu_script_times_trains_scores_and_keeps_weights(root, tmp_path):
    """As a user runs it, on ten pictures of 8 pixels that stand for Imagenette; then again."""
    write_tfds(tmp_path, "imagenette96", {"train": range(10), "validation": [10, 11]}, mask=False)
    small = ["optim.batch_size=8", "model.depth=1", "views.local_count=0", "dino.prototypes=16"]
    command = ["bash", str(root / "launch" / "gpu_results.sh"), str(tmp_path), "--methods=dino"]
    command += ["--sets=imagenette96", "--minutes=0.01", f"--workdir={tmp_path / 'runs'}"]
    command += [f"--config.{change}" for change in small]
    environment = os.environ | {"PYTHON": sys.executable}
    for _ in range(2):
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment
        )
        assert result.returncode == 0, result.stdout + result.stderr
        scores = cells(result.stdout, "dino:imagenette96")
        assert float(scores[0].split()[0]) in (0, 50, 100) and int(scores[2]) >= 1
    assert (tmp_path / "runs" / "curves.png").is_file()
    kept = ssl_jax.load(tmp_path / "runs" / "dino-imagenette96.safetensors")
    assert kept.config.model.depth == 1
    log = (tmp_path / "runs" / "dino-imagenette96.log").read_text()
    assert log.count("compiling the step") == 1  # the second time nothing was trained
