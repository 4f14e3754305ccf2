"""launch/reconstruct_sweep.py: its runs, and what it makes of networks that are there."""

import importlib
import json

import numpy as np
import pytest

from ssl_jax import api
from ssl_jax import config as config_lib
from ssl_jax.cli import arguments
from tests.conftest import ROOT
from tests.test_compare import finished


@pytest.fixture(scope="module")
def sweep():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "launch"))
        return importlib.import_module("reconstruct_sweep")


def test_its_runs_can_work_and_are_those_of_claims_and_compare(sweep, tmp_path):
    wanted = sweep.wanted_runs([1, 16], [0, 1], tmp_path)
    names = ["stellar+model.queries=1", "stellar", "mae"]
    assert [run.folder.name for run in wanted.values()] == [f"{n}-{s}" for n in names for s in "01"]
    for run in wanted.values():
        _, config = arguments.parse(["train", *run.arguments], config_lib.load(run.config))
        assert api.prepare(config).config.run.total_steps > 0
        assert config.views.global_size == 64  # the same images for all


def test_networks_that_are_there_are_compared(sweep, tmp_path, monkeypatch, capsys):
    """Scores of decoders are kept, so nothing is trained and no network is loaded."""
    monkeypatch.setattr(sweep.runs.subprocess, "run", lambda *a, **k: pytest.fail("trained again"))
    monkeypatch.setattr(sweep, "case_of", lambda *a: pytest.fail("measured again"))
    psnr = {"1": 14.0, "4": 16.0, sweep.DENSE: 25.0}
    for (name, seed), run in sweep.wanted_runs([1, 4], [0, 1], tmp_path).items():
        scores = {"knn": 50.0, "psnr": 13.0 + seed}
        finished(run.folder, trained=scores, untrained={}, raw={}, speed=[1, 400])
        known = {"images": 2048, "decode": psnr[name] + seed, "decode_ssim": 0.5}
        (run.folder / "decode.json").write_text(json.dumps(known))
        shown = np.random.default_rng(0).random((6, 8, 8, 3))
        np.savez(run.folder / "decode.npz", images=shown, rebuilt=shown * 0.9)
    page = tmp_path / "docs" / "results.md"
    (page.parent / "pictures").mkdir(parents=True)
    page.write_text("<!-- reconstruction -->\n<!-- end of reconstruction -->\n")
    monkeypatch.setattr(sweep, "ROOT", tmp_path)
    monkeypatch.setattr(sweep.runs, "provenance", lambda *folders: "Made here.")
    command = ["--tokens", "1,4", "--seeds", "0,1", "--workdir", str(tmp_path), "--write"]
    assert sweep.main(command) == 0
    rows = (tmp_path / "reconstruct.md").read_text().splitlines()
    assert "| 1 | 50.0 ± 0.0 | 13.5 ± 0.7 | 14.5 ± 0.7 | 50.0 ± 0.0 |" in rows
    assert rows[-1].startswith("| dense MAE | 50.0 ± 0.0 |") and "25.5 ± 0.7" in rows[-1]
    assert "\n".join(rows) in capsys.readouterr().out
    assert "\n".join(rows) in page.read_text() and "Seeds 0, 1. Made here." in page.read_text()
    assert (page.parent / "pictures" / "reconstruct_by_r.png").is_file()
    for name in ("reconstruct_by_r", "reconstruct_images"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000


def test_the_curve_is_of_sorted_numbers_of_tokens(sweep):
    scores = {("8", 0): {"decode": 18.0}, ("2", 0): {"decode": 15.0}, ("2", 1): {"decode": 16.0}}
    new, own, dense = sweep.chart(scores | {(sweep.DENSE, 0): {"decode": 22.0}}).curves
    assert new.x == [2, 8] and new.y == [15.5, 18.0] and dense.y == [22.0, 22.0]
    assert np.isnan(own.y).all()


def test_what_it_does_not_know_is_refused(sweep, capsys, tmp_path):
    with pytest.raises(SystemExit):
        sweep.main(["--tokens", "0,1", "--workdir", str(tmp_path)])
    assert "at least 1" in capsys.readouterr().err
