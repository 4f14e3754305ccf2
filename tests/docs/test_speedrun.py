"""launch/speedrun.py: what a run is, the leaderboard's rows, weights, curves."""

import json
import os
import subprocess
import sys

import jax
import pytest

import ssl_jax
from launch import speedrun as script
from ssl_jax import api
from ssl_jax.config import InputError
from ssl_jax.methods.encoder import Encoder
from tests import tiny
from tests.data.records import write_tfds
from tests.docs.scripts import cells, finished, page


def ended(folder, knn):
    """A finished run of 100 steps of 64 images, 10 a second."""
    finished(
        folder,
        trained={"knn": knn, "linear": 65.0},
        untrained={"knn": 30.0, "linear": 35.0},
        raw={"knn": 46.0, "linear": 37.0},
        speed=[1, 640, 640],
    )
    (folder / "evals.csv").write_text(f"step,knn\n0,30\n50,55\n100,{knn}\n")


def test_rows_weights_curves_and_failures(tmp_path, monkeypatch, capsys):
    """DINO's runs are there, MAE's fails."""
    for seed, knn in ((0, 60.0), (1, 62.0)):
        ended(tmp_path / f"dino-cifar10-cpu-{seed}", knn)
    run = api.prepare(tiny.config("dino"))
    encoder = Encoder(run.config, run.method.init(jax.random.key(0))[0])
    called = []
    monkeypatch.setattr(script.ssl_jax, "load", lambda folder: encoder)
    monkeypatch.setattr(script.runs, "execute", lambda command, _: called.append(command))
    document = page(tmp_path / "docs" / "speedrun.md", "leaderboard")
    readme = page(tmp_path / "README.md", "speedrun")
    (tmp_path / "docs" / "pictures").mkdir()
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "RECORDS", tmp_path / "docs" / "records.jsonl")
    words = ["cpu", "--data=/data", "--methods=dino,mae", "--sets=cifar10", "--seeds=0,1"]
    assert script.main([*words, f"--workdir={tmp_path}", "--write"]) == 1
    assert [command[4] for command in called] == ["--config=mae:cifar10"] * 2
    assert {"--config.data.dir=/data", "--config.seed=1"} <= {*called[1]}
    assert "mae-cifar10-cpu-0: FAILED" in capsys.readouterr().out
    text = document.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| DINO")]
    # k-NN, linear, scenes, images seen, minutes of training; the best first.
    batch = encoder.config.optim.batch_size
    seen = f"{100 * batch / 1e6:.2f} M"
    assert [row.split(" | ")[2:6] for row in rows] == [
        [knn, "65.0", "-", seen] for knn in ("62.0", "60.0")
    ]
    assert cells(text, "raw pixels")[1:3] == ["46.0", "37.0"]
    numbers = ["30.0", "46.0", "62.0", "35.0", "37.0", "65.0"]
    assert cells(readme.read_text(), "cifar10") == ["60 min on 2 cores", "DINO", *numbers]
    records = [json.loads(line) for line in script.RECORDS.read_text().splitlines()]
    assert [record["run"] for record in records] == [
        f"dino-cifar10-cpu-{seed}-0123456" for seed in (0, 1)
    ]
    assert "--methods dino --sets cifar10 --seeds 1" in records[1]["command"]
    assert (tmp_path / "docs" / "pictures" / "speedrun_cpu.png").is_file()
    monkeypatch.undo()
    assert ssl_jax.load(tmp_path / "dino-cifar10-cpu-0.safetensors").config.method == "dino"


def test_without_sets_the_photographs_are_learned(tmp_path):
    args = script.argparse.Namespace(budget="gpu", data="", workdir=tmp_path)
    assert script.run_of(args, "sop", "photos", "0", []).config == "sop:photos"
    assert script.run_of(args, "sop", "cifar10", "0", []).config == "sop:cifar10_gpu"
    # Imagenette under the name that TFDS knows.
    (tmp_path / "imagenette" / "160px-v2").mkdir(parents=True)
    args.data = str(tmp_path)
    run = script.run_of(args, "sop", "imagenette96", "0", [])
    assert "--config.data.name=imagenette/160px-v2" in run.arguments


def test_what_is_not_there_or_of_another_command_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(script.runs, "execute", lambda *_: pytest.fail("trained"))
    monkeypatch.chdir(tmp_path)
    words = ["cpu", "--methods=dino", f"--workdir={tmp_path}"]
    with pytest.raises(InputError, match=str(tmp_path / "nothing")):
        script.main([*words, "--data=nothing"])
    (tmp_path / "cifar10").mkdir()
    ended(tmp_path / "dino-cifar10-cpu-0", 60.0)
    command = ["--config=dino:cifar10", "--config.seed=0", "--config.optim.epochs=1"]
    environment = tmp_path / "dino-cifar10-cpu-0" / "environment.json"
    environment.write_text(json.dumps({"command": command}))
    with pytest.raises(InputError, match="optim.epochs=1"):
        script.main([*words, "--data=."])


def test_folders_are_those_of_the_caller(root, tmp_path):
    """The script's Python prints where it is and how it finds the checkout."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$PWD $PYTHONPATH"\n')
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", os.path.relpath(root / "launch" / "speedrun.sh", tmp_path), "gpu"],
        env=os.environ | {"PYTHON": "./python", "PYTHONPATH": "", "CDPATH": str(root)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{tmp_path} {root}\n"


@pytest.mark.nightly
def test_the_script_end_to_end(root, tmp_path):
    """As a user runs it, on ten pictures of 8 pixels that stand for Imagenette; then again."""
    write_tfds(tmp_path, "imagenette96", {"train": range(10), "validation": [10, 11]}, mask=False)
    small = ["optim.batch_size=8", "model.depth=1", "views.local_count=0", "dino.prototypes=16"]
    small += ["optim.steps=2", "model.stem=linear"]
    command = ["bash", str(root / "launch" / "speedrun.sh"), "gpu", f"--data={tmp_path}"]
    command += ["--methods=dino", "--sets=imagenette96", f"--workdir={tmp_path / 'runs'}"]
    command += [f"--config.{change}" for change in small]
    environment = os.environ | {"PYTHON": sys.executable}
    for _ in range(2):
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment
        )
        assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "runs" / "curves.png").is_file()
    log = (tmp_path / "runs" / "dino-imagenette96-gpu-0.log").read_text()
    assert log.count("compiling the step") == 1  # the second time nothing was trained
