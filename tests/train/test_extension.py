"""A run that is lengthened has the plan, and ends with the bits, of a fresh run with its key."""

import hashlib
import json

import jax
import numpy as np
import pytest

from ssl_jax import api
from ssl_jax.config import InputError
from ssl_jax.evals.registry import TRAINED
from ssl_jax.train import checkpoint, extension, log, loop, step
from tests import tiny
from tests.process import runs


class Scores:
    """An evaluation whose scores tell any two networks apart, in no time."""

    tasks = ("bits",)

    def open(self):
        pass

    def __call__(self, params, constants=None, *, draw_next=False):
        digest = hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(params)))
        return {"bits": float(int(digest.hexdigest()[:12], 16))}

    def compare(self, params, constants=None):
        return {TRAINED: self(params)}

    def publish(self, results, params, constants, folder):
        (folder / "pictures").mkdir(exist_ok=True)
        for name in ("results.json", "results.txt", "pictures/curves.png"):
            (folder / name).write_text(json.dumps(results))
        return []


def settings(**changes):
    """6 steps, 4 an epoch."""
    length = dict(optim__epochs=1.5, evals__every_steps=2, checkpoint__every_steps=2)
    return tiny.config("dino", small=True, evals__tasks=(), **(length | changes))


def constant(**changes):
    """Nothing changes after the warm-up of 4 steps."""
    config = settings(optim__final_weight_decay=0.04, teacher__final_momentum=0.9, **changes)
    config.optim.final_lr = config.optim.lr * config.optim.batch_size / config.optim.base_batch
    return config


def train(config, workdir, extend=None):
    return loop.train(api.prepare(extension.planned(config, workdir, extend)), workdir, Scores())


def steps(workdir):
    return sorted(int(path.name) for path in (workdir / "checkpoints").iterdir())


class Killed(BaseException):
    pass


def killed_at(number, monkeypatch, *arguments):
    """Trains until the row of metrics of that step is to be written."""

    def write(self, row, whole=log.Table.write):
        if self.jsonl.stem == "metrics" and row["step"] == number:
            raise Killed
        whole(self, row)

    def save(self, state, meta, begin=checkpoint.Checkpoints.save):
        begin(self, state, meta)
        self.wait()  # nothing of this process goes on after the kill

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(log.Table, "write", write)
        patched.setattr(checkpoint.Checkpoints, "save", save)
        train(*arguments)


