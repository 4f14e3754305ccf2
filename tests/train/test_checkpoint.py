"""Checkpoints that were damaged, changed or mixed: found, named, and an older one taken."""

import json
import os
import random
import shutil

import jax
import pytest

from ssl_jax import api, cli, trees
from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.train import checkpoint, checksums, loop
from ssl_jax.train.state import TrainState
from tests import tiny
from tests.chaos import faults

META = {"config": '{"seed": 0}', "record": 32, "versions": {"jax": "0"}}


@pytest.fixture(scope="module")
def run():
    return api.prepare(tiny.config("mae"))


@pytest.fixture(scope="module")
def written(run, tmp_path_factory):
    """Run folder with checkpoints of steps 0 and 4, and the state of step 0."""
    folder = tmp_path_factory.mktemp("written") / "run"
    state = loop.fresh_state(run)
    saved = checkpoint.Checkpoints(folder / "checkpoints")
    for step in (0, 4):
        saved.save(state._replace(step=state.step + step), META)
    saved.wait()
    saved.close()
    return folder, state


@pytest.fixture
def copy(written, tmp_path):
    shutil.copytree(written[0], tmp_path / "run")
    return tmp_path / "run"


def opened(folder):
    return checkpoint.Checkpoints(folder / "checkpoints", create=False)


def files(folder, below):
    found = sorted(p for p in (folder / "checkpoints" / "4" / below).rglob("*") if p.is_file())
    return [p for p in found if p.stat().st_size]


def test_a_flipped_bit_is_found_or_harmless(run, written, tmp_path):
    """Wherever it is: in arrays, in names and shapes, in config and data position."""
    folder, state = written
    expected = state._replace(step=state.step + 4)
    found, chance = 0, random.Random(0)
    for index in range(24):
        copy = tmp_path / str(index)
        shutil.copytree(folder, copy)
        # By size. Some bytes are in no array: where it was placed, older nodes.
        every = files(copy, ".")
        faults.flip(chance.choices(every, [p.stat().st_size for p in every])[0], chance)
        saved = opened(copy)
        try:
            assert saved.meta(4).items() >= META.items()
            assert tiny.identical(saved.restore(4, run.abstract), expected)
        except checkpoint.Damaged as error:
            found += 1
            assert f"checkpoint {copy}/checkpoints/4 " in str(error) and "\n" not in str(error)
            with pytest.raises(checkpoint.Damaged):
                saved.check(4)
        saved.close()
        shutil.rmtree(copy)
    assert found > 4  # of about 15: names of files, and so which are hit, differ from run to run


@pytest.mark.parametrize("below", ["state", "meta"])
@pytest.mark.parametrize("how", ["cut", "gone"])
def test_a_missing_or_shortened_file_is_found_or_harmless(below, how, run, copy, written):
    for place, path in enumerate(files(copy, below)):
        content = path.read_bytes()
        if how == "cut":
            os.truncate(path, len(content) // 2)
        else:
            path.unlink()
        saved = opened(copy)
        try:
            state = saved.restore(4, run.abstract)
            assert tiny.identical(state, written[1]._replace(step=written[1].step + 4)), place
        except checkpoint.Damaged:
            pass
        saved.close()
        path.write_bytes(content)


def edited(copy, change):
    (path,) = [p for p in files(copy, "meta") if b"record" in p.read_bytes()]
    meta = json.loads(path.read_text())
    change(meta)
    path.write_text(json.dumps(meta))


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.update(record=40),
        lambda meta: meta.update(config='{"seed": 1}'),
        lambda meta: meta.pop("digest"),
        lambda meta: meta.pop("checksums"),
        lambda meta: meta["checksums"].popitem(),
    ],
)
def test_an_edited_config_or_position_is_refused(change, copy):
    edited(copy, change)
    saved = opened(copy)
    with pytest.raises(checkpoint.Damaged, match="4 is damaged: its config or data position is"):
        saved.meta(4)
    saved.close()


def test_state_and_meta_of_two_checkpoints_are_refused(run, copy):
    folder = copy / "checkpoints"
    shutil.rmtree(folder / "4" / "state")
    shutil.copytree(folder / "0" / "state", folder / "4" / "state")
    saved = opened(copy)
    with pytest.raises(checkpoint.Damaged, match="4 is damaged: step not as saved"):
        saved.restore(4, run.abstract)
    saved.close()


def test_one_without_checksums_is_read(run, copy, capsys):
    """As versions before wrote it."""
    edited(copy, lambda meta: (meta.pop("digest"), meta.pop("checksums")))
    saved = opened(copy)
    assert saved.meta(4) == META and saved.check(4) == 0
    assert int(saved.restore(4, run.abstract).step) == 4
    saved.close()
    assert cli.main(["ssl-jax", "check", str(copy / "checkpoints" / "4")]) == 0
    assert "readable; it has no checksums" in capsys.readouterr().out


