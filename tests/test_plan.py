"""`ssl-jax plan`: figures of a tiny step on eight simulated devices, and its refusals; and
benchmarks/plans.py, the table of the papers' presets.
"""

import importlib.util
import json
import subprocess
import sys

import jax
import pytest
from jax.experimental import topologies
from ml_collections import ConfigDict

from benchmarks import plans
from ssl_jax import cli, methods, settings
from ssl_jax.cli import plan
from ssl_jax.config import MissingFile
from ssl_jax.runtime import sharding
from ssl_jax.train import estimate, program, setup, step
from tests import tiny
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def config():
    return settings.resolve(tiny.config("dino", mesh_data=0), num_records=1000, num_devices=8)


@pytest.fixture(scope="module")
def result(config):
    return plan.report(config, jax.devices(), "v5e")


def test_the_figures_are_those_of_the_step(config, result):
    mesh = sharding.make_mesh(config.mesh.data, config.mesh.fsdp)
    _, state = setup.on_mesh(methods.make(config), config, mesh)
    useful = step.flops_per_image(config, state) * config.optim.batch_size / 8
    assert useful <= sum(result["flops"].values()) <= 1.3 * useful  # views are made as well
    params = sum(4 * x.size for x in jax.tree.leaves(state.params))
    assert result["memory"]["params"] == params
    assert 1.9 * params < result["memory"]["opt_state"] < 2.1 * params  # but what is never trained
    # The gradient is added up once.
    assert params <= result["sent"]["all-reduce"] < 1.1 * params
    assert result["steps"] == config.run.total_steps
    assert result["device_hours"] == pytest.approx(8 * result["hours"])
    assert result["mfu"] == pytest.approx(useful / max(result["seconds"].values()) / 197e12)
    assert json.loads(json.dumps(result)).keys() == result.keys()


@pytest.mark.slow
def test_memory_and_products_grow_with_the_batch(config, result):
    other = ConfigDict(config.to_dict())
    other.optim.batch_size *= 4
    found = plan.report(other, jax.devices(), "v5e")
    assert found["memory"]["temporary"] > 2 * result["memory"]["temporary"] > 0
    before, now = (x["mfu"] * max(x["seconds"].values()) for x in (result, found))
    assert now == pytest.approx(4 * before, rel=0.01)


def test_the_report_for_people_says_what_would_fit(result):
    text, small = plan.text(result), plan.text(result | {"memory_of_device": 1.0})
    assert "v5e" in text and "DOES NOT FIT" not in text and "DOES NOT FIT" in small
    # Recomputation that memory makes needless is named.
    assert 'model.remat="dots"' in plan.text(result | {"remat": "block"})
    full = {"remat": "block", "memory_of_device": 1.5 * sum(result["memory"].values())}
    assert 'model.remat="dots"' not in plan.text(result | full)


def test_kernels_are_added_up_by_kind_and_by_line(result):
    kernels = [
        ("copy", "a.py:1", 3, 4e9),
        ("product", "a.py:1", 2, 5e9),
        ("copy", "b.py:2", 1, 7e9),
    ]
    step = program.Program({}, {}, [], kernels=tuple(program.Kernels(*row) for row in kernels))
    kinds, lines = plan.totals("kind", step), plan.totals("where", step)
    assert kinds == {"copy": {"times": 4, "bytes": 11e9}, "product": {"times": 2, "bytes": 5e9}}
    assert lines["a.py:1"] == {"times": 5, "bytes": 9e9} and list(lines)[0] == "a.py:1"
    found = {"kernels": kinds, "kernels_where": lines, "traffic": step.traffic()}
    assert "16.0 GB" in plan.text(result | found) and "GB" not in plan.text(result)


def test_seconds_by_hand():
    """2 MB all-reduced by 4 of 8 devices: 2 x 3/4 of it is sent; 1 TFLOP of each kind."""
    sent = [program.Collective("all-reduce", "f32[500000]", 2e6, 4, "", 1)]
    sent += [program.Collective("all-gather", "f32[500000]", 2e6, 0, "", 3)]
    machine = estimate.Machine({"bf16": 1e14, "f32": 5e13}, 1e9, 1e8, 1e9)
    step = program.Program({"bf16": 1e12, "f32": 1e12}, {}, sent, moved=3e6)
    found = estimate.seconds(step, machine, 8, state_bytes=1e6)
    assert found["compute"] == pytest.approx(0.03)
    assert found["memory"] == pytest.approx(2e6 / 1e8)
    assert found["communication"] == pytest.approx((1.5 * 2e6 + 3 * 7 / 8 * 2e6) / 1e9)
    kernels = (program.Kernels("copy", "", 3, 4e6), program.Kernels("product", "", 1, 5e6))
    machine, step = machine._replace(reached=0.5), step._replace(kernels=kernels)
    found = estimate.seconds(step, machine, 8, state_bytes=1e6)
    assert found["memory"] == pytest.approx(9e6 / 1e8 / 0.5)


