"""Bit-exact resume: in process at every step, and of whole runs killed with SIGKILL, also in the
middle of a save.
"""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from ssl_jax import api
from ssl_jax.config import InputError
from ssl_jax.data import loader
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.decode import Unreadable
from ssl_jax.evals import report
from ssl_jax.methods import METHODS
from ssl_jax.train import checkpoint, log, loop, sharding, step
from tests import compiling, tiny, tiny_run

ROOT = Path(__file__).parent.parent.parent
NAMES = sorted(METHODS)


@pytest.mark.parametrize(
    "name", [n if n in ("dino", "sop") else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_resume_at_every_step_is_bit_exact(name, tmp_path):
    check_resume(name, tmp_path, cuts=range(9))


@pytest.mark.slow
@pytest.mark.parametrize("name", tiny.VARIANTS)
def test_resume_of_a_variant_is_bit_exact(name, tmp_path):
    check_resume(name, tmp_path, cuts=[6])  # in the middle of an epoch, with full memories


def check_resume(name, tmp_path, cuts):
    run = api.prepare(tiny.config(name))
    shardings = jax.tree.map(lambda x: x.sharding, run.abstract)
    train_step = step.compile_step(
        step.make_step(run.method, run.optimizer, run.config), run.mesh, shardings
    )
    saved = checkpoint.Checkpoints(tmp_path / "checkpoints", keep=100)
    total = 9  # crosses an epoch (4 steps), the wrap-around of both memories and a temperature step

    def go_on(state, record, save=False):
        batches, rows = loop.open_loader(run, record), []
        for _ in range(int(state.step), total):
            if save and int(state.step) in cuts:
                saved.save(state, {"record": batches.state()["record"]})
            state, metrics = train_step(state, sharding.put_batch(next(batches), run.mesh))
            rows.append(log.scalars(metrics))
        batches.close()
        return state, rows

    whole, rows = go_on(loop.fresh_state(run), 0, save=True)
    saved.wait()
    for cut in cuts:
        restored = saved.restore(cut, run.abstract)
        state, rest = go_on(restored, saved.meta(cut)["record"])
        assert tiny.identical(state, whole), f"state differs after a cut at step {cut}"
        assert rest == rows[cut:], f"metrics differ after a cut at step {cut}"
    saved.close()


@pytest.mark.parametrize("name", ["sop"])
def test_a_checkpoint_moves_between_meshes(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sharding, "_MIN_SIZE", 64)  # so that the tiny network is cut
    one = api.prepare(tiny.config(name))
    eight = api.prepare(tiny.config(name, mesh_data=2, mesh_fsdp=4))
    saved = checkpoint.Checkpoints(tmp_path / "checkpoints")
    state = loop.fresh_state(eight)
    saved.save(state, {})
    saved.wait()
    restored = saved.restore(0, one.abstract)
    assert tiny.identical(restored, state)
    assert all(len(x.sharding.device_set) == 1 for x in jax.tree.leaves(restored.params))
    saved.close()


def command(name, workdir, *extra):
    return [
        sys.executable,
        "-m",
        "ssl_jax",
        "train",
        f"--config=tests/tiny_run.py:{name}",
        f"--workdir={workdir}",
        *extra,
    ]


def undisturbed(name, workdir, *extra):
    subprocess.run(
        command(name, workdir, *extra),
        cwd=ROOT,
        env=compiling.environment(),
        check=True,
        capture_output=True,
        timeout=300,
    )


def killed_when(condition, name, workdir, *extra) -> bool:
    """Starts the run and kills it once `condition(workdir)` holds; False if it ended first."""
    quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    environ = compiling.environment()
    process = subprocess.Popen(command(name, workdir, *extra), cwd=ROOT, env=environ, **quiet)
    # For a run that hangs: a machine that is busy with other work can take minutes.
    deadline = time.monotonic() + 900
    while process.poll() is None and time.monotonic() < deadline:
        if condition(workdir):
            os.killpg(process.pid, signal.SIGKILL)  # the workers of the loader die with it
            process.wait()
            return True
        time.sleep(0.0005)
    assert process.poll() is not None, "the run hangs"
    assert process.poll() == 0, f"the run failed with exit code {process.poll()}"
    return False


def rows_reach(count):
    return lambda workdir: (
        (workdir / "metrics.jsonl").exists()
        and len(log.read_rows(workdir / "metrics.jsonl")) >= count
    )


def saving(after):
    """True while a checkpoint of a step past `after` is half written."""

    def condition(workdir):
        folder = workdir / "checkpoints"
        names = os.listdir(folder) if folder.is_dir() else ()
        return any(
            "tmp" in n and int(n.split(".")[0]) > after for n in names if n.split(".")[0].isdigit()
        )

    return condition


def final(workdir, name):
    """Everything that must be equal: last state, metric rows and scores without clock columns."""
    run = api.prepare(tiny.config(name))
    saved = checkpoint.Checkpoints(workdir / "checkpoints", create=False)
    state = saved.restore(saved.latest(), run.abstract)
    saved.close()
    rows = [
        {k: v for k, v in row.items() if k not in log.TIMING}
        for table in ("metrics", "evals")
        for row in log.read_rows(workdir / f"{table}.jsonl")
    ]
    return state, rows, (workdir / "results.json").read_text()


@pytest.mark.slow
def test_a_killed_run_ends_like_an_undisturbed_one(tmp_path):
    """At chosen moments; tests.chaos chooses at random."""
    name, workers = "dino", 1
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    option = f"--config.data.workers={workers}"
    undisturbed(name, whole, option)
    kills = sum(
        killed_when(c, name, cut, option)
        for c in (rows_reach(1), rows_reach(5), saving(5), rows_reach(11))
    )
    undisturbed(name, cut, option)
    assert kills >= 3, "the run was too quick to be killed where the test wanted"
    state_whole, rows_whole, results_whole = final(whole, name)
    state_cut, rows_cut, results_cut = final(cut, name)
    assert rows_cut == rows_whole and len(rows_whole) > 12
    assert results_cut == results_whole
    assert tiny.identical(state_cut, state_whole)


class Fading(ArraySource):
    """Float images of which, while `bad` holds, none can be read after the first 60 reads."""

    bad, reads = False, 0

    def __getitem__(self, i):
        self.reads += 1
        if self.bad and self.reads > 60:
            raise Unreadable(self.name(i), "the disk is gone")
        return super().__getitem__(i)


@pytest.mark.slow
def test_data_that_end_a_run_cost_no_step(tmp_path, capsys):
    images = np.random.default_rng(0).random((32, 24, 24, 3), np.float32)
    records, config = Fading(images), tiny.config("dino", checkpoint__every_steps=100)
    api.train(config, tmp_path / "whole", records=records)
    records.bad, records.reads = True, 0
    with pytest.raises(InputError, match="data.max_unreadable=0.01: already .*the disk is gone"):
        api.train(config, tmp_path / "cut", records=records)
    rows = log.read_rows(tmp_path / "cut" / "metrics.jsonl")
    step = rows[-1]["step"]
    assert 5 < step < 12 and f"saved step {step} in " in capsys.readouterr().out
    records.bad = False
    api.train(config, tmp_path / "cut", records=records)
    assert f"continuing from step {step}" in capsys.readouterr().out
    ends = []
    for name in ("whole", "cut"):
        saved = checkpoint.Checkpoints(tmp_path / name / "checkpoints", create=False)
        assert saved.latest() == 12
        ends.append(saved.restore(12, api.prepare(config, records=records).abstract))
        saved.close()
    assert tiny.identical(*ends)


def test_an_evaluation_that_is_refused_costs_no_step(tmp_path, monkeypatch, capsys):
    """Its images were in order before the run; the last checkpoint may be hours old."""
    at = []

    def scored(self, *network, drawn):
        at.append(1)
        if len(at) == 2:
            raise InputError("1 of 20 images to evaluate cannot be used")
        return {"knn": 1.0}

    monkeypatch.setattr(report.Evaluation, "__call__", scored)
    config = tiny_run.get_config("dino")
    config.checkpoint.every_steps = 100
    with pytest.raises(InputError, match="1 of 20"):
        api.train(config, tmp_path)
    assert f"saved step 4 in {tmp_path}/checkpoints" in capsys.readouterr().out
    saved = checkpoint.Checkpoints(tmp_path / "checkpoints", create=False)
    assert saved.latest() == 4
    saved.close()


@pytest.mark.slow
def test_an_image_that_kills_its_reader_ends_the_run_with_one_line(tmp_path):
    """The system kills a data worker again and again: the step is saved, the exit code is 2."""
    (tmp_path / "deadly.py").write_text(
        textwrap.dedent("""
            import os, signal
            import numpy as np

            class Images:
                def __len__(self):
                    return 35

                def __getitem__(self, i):
                    if i == int(os.environ.get("DEADLY", -1)):
                        os.kill(os.getpid(), signal.SIGKILL)
                    return {"image": np.full((24, 24, 3), 7 * i, np.uint8)}

            def images():
                return Images()
            """)
    )
    last = int(loader.permutation(35, 0, 0)[31])  # of the first epoch
    kind = ("--config.data.kind=python:deadly.images", "--config.data.workers=1")
    more = dict(cwd=ROOT, capture_output=True, text=True, timeout=600)
    paths = os.pathsep.join([str(ROOT), str(tmp_path)])
    environ = compiling.environment(PYTHONPATH=paths, DEADLY=str(last))
    options = (*kind, "--config.evals.tasks=()", "--config.checkpoint.every_steps=100")
    run = subprocess.run(command("dino", tmp_path / "a", *options), env=environ, **more)
    assert run.returncode == 2, run.stderr
    # more where one died ahead, before its last batch was taken
    assert run.stdout.count("a data worker died (SIGKILL)") >= 2
    assert "saved step 3 in " in run.stdout
    said = [line for line in run.stderr.splitlines() if line.startswith("ssl-jax: ")]
    assert len(said) == 1 and "data.workers=1: 3 times in a row" in said[0]
    assert "Traceback" not in run.stderr
    del environ["DEADLY"]
    run = subprocess.run(command("dino", tmp_path / "a", *options), env=environ, **more)
    assert run.returncode == 0 and "continuing from step 3" in run.stdout


def test_rows_past_the_restored_step_are_cut(tmp_path):
    table = log.Table(tmp_path, "metrics", restored_step=None)
    for s in range(1, 6):
        table.write({"step": s, "loss": s / 3})
    with open(tmp_path / "metrics.jsonl", "a") as f:
        f.write('{"step": 6, "lo')  # a kill in the middle of a line
    table = log.Table(tmp_path, "metrics", restored_step=3)
    table.write({"step": 4, "loss": 0.5})
    assert [r["step"] for r in log.read_rows(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]
    assert log.read_rows(tmp_path / "metrics.jsonl")[0]["loss"] == 1 / 3
    assert (tmp_path / "metrics.csv").read_text().splitlines()[0] == "step,loss"
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 5
    assert np.isfinite([r["loss"] for r in log.read_rows(tmp_path / "metrics.jsonl")]).all()