@pytest.mark.slow
def test_lengthened_and_killed_it_equals_a_fresh_run(tmp_path, monkeypatch, compiled_as_for_users):
    run, fresh = tmp_path / "run", tmp_path / "fresh"
    killed_at(4, monkeypatch, settings(), run)
    killed_at(4, monkeypatch, settings(), run, 11)  # before anything of the new plan is saved
    assert steps(run) == [2]
    assert json.loads((run / "config.json").read_text())["optim"]["extended"] == [11]
    killed_at(10, monkeypatch, settings(), run)  # the first command goes on with the new plan
    assert train(settings(), run, 11) == 0  # and so does that with --extend
    assert not list(run.glob("finished_at*"))  # at step 6 it did not end
    second = (run / "results.json").read_text()

    assert train(settings(), run, 14) == 0
    metrics = runs.rows(run)
    assert [row["step"] for row in metrics] == list(range(1, 15))
    scored = [row["step"] for row in runs.rows(run, "evals")]
    assert scored == [0, 2, 4, 6, 8, 10, 11, 12, 14]
    assert second != (run / "results.json").read_text()
    for name in ("results.json", "results.txt", "pictures/curves.png"):
        assert (run / "finished_at_11" / name).read_text() == second
    assert steps(run) == [6, 11, 12, 14]  # the newest two, and the former ends for good

    assert train(settings(optim__extended=(11, 14)), fresh) == 0
    kept = [row for row in log.read_rows(run / "evals.jsonl") if row["step"] != 11]
    (run / "evals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    found = runs.differences(run, fresh)
    assert found.names == () and found.rows == 14 + 8
    assert np.ptp([row["lr"] for row in metrics[4:]]) > 1e-4  # the plan is none of constants


@pytest.mark.nightly
def test_with_constant_schedules_it_equals_a_longer_run(tmp_path, compiled_as_for_users):
    run, fresh = tmp_path / "run", tmp_path / "fresh"
    assert train(constant(), run) == 0
    first, config = (run / "results.json").read_text(), (run / "config.json").read_text()
    with pytest.raises(InputError, match="teacher.momentum"):
        train(constant(teacher__momentum=0.8), run, 10)
    assert (run / "config.json").read_text() == config and (run / "results.json").exists()

    assert train(constant(), run, 10) == 0
    assert (run / "finished_at_6" / "results.json").read_text() == first
    assert train(constant(optim__epochs=2.5), fresh) == 0
    found = runs.differences(run, fresh)
    assert found.names == () and found.rows > 10 and runs.newest(fresh) == 10


def test_a_plan_in_steps_keeps_its_warm_up_and_ramps():
    """Which a longer plan in steps would not: it has more room for them."""
    longer = tiny.resolved(settings(optim__steps=3, optim__extended=(9,)))
    assert (longer.run.warmup_steps, longer.run.total_steps, longer.run.epochs) == (3, 9, 2.25)
    assert step.progress_at(jax.numpy.int32(5), longer).total_steps == 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run folder as far as its plan is concerned; nothing is trained in it."""
    folder = tmp_path_factory.mktemp("finished")
    log.write_json(folder / "config.json", tiny.resolved(settings()).to_dict())
    for number in (4, 6):
        (folder / "checkpoints" / str(number)).mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    "extend, changes, named",
    [
        (6, {}, "--extend"),
        (9, {"optim__steps": 9}, "optim.steps"),
        (9, {"optim__epochs": 3.0}, "optim.epochs"),
        (9, {"optim__batch_size": 4}, "optim.batch_size"),
    ],
)
def test_refuses_what_lengthens_nothing(finished, extend, changes, named):
    with pytest.raises(InputError, match=named):
        extension.planned(settings(**changes), finished, extend)


def test_refuses_a_folder_without_checkpoints_and_ends_out_of_order(tmp_path):
    (tmp_path / "checkpoints" / "6.orbax-checkpoint-tmp-0").mkdir(parents=True)
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match="--extend"):
            extension.planned(settings(), folder, 9)
    for ends in ((6,), (9, 9), (9, 8)):
        with pytest.raises(InputError, match="optim.extended"):
            tiny.resolved(settings(optim__extended=ends))


def test_the_plan_of_a_run_is_the_longer_one_of_two_that_agree(finished, tmp_path):
    def ends(config, folder, extend=None):
        return extension.planned(config, folder, extend).optim.extended

    assert ends(settings(), finished, 9) == (9,)
    lengthened = tiny.resolved(settings(optim__extended=(9, 12)))
    log.write_json(tmp_path / "config.json", lengthened.to_dict())
    (tmp_path / "checkpoints" / "6").mkdir(parents=True)
    assert ends(settings(), tmp_path) == ends(settings(), tmp_path, 9) == (9, 12)
    assert ends(settings(optim__extended=(9,)), tmp_path, 15) == (9, 12, 15)
    assert ends(settings(optim__extended=(9,)), tmp_path, 11) == (9, 11)  # 12 was a mistake
    assert ends(settings(optim__extended=(8,)), tmp_path) == (8,)  # refused beside the checkpoint
    stored = tiny.resolved(settings(optim__extended=(9,)))
    assert extension.lengthened(stored, lengthened, 9).optim.extended == (9, 12)
    assert extension.lengthened(lengthened, stored, 9) is lengthened
    other = tiny.resolved(settings(optim__extended=(9, 11)))
    assert extension.lengthened(lengthened, other, 9).optim.extended == (9, 11)
    assert extension.lengthened(lengthened, other, 10) is lengthened
    (tmp_path / "config.json").write_text("{")  # the checkpoint knows it too
    assert ends(settings(), tmp_path) == ()


def test_set_aside_goes_on_where_it_was_stopped(tmp_path):
    (tmp_path / "finished_at_6" / "pictures").mkdir(parents=True)  # moved before the kill
    for name in ("results.txt", "results.json"):
        (tmp_path / name).write_text("6")
    extension.set_aside(tmp_path, 6)
    assert {path.name for path in (tmp_path / "finished_at_6").iterdir()} == set(extension._RESULTS)
    (tmp_path / "results.json").write_text("of a later end, while the run goes on from 6 again")
    extension.set_aside(tmp_path, 6)
    assert (tmp_path / "finished_at_6" / "results.json").read_text() == "6"