def test_steps_that_cannot_be_planned(config, monkeypatch):
    """What libtpu says of one that is too large for a v5e."""

    def refused(lowered, **options):
        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO"
            " temporaries (322.86G) exceeds available HBM (15.75G)."
        )

    monkeypatch.setattr(program, "compile", refused)
    with pytest.raises(estimate.TooLarge, match=r"322\.86G.*model\.remat"):
        plan.report(config, jax.devices(), "v5e")


@pytest.mark.parametrize(
    "room, most, changes",  # most: memory of a step that the compiler accepts
    [
        (11, 99, {}),
        (11, 9, {"model.remat": "dots"}),
        (9, 99, {"model.remat": "dots"}),
        (5, 7, {"model.remat": "block", "optim.chunks": 2}),
        (1, 7, {"model.remat": "block", "optim.chunks": 4}),  # of a batch of 4 no more pieces
        (1, 1, None),
    ],
)
def test_what_makes_a_step_fit_is_found(config, monkeypatch, room, most, changes):
    def report(config, devices, name):
        kept = {"none": 10, "dots": 8, "block": 6}[config.model.remat]
        if kept / config.optim.chunks > most:
            raise estimate.TooLarge("too large")
        return {"memory": {"temporary": kept / config.optim.chunks}}

    monkeypatch.setattr(plan, "report", report)
    config = ConfigDict(config.to_dict())
    config.optim.batch_size = 4
    if changes is None:
        with pytest.raises(estimate.TooLarge):
            plan.fitted(config, jax.devices()[:1], "H100", room)
        return
    found, result = plan.fitted(config, jax.devices()[:1], "H100", room)
    assert result["changes"] == changes and result["memory_of_device"] == room
    assert found.optim.chunks == changes.get("optim.chunks", 1)


@pytest.mark.parametrize(
    "arguments, named",
    [
        ([], "--topology"),
        (["--topology=v5e:2x2", "--devices=2"], "--topology"),
        (["--devices=two"], "--devices"),
        (["--devices=0"], "--devices"),
        (["--devices=8", "--device=H1000"], "H1000"),
        (["--topology=v9:2x2"], "v9"),
        (["--topology=h100"], "h100"),
        (["--topology=H100:12"], "H100:12"),
    ],
)
def test_refusals(arguments, named, capsys):
    assert cli.main(["ssl-jax", "plan", "--config=quickstart", *arguments]) == cli.EXIT_INPUT
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("name, extra", [("a100:8", "gpu"), ("v5e:2x2", "tpu")])
def test_a_compiler_that_is_not_installed_has_an_extra(name, extra, monkeypatch):
    def without(**_):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(topologies, "get_topology_desc", without)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingFile, match=rf"\[{extra}\]"):
        estimate.topology(name)


@pytest.mark.slow
def test_the_command():
    command = [sys.executable, "-m", "ssl_jax", "plan", "--devices=4", "--json"]
    command += ["--config=tests/tiny_run.py:dino", "--config.mesh.data=0", "--largest-batch"]
    # With a network read from a file, which must not settle how many devices there are.
    weights = "--config.init_from=zoo/sop_quickstart.safetensors"
    command += [weights, "--config.init_model=True", "--config.init_only=backbone"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["mesh"] == {"data": 4, "fsdp": 1} and found["largest_batch"] > found["batch"]


def test_presets_are_asked_in_turn_and_what_fails_is_asked_again(
    result, tmp_path, monkeypatch, capsys
):
    asked = []

    def run(command, **_):
        asked.append(command[4])
        failed = "--config=sove:vits16" in command
        out = "" if failed else json.dumps(result)
        return subprocess.CompletedProcess(command, int(failed), out, "no memory")

    monkeypatch.setattr(plans.subprocess, "run", run)
    arguments = ["--topology", "v5e:16x16", f"--out={tmp_path}", "--only"]
    assert plans.main([*arguments, "sove:vits16,stellar:vith14"]) == 1
    assert asked == ["--config=sove:vits16", "--config=stellar:vith14"]
    out, err = capsys.readouterr()
    (row,) = (line for line in out.splitlines() if line.startswith("| stellar:vith14 mesh.fsdp"))
    assert f"| {len(jax.devices())} x v5e |" in row and "does not fit" not in row
    assert "sove:vits16" in err
    assert plans.main([*arguments, "sove:vits16,stellar:vith14"]) == 1
    assert len(asked) == 3  # only what failed
    with pytest.raises(SystemExit):
        plans.main([*arguments, "no:such"])
