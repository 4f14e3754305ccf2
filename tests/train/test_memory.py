"""A training state that cannot fit is refused before anything is made."""

import jax
import pytest

from ssl_jax import api, cli
from ssl_jax.config import InputError
from ssl_jax.runtime import sharding
from ssl_jax.train import memory
from tests import tiny


class Device:
    def __init__(self, platform, **stats):
        self.platform, self._stats = platform, stats

    def memory_stats(self):
        return self._stats or None


def test_what_just_fits_passes_and_a_byte_more_does_not():
    state = api.prepare(tiny.config("sop")).abstract
    needed = sum(memory._bytes(x) for x in jax.tree.leaves(state))
    count = sum(x.size for x in jax.tree.leaves(state.params))
    assert needed > 4 * 3 * count  # student, teacher, moments
    memory.check(state, [Device("gpu", bytes_limit=needed)])
    with pytest.raises(InputError, match="fsdp"):
        memory.check(state, [Device("gpu", bytes_limit=needed - 1)])
    assert memory.capacity([Device("tpu")]) is None
    memory.check(state, [Device("tpu")])  # where nothing is known nothing is refused


def test_simulated_devices_share_the_machine(monkeypatch, tmp_path):
    one, eight = memory.capacity([Device("cpu")]), memory.capacity([Device("cpu")] * 8)
    assert one == 8 * eight and one > 2**28
    (tmp_path / "max").write_text("1000\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "max")
    assert memory.capacity([Device("cpu")]) == 1000
    (tmp_path / "max").write_text("max\n")
    assert memory.capacity([Device("cpu")]) == one


def test_shares_of_devices_are_counted():
    mesh = sharding.make_mesh(1, 8)
    shared, whole = (
        jax.ShapeDtypeStruct((16, 10), "float32", sharding=jax.sharding.NamedSharding(mesh, spec))
        for spec in (jax.P("fsdp"), jax.P())
    )
    assert memory._bytes(whole) == 640 and memory._bytes(shared) == 80


def test_a_run_is_refused_before_it_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(memory, "_host", lambda: 2**30)
    key = "--config.sop.cls.memory=2000000000"
    arguments = ["--config=tests/tiny_run.py:sop", key, f"--workdir={tmp_path / 'run'}"]
    assert cli.main(["ssl-jax", "train", *arguments]) == 2
    error = capsys.readouterr().err
    assert "carry/" in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()
