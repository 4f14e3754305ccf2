"""launch/plans.py: what the papers' presets take, as a table, from what plan says."""

import json
import sys

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "launch"))
import plans

PLAN = {
    "mesh": {"data": 32, "fsdp": 8},
    "device": "v5e",
    "memory": {"params": 2**30, "temporary": 3 * 2**30},
    "memory_of_device": 16 * 2**30,
    "flops": {"bf16": 1.5e12, "f32 x3": 0.5e12},
    "sent": {"all-reduce": 2**20, "all-gather": 5 * 2**20, "all-to-all": 2**21},
    "bound": "compute",
    "seconds": {"compute": 0.02, "communication": 0.01},
    "images_per_second": 51200,
    "device_hours": 1234.5,
}


def test_a_row():
    preset = ("stellar:vith14", "stellar.target=pixel", "mesh.fsdp=8")
    expected = ["stellar:vith14 mesh.fsdp=8", "256 x v5e", "4.0 of 16", "2", "1, 5, 0, 2"]
    assert plans.row(preset, PLAN) == [*expected, "compute", "20.0", "51,200", "1,234"]
    assert plans.row(preset, PLAN | {"memory_of_device": 2**31})[2] == "4.0 of 2 (does not fit)"


def test_presets_are_asked_in_turn_and_what_fails_is_named(tmp_path, monkeypatch, capsys):
    asked = []

    def run(command, **_):
        asked.append(command[4:])
        failed = "--config=sove:vits16" in command
        out = "" if failed else json.dumps(PLAN)
        return plans.subprocess.CompletedProcess(command, int(failed), out, "no memory")

    monkeypatch.setattr(plans.subprocess, "run", run)
    arguments = ["--topology", "v5e:16x16", "--only", "sove:vits16,stellar:vith14"]
    arguments += [f"--out={tmp_path}"]
    assert plans.main(arguments) == 1
    assert [command[0] for command in asked] == ["--config=sove:vits16", "--config=stellar:vith14"]
    out, err = capsys.readouterr()
    assert out.count("| stellar:vith14 mesh.fsdp=8 |") == 1
    assert "FAILED: sove:vits16 --topology" in err
    assert plans.main(arguments) == 1 and len(asked) == 3  # only what failed is asked again
    with pytest.raises(SystemExit):
        plans.main(["--topology", "v5e:16x16", "--only", "no:such"])