def test_one_with_each_block_by_itself_is_loaded_and_not_continued(run, written, tmp_path):
    """As versions before stacked blocks wrote it."""

    def apart(tree):
        return trees.nest(trees.per_block(tree))

    config = config_lib.to_json(run.config)
    old = written[1]._replace(params=apart(written[1].params))
    saved = checkpoint.Checkpoints(tmp_path / "run" / "checkpoints")
    saved.save(old, META | {"config": config})
    saved.wait()
    assert "0" in old.params["backbone"]["blocks"]
    encoder = api.load(tmp_path / "run")
    expected = written[1].params["backbone"]
    assert tiny.identical(encoder.params["backbone"], expected)
    with pytest.raises(InputError, match=f"--config.init_from={tmp_path}/run: "):
        saved.restore(0, run.abstract)
    saved.close()


def test_an_intact_one_of_another_network_is_no_damage(copy):
    other = api.prepare(tiny.config("dino"))
    saved = opened(copy)
    with pytest.raises(
        InputError, match="4 is intact, but of another network or version"
    ) as raised:
        saved.restore(4, other.abstract)
    assert not isinstance(raised.value, checkpoint.Damaged)
    saved.close()


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), PermissionError("x")],
)
def test_what_is_no_fault_of_a_checkpoint_is_no_damage(error, run, copy, monkeypatch):
    """It would be moved out of the way."""

    def fail(tree):
        raise error

    saved = opened(copy)
    monkeypatch.setattr(checksums, "of", fail)
    with pytest.raises(type(error)):
        saved.restore(4, run.abstract)
    saved.close()


def test_the_newest_intact_one_is_taken(copy, capsys, run):
    faults.cut(max(files(copy, "state"), key=lambda p: p.stat().st_size), random.Random(0))
    took = checkpoint.newest(copy, lambda saved, step: (saved.check(step), step))
    assert took[1] == 0 and took[0] > 50
    err = capsys.readouterr().err
    assert err.startswith(f"warning: checkpoint {copy}/checkpoints/4 is damaged: ")
    assert err.endswith("; taking an older one\n") and err.count("\n") == 1
    with pytest.raises(checkpoint.Damaged):  # asked for by name
        checkpoint.newest(copy / "checkpoints" / "4", lambda saved, step: saved.check(step))
    assert cli.main(["ssl-jax", "check", str(copy)]) == 2
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(f"checkpoints/0: intact, {took[0]} arrays") and "4 is damaged" in second


def test_a_damaged_one_is_kept_aside(copy):
    saved = opened(copy)
    assert saved.set_aside(4) == copy / "damaged" / "4" and saved.steps() == [0]
    saved.save(jax.tree.map(lambda x: x, read(saved)), META)
    saved.wait()
    assert saved.steps() == [0, 4]
    assert saved.set_aside(4) == copy / "damaged" / "4-2" and saved.latest() == 0
    saved.close()


def test_one_that_another_process_put_aside_meanwhile_is_damaged_too(copy):
    saved, other = opened(copy), opened(copy)
    assert saved.latest() == 4
    other.set_aside(4)
    with pytest.raises(checkpoint.Damaged, match="checkpoints/4 is gone: another process put it"):
        saved.meta(4)
    assert saved.set_aside(4) == copy / "damaged" and saved.latest() == 0
    with pytest.raises(InputError, match=r"no checkpoint of step 7 in .*; complete ones: \[0\]"):
        saved.meta(7)
    assert [path.name for path in (copy / "damaged").iterdir()] == ["4"]
    saved.close()
    other.close()


def read(saved):
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    fields = saved.read(0, TrainState._fields, lambda shape: here)
    return TrainState(**fields)._replace(step=fields["step"] + 4)


def test_a_run_folder_may_be_called_by_a_number(written, tmp_path):
    shutil.copytree(written[0], tmp_path / "20261123")
    folder, step = checkpoint.locate(tmp_path / "20261123")
    assert (folder, step) == (tmp_path / "20261123" / "checkpoints", None)
    assert checkpoint.locate(folder / "4") == (folder, 4)
    (tmp_path / "7").mkdir()
    with pytest.raises(InputError) as raised:
        cli_check(tmp_path / "7")
    assert "delete" not in str(raised.value)


def test_a_file_instead_of_the_folder_is_refused_before_training(tmp_path, capsys):
    (tmp_path / "checkpoints").write_text("")
    arguments = ["--config=tests/tiny_run.py:mae", f"--workdir={tmp_path}"]
    assert cli.main(["ssl-jax", "train", *arguments]) == 2
    out, err = capsys.readouterr()
    assert err.endswith("/checkpoints is a file; it must be the folder of the checkpoints\n")
    assert "step" not in out and [p.name for p in tmp_path.iterdir()] == ["checkpoints"]


def cli_check(path):
    return checkpoint.newest(path, lambda saved, step: saved.check(step))


def test_checksums_see_place_and_every_bit():
    numbers = jax.numpy.arange(12, dtype=jax.numpy.float32).reshape(3, 4)
    first = checksums.of({"a": numbers})
    assert first == checksums.of({"a": numbers}) and len(first["a"]) == 16
    for other in (numbers.at[2, 3].add(1e-6), numbers[::-1], numbers.T, -numbers):
        assert checksums.of({"a": other}) != first
    for dtype in (bool, "int8", "bfloat16", "int32", "uint32"):
        assert checksums.of([numbers.astype(dtype)]) != checksums.of([numbers[::-1].astype(dtype)])
    key = jax.random.key(0)
    assert checksums.of(key) != checksums.of(jax.random.key(1))
