"""Faults thrown at runs: nothing that differs passes for equal, and a short form of the command."""

import json

import numpy as np
import pytest

from ssl_jax import api
from ssl_jax.train import checkpoint, loop
from tests import chaos, compiling, tiny
from tests.process import runs


def test_what_differs_is_named(tmp_path):
    state = loop.fresh_state(api.prepare(tiny.config("mae")))
    bits = np.asarray(state.params["backbone"]["cls"]).view(np.uint32).copy()
    bits.flat[3] ^= 1  # the last digit of one number
    backbone = state.params["backbone"] | {"cls": bits.view(np.float32)}
    other = state._replace(params=state.params | {"backbone": backbone})
    for name, saved, loss, score in (("whole", state, 0.5, 1), ("other", other, 0.25, 2)):
        store = checkpoint.Checkpoints(tmp_path / name / "checkpoints")
        store.save(saved, {"config": "{}", "record": 0})
        store.wait()
        store.close()
        row = {"step": 1, "loss": loss, "images_per_second": score}
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        (tmp_path / name / "results.json").write_text(json.dumps({"trained": score}))
    assert runs.differences(tmp_path / "whole", tmp_path / "whole").names == ()
    names = runs.differences(tmp_path / "other", tmp_path / "whole").names
    assert names == ("params/backbone/cls", "metrics, step 1", "results.json")


@pytest.mark.nightly
@pytest.mark.parametrize("method, count", [("sop", 6), ("cribo:2", 1)])
def test_faults_change_nothing(method, count, tmp_path, monkeypatch, capsys):
    arguments = [f"--faults={count}", f"--method={method}", f"--out={tmp_path}", "--minutes=15"]
    monkeypatch.setenv("XLA_FLAGS", compiling.flags())
    for _ in range(2):  # started again, it has nothing left to do
        assert chaos.main(arguments) == 0, capsys.readouterr().out
    assert f"{count} survived" in capsys.readouterr().out
