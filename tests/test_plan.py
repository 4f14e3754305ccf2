"""`ssl-jax plan`: figures of a tiny step on eight simulated devices, and its refusals."""

import json
import subprocess
import sys

import jax
import pytest
from ml_collections import ConfigDict

from ssl_jax import methods, settings
from ssl_jax.cli import plan
from ssl_jax.config import InputError
from ssl_jax.train import estimate, loop, program, sharding, step
from tests import tiny


@pytest.fixture(scope="module")
def config():
    return settings.resolve(tiny.config("dino", mesh_data=0), num_records=1000, num_devices=8)


@pytest.fixture(scope="module")
def result(config):
    return plan.report(config, jax.devices(), "v5e")


def test_the_figures_are_those_of_the_step(config, result):
    mesh = sharding.make_mesh(config.mesh.data, config.mesh.fsdp)
    _, state = loop.on_mesh(methods.make(config), config, mesh)
    useful = step.flops_per_image(config, state) * config.optim.batch_size / 8
    assert useful <= sum(result["flops"].values()) <= 1.3 * useful  # views are made as well
    params = sum(4 * x.size for x in jax.tree.leaves(state.params))
    assert result["memory"]["params"] == params
    assert 1.9 * params < result["memory"]["opt_state"] < 2.1 * params  # but what is never trained
    # The gradient is added up once.
    assert params <= result["sent"]["all-reduce"] < 1.1 * params
    assert result["steps"] == config.run.total_steps
    assert result["device_hours"] == pytest.approx(8 * result["hours"])


def test_the_report_for_people(result):
    text = plan.text(result)
    assert "dino on 8 x v5e (data 8, fsdp 1), batch 8: 1 images each" in text
    assert "if none of it stays on the chip" in text
    assert "fits" in text and "bound by" in text and "train/sharding.py:" in text
    small = result | {"memory_of_device": 1.0}
    assert "DOES NOT FIT" in plan.text(small) and "to make it fit: " in plan.text(small)
    assert json.loads(json.dumps(result)).keys() == result.keys()


def test_seconds_by_hand():
    """2 MB all-reduced by 4 of 8 devices: 2 x 3/4 of it is sent; 1 TFLOP of each kind."""
    sent = [program.Collective("all-reduce", "f32[500000]", 2e6, 4, "", 1)]
    sent += [program.Collective("all-gather", "f32[500000]", 2e6, 0, "", 3)]
    machine = estimate.Machine({"bf16": 1e14, "f32": 5e13}, 1e9, 1e8, 1e9)
    step = program.Program({"bf16": 1e12, "f32": 1e12}, {}, sent, moved=3e6)
    found = estimate.seconds(step, machine, 8, held=1e6)
    assert found["compute"] == pytest.approx(0.03)
    assert found["memory"] == pytest.approx(2e6 / 1e8)
    assert found["communication"] == pytest.approx((1.5 * 2e6 + 3 * 7 / 8 * 2e6) / 1e9)


def test_recomputation_that_memory_makes_needless_is_named(result):
    assert "compute less twice" not in plan.text(result)  # remat is "none"
    assert 'model.remat="dots"' in plan.text(result | {"remat": "block"})
    assert 'model.remat="none"' in plan.text(result | {"remat": "dots"})
    full = {"remat": "block", "memory_of_device": 1.5 * sum(result["memory"].values())}
    assert "compute less twice" not in plan.text(result | full)


def test_a_step_that_the_compiler_of_a_device_refuses(config, monkeypatch):
    """What libtpu says of one that is too large for a v5e."""

    def refused(lowered, **options):
        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO"
            " temporaries (322.86G) exceeds available HBM (15.75G)."
        )

    monkeypatch.setattr(program, "compile", refused)
    with pytest.raises(estimate.TooLarge, match=r"\(322.86G\) .* To make it fit: model.remat"):
        plan.report(config, jax.devices(), "v5e")


def test_one_device_is_refused(config):
    single = ConfigDict(config.to_dict())
    single.mesh.data = 1
    with pytest.raises(InputError, match="mesh.data=0 takes all 8 devices"):
        plan.report(single, jax.devices(), "v5e")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "give one of --topology=SLICE"),
        (["--topology=v5e:2x2", "--devices=2"], "give one of --topology=SLICE"),
        (["--devices=two"], "--devices is 'two'; it must be a whole number"),
        (["--devices=0"], "--devices is 0; it must be 1 or more"),
        (["--devices=8", "--device=H1000"], "H100"),
        (["--topology=v9:2x2"], 'unknown TPU "v9"'),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        plan.run(["plan", "--config=quickstart", *arguments])


@pytest.mark.slow
def test_the_command(root):
    command = [sys.executable, "-m", "ssl_jax", "plan", "--config=quickstart", "--devices=4"]
    done = subprocess.run(
        [*command, "--json", "--largest-batch"], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["mesh"] == {"data": 4, "fsdp": 1} and found["largest_batch"] > found["batch"]
