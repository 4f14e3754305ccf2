"""Checkpoints that were damaged, changed or mixed: found, named, and an older one taken."""

import contextlib
import errno
import json
import random
import shutil
from unittest import mock

import jax
import jax.numpy as jnp
import pytest

from ssl_jax import api, cli, trees
from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.train import checkpoint, checksums, log, loop
from ssl_jax.train.state import TrainState
from tests import chaos, tiny

META = {"config": '{"seed": 0}', "record": 32, "versions": log.versions()}


@pytest.fixture(scope="module")
def run():
    return api.prepare(tiny.config("mae"))


@contextlib.contextmanager
def opened(folder, create=False):
    saved = checkpoint.Checkpoints(folder / "checkpoints", create=create)
    yield saved
    saved.wait()
    saved.close()


@pytest.fixture(scope="module")
def written(run, tmp_path_factory):
    """Run folder with checkpoints of steps 0 and 4, and the state of step 4."""
    folder, state = tmp_path_factory.mktemp("written") / "run", loop.fresh_state(run)
    last = state._replace(step=state.step + 4)
    with opened(folder, create=True) as saved:
        saved.save(state, META)
        saved.save(last, META)
    return folder, last


@pytest.fixture
def copy(written, tmp_path):
    return shutil.copytree(written[0], tmp_path / "run")


def files(folder, below="."):
    found = sorted(p for p in (folder / "checkpoints" / "4" / below).rglob("*") if p.is_file())
    return [p for p in found if p.stat().st_size]


def intact_or_refused(folder, run, expected):
    """Whether step 4 was refused; else it is what was saved, to the bit."""
    with opened(folder) as saved:
        try:
            assert saved.meta(4).items() >= META.items()
            assert tiny.identical(saved.restore(4, run.abstract), expected)
            return False
        except checkpoint.Damaged as error:
            assert f"{folder}/checkpoints/4" in str(error) and "\n" not in str(error)
        with pytest.raises(checkpoint.Damaged):
            saved.check(4)
        return True


@pytest.mark.slow
def test_a_flipped_bit_is_found_or_harmless(run, written, tmp_path):
    """Wherever it is: in arrays, in names and shapes, in config and data position."""
    found, chance = 0, random.Random(0)
    for index in range(24):
        copy = shutil.copytree(written[0], tmp_path / str(index))
        # By size. Some bytes are in no array: where it was placed, older nodes.
        every = files(copy)
        path = chance.choices(every, [p.stat().st_size for p in every])[0]
        chaos.damage(path, "flip", chance)
        found += intact_or_refused(copy, run, written[1])
        shutil.rmtree(copy)
    assert found > 4  # of about 15: names of files, and so which are hit, differ from run to run


@pytest.mark.parametrize("how", ["cut", "gone"])
def test_a_missing_or_shortened_file_is_found_or_harmless(how, run, copy, written):
    found = 0
    for path in files(copy, "state") + files(copy, "meta"):
        content = path.read_bytes()
        chaos.damage(path, how, random.Random(0))
        found += intact_or_refused(copy, run, written[1])
        path.write_bytes(content)
    assert found >= 2


def edited(change):
    """What changes the JSON beside the arrays."""

    def damage(folder):
        (path,) = [p for p in files(folder, "meta") if b"record" in p.read_bytes()]
        meta = json.loads(path.read_text())
        change(meta)
        path.write_text(json.dumps(meta))

    return damage


def mixed(folder):
    """The arrays of another step."""
    shutil.rmtree(folder / "checkpoints" / "4" / "state")
    shutil.copytree(folder / "checkpoints" / "0" / "state", folder / "checkpoints" / "4" / "state")


def set_aside(folder):
    with opened(folder) as saved:
        saved.set_aside(4)


