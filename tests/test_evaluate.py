"""launch/evaluate.py: its rows can work, results are kept, sets that are not there are named."""

import importlib
import json

import pytest
from ml_collections import ConfigDict

from ssl_jax import evals, settings
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def script():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "launch"))
        return importlib.import_module("evaluate")


@pytest.fixture
def photos(script, monkeypatch):
    """One row that needs no download."""
    data = dict(kind="photos", size=32)
    row = script.Row("knn", "photographs", ("knn", "knn_k10"), dict(data=data, k=(5, 10)))
    monkeypatch.setattr(script, "ROWS", {"knn_photos": row})


def test_every_row_is_an_evaluation_that_can_work(script):
    config = settings.base_config("sop")
    for name, row in script.ROWS.items():
        config.evals[name] = evals.new(row.type, **row.changes)
        config.evals[name].data.dir = "/data"
    config.evals.tasks = tuple(script.ROWS)
    settings.check_evals(ConfigDict(config))
    yolos = config.evals.yolos_bccd
    # learned by heart: the images of the test are those of the training
    assert yolos.data.split == yolos.data.test_split
    assert yolos.train_examples == yolos.test_examples == 32


def test_results_are_shown_kept_and_written(script, photos, tmp_path, monkeypatch, capsys):
    page = tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    page.write_text("<!-- evaluation -->\nold\n<!-- end of evaluation -->\n")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    command = ["zoo/sop_quickstart", "--data", "any", "--write"]
    command += ["--workdir", str(tmp_path), "--examples", "60"]
    assert script.main(command) == 0
    results = json.loads((tmp_path / "knn_photos" / "results.json").read_text())
    assert set(results) == {"untrained network", "raw pixels", "trained"}
    shown = [
        f"{results[row]['knn_photos_knn']:.1f} / {results[row]['knn_photos_knn_k10']:.1f}"
        for row in results
    ]
    text = page.read_text()
    assert f"| knn_photos | k-NN | photographs | {' | '.join(shown)} |" in text
    assert "old" not in text and "sop" in text
    assert "knn_photos" in capsys.readouterr().out
    monkeypatch.setattr(script.report, "Evaluation", lambda *_: pytest.fail("made again"))
    assert script.main(command) == 0


def test_a_set_that_is_not_there_is_left_out_and_named(script, tmp_path, capsys):
    command = ["zoo/sop_quickstart", "--workdir", str(tmp_path)]
    assert script.main([*command, "--rows", "knn_cifar10,davis", "--data", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "knn_cifar10: left out, " in out and str(tmp_path) in out
    assert "davis: left out, no folder given for DAVIS 2016" in out
    with pytest.raises(SystemExit):
        script.main([*command, "--rows", "knn_mnist"])
    assert "knn_mnist" in capsys.readouterr().err
