"""Mesh, placement of the state and of batches, on eight simulated devices; several processes are in
tests/process/test_processes.py.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from ssl_jax.config import InputError
from ssl_jax.runtime import sharding


@pytest.mark.parametrize(
    "given, shape", [((0, 1), (8, 1)), ((0, 8), (1, 8)), ((0, 2), (4, 2)), ((2, 1), (2, 1))]
)
def test_mesh(given, shape):
    mesh = sharding.make_mesh(*given)
    assert tuple(mesh.shape.items()) == (("data", shape[0]), ("fsdp", shape[1]))
    devices = jax.devices()[2:6]
    assert set(sharding.make_mesh(0, 2, devices=devices).devices.flat) == set(devices)


@pytest.mark.parametrize(
    ("data", "fsdp", "named"), [(0, 3, "mesh.fsdp"), (4, 4, "16"), (-1, 1, "mesh.data")]
)
def test_a_mesh_that_does_not_fit(data, fsdp, named):
    with pytest.raises(InputError, match=named):
        sharding.make_mesh(data, fsdp)
    several = [SimpleNamespace(process_index=i) for i in (0, 0, 1, 1)]
    with pytest.raises(InputError, match="mesh.data"):  # leaves out devices of processes
        sharding.make_mesh(2, 1, devices=several)


@pytest.mark.parametrize(
    ("shape", "spec"),
    [
        ((384, 1536), P(None, "fsdp")),  # the largest dimension
        ((1536, 384), P("fsdp")),
        ((384, 384), P("fsdp")),  # the first of equals
        ((1023, 384), P(None, "fsdp")),  # the largest that divides
        ((1, 197, 384), P(None, None, "fsdp")),
        ((1023, 1021), P()),  # none divides
        ((384,), P()),  # small
        ((), P()),
        ((0, 8), P()),
    ],
)
def test_parameters_are_cut_along_fsdp(shape, spec):
    assert sharding.param_sharding(sharding.make_mesh(2, 4), shape).spec == spec
    assert sharding.param_sharding(sharding.make_mesh(8, 1), shape).spec == P()


class State(NamedTuple):
    params: Any
    teacher: Any
    opt_state: Any
    carry: Any
    key: Any


@pytest.mark.parametrize("form", [State, lambda *fields: dict(zip(State._fields, fields))])
def test_a_state_is_cut_where_it_has_the_shapes_of_parameters(form):
    def params():
        return {"kernel": jnp.zeros((64, 128)), "bias": jnp.zeros(128)}

    def create():
        moments = {"mu": params(), "nu": params(), "count": {"epoch_0": jnp.int32(0)}}
        memory = {"rows": {"embedding": jnp.zeros((4096, 32))}, "valid": jnp.zeros(4096, bool)}
        carry = {"memory": memory, "center": jnp.zeros(65536)}
        return form(params(), None, moments, carry, jax.random.key(0))

    shardings = sharding.state_shardings(sharding.make_mesh(2, 4), jax.eval_shape(create))
    pairs = jax.tree_util.tree_leaves_with_path(jax.jit(create, out_shardings=shardings)())
    state = {jax.tree_util.keystr(p, simple=True, separator="/"): x for p, x in pairs}
    cut = {path for path, x in state.items() if "fsdp" in x.sharding.spec}
    assert cut == {"params/kernel", "opt_state/mu/kernel", "opt_state/nu/kernel"}
    assert {s.data.shape for s in state["params/kernel"].addressable_shards} == {(64, 32)}


def test_a_methods_placement_comes_first(monkeypatch):
    """The first pattern that matches a whole path decides, before what holds otherwise."""
    monkeypatch.setattr(sharding, "_MIN_SIZE", 1)
    mesh = sharding.make_mesh(2, 4)
    rows = jax.ShapeDtypeStruct((64, 8), jnp.float32)
    state = {"params": {"kernel": rows}, "carry": {"memory": rows, "center": rows}}
    placement = (("carry/memory", P("fsdp")), ("carry/.*", P()), ("params/.*", P()))
    placed = sharding.state_shardings(mesh, state, placement)
    assert placed["carry"]["memory"].spec == P("fsdp")
    assert placed["carry"]["center"].spec == placed["params"]["kernel"].spec == P()
    alone = sharding.state_shardings(mesh, state)
    assert alone["carry"]["memory"].spec == P()
    assert alone["params"]["kernel"].spec == P("fsdp")


def batch(rows: int):
    index = np.arange(rows, dtype=np.int32)
    images = np.broadcast_to(index[:, None, None], (rows, 2, 3)).astype(np.uint8)
    return {"global": {"images": images, "masks": None}, "index": index}


@pytest.mark.parametrize("shape", [(8, 1), (1, 8), (2, 4), (1, 1)])
def test_put_batch(shape):
    mesh = sharding.make_mesh(*shape)
    put = sharding.put_batch(batch(16), mesh)
    assert put["global"]["masks"] is None
    np.testing.assert_array_equal(put["index"], np.arange(16))
    assert put["global"]["images"].dtype == jnp.uint8
    for leaf in jax.tree.leaves(put):
        assert leaf.sharding.is_equivalent_to(sharding.batch_sharding(mesh), leaf.ndim)
        assert {s.data.shape[0] for s in leaf.addressable_shards} == {16 // mesh.size}


@pytest.mark.parametrize(
    ("entry", "name"), [(batch(12), "global/images"), ({"loss": np.float32(1)}, "loss")]
)
def test_a_batch_that_does_not_divide(entry, name):
    with pytest.raises(InputError, match=name):
        sharding.put_batch(entry, sharding.make_mesh())