DAMAGES = {
    "other position": edited(lambda meta: meta.update(record=40)),
    "other config": edited(lambda meta: meta.update(config='{"seed": 1}')),
    "no digest": edited(lambda meta: meta.pop("digest")),
    "no checksums": edited(lambda meta: meta.pop("checksums")),
    "a checksum less": edited(lambda meta: meta["checksums"].popitem()),
    "state and meta of two": mixed,
    "no state": lambda folder: shutil.rmtree(folder / "checkpoints" / "4" / "state"),
    "no meta": lambda folder: shutil.rmtree(folder / "checkpoints" / "4" / "meta"),
    "put aside meanwhile": set_aside,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_not_as_saved_is_refused(damage, run, copy):
    with opened(copy) as saved:
        assert saved.latest() == 4
        DAMAGES[damage](copy)
        with pytest.raises(checkpoint.Damaged, match="checkpoints/4"):
            saved.restore(4, run.abstract)


def test_the_newest_intact_one_is_taken(copy, capsys):
    largest = max(files(copy, "state"), key=lambda path: path.stat().st_size)
    chaos.damage(largest, "cut", random.Random(0))

    def check(saved, step):
        return saved.check(step), step

    count, step = checkpoint.newest(copy, check)
    assert step == 0 and count > 50
    err = capsys.readouterr().err
    assert f"{copy}/checkpoints/4" in err and err.count("\n") == 1
    with pytest.raises(checkpoint.Damaged):  # asked for by name
        checkpoint.newest(copy / "checkpoints" / "4", check)
    assert cli.main(["ssl-jax", "check", str(copy)]) == 2
    first, second = capsys.readouterr().out.splitlines()
    assert f"checkpoints/0: intact, {count} arrays" in first and "4 is damaged" in second


def test_one_without_checksums_is_read(run, copy):
    """As versions before wrote it."""
    edited(lambda meta: (meta.pop("digest"), meta.pop("checksums")))(copy)
    with opened(copy) as saved:
        assert saved.meta(4) == META and saved.check(4) == 0
        assert int(saved.restore(4, run.abstract).step) == 4
    assert cli.main(["ssl-jax", "check", str(copy / "checkpoints" / "4")]) == 0


def test_one_with_each_block_by_itself_is_loaded_and_not_continued(run, written, tmp_path):
    """As versions before stacked blocks wrote it."""
    old = written[1]._replace(params=trees.nest(trees.per_block(written[1].params)))
    with opened(tmp_path / "run", create=True) as saved:
        saved.save(old, META | {"config": config_lib.to_json(run.config)})
        saved.wait()
        params = api.load(tmp_path / "run").params
        assert tiny.identical(params["backbone"], written[1].params["backbone"])
        with pytest.raises(InputError, match="--config.init_from"):
            saved.restore(4, run.abstract)


def test_an_intact_one_of_another_network_is_no_damage(copy):
    other = api.prepare(tiny.config("dino"))
    with opened(copy) as saved, pytest.raises(InputError, match="intact") as raised:
        saved.restore(4, other.abstract)
    assert not isinstance(raised.value, checkpoint.Damaged)


NO_DAMAGE = [MemoryError(), PermissionError("x"), OSError(errno.EIO, "Input/output error")]
NO_DAMAGE += map(RuntimeError, ("RESOURCE_EXHAUSTED: Out of memory", "of a library"))
NO_DAMAGE += map(ValueError, ("UNAVAILABLE: the file system", "Invalid file path"))


@pytest.mark.parametrize("error", NO_DAMAGE)
def test_what_is_no_fault_of_a_checkpoint_is_no_damage(error, run, copy, monkeypatch):
    """It would be moved out of the way."""
    monkeypatch.setattr(checksums, "by_array", mock.Mock(side_effect=error))
    with opened(copy) as saved, pytest.raises(InputError, match="checkpoints/4") as raised:
        saved.restore(4, run.abstract)
    assert not isinstance(raised.value, checkpoint.Damaged)


def test_a_damaged_one_is_kept_aside(copy):
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with opened(copy) as saved, opened(copy) as other:
        assert saved.set_aside(4) == copy / "damaged" / "4" and saved.steps() == [0]
        state = TrainState(**saved.read(0, TrainState._fields, lambda shape: here))
        saved.save(state._replace(step=state.step + 4), META)
        saved.wait()
        assert saved.steps() == [0, 4]
        assert saved.set_aside(4) == copy / "damaged" / "4-2" and saved.latest() == 0
        assert other.set_aside(4) == copy / "damaged" and other.latest() == 0  # it is gone already
        with pytest.raises(InputError, match="step 7"):
            saved.meta(7)
    assert sorted(path.name for path in (copy / "damaged").iterdir()) == ["4", "4-2"]


def test_a_run_folder_may_be_called_by_a_number(written, tmp_path):
    shutil.copytree(written[0], tmp_path / "20261123")
    folder, step = checkpoint.locate(tmp_path / "20261123")
    assert (folder, step) == (tmp_path / "20261123" / "checkpoints", None)
    assert checkpoint.locate(folder / "4") == (folder, 4)


def test_one_folder_has_many_names(copy, monkeypatch):
    """TensorStore refuses "..", and takes a backslash for the end of a folder's name."""
    monkeypatch.chdir(copy.parent)
    monkeypatch.setenv("HOME", str(copy.parent))
    for path in (copy / ".." / "run", "run", "~/run"):
        assert checkpoint.newest(path, lambda saved, step: saved.check(step)) > 50
    for name in ("a\\b", "a\udcff"):
        with pytest.raises(InputError, match="UTF-8"):
            checkpoint.Checkpoints(copy.parent / name / "checkpoints")


def test_what_is_deleted_while_it_is_written_is_saved_anew(written, tmp_path, capsys):
    with opened(tmp_path, create=True) as saved:
        saved.save(written[1], META)
        shutil.rmtree(saved.folder, ignore_errors=True)
        saved.save(written[1], META, whole=True)
        assert saved.check(4) > 50
    assert capsys.readouterr().out.count("\n") <= 2


def test_checksums_see_place_and_every_bit():
    numbers = jnp.arange(12, dtype=jnp.float32).reshape(3, 4)
    first = checksums.by_array({"a": numbers})
    assert first == checksums.by_array({"a": numbers}) and len(first["a"]) == 16
    for other in (numbers.at[2, 3].add(1e-6), numbers[::-1], numbers.T, -numbers):
        assert checksums.by_array({"a": other}) != first
    for dtype in (bool, "int8", "bfloat16", "int32", "uint32"):
        assert checksums.by_array([numbers.astype(dtype)]) != checksums.by_array(
            [numbers[::-1].astype(dtype)]
        )
    assert checksums.by_array(jax.random.key(0)) != checksums.by_array(jax.random.key(1))
