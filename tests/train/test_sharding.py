"""Mesh, placement of the state and of batches, on eight simulated devices; two processes in a slow
test.
"""

import socket
import subprocess
import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from ssl_jax.config import InputError
from ssl_jax.train import sharding
from tests import compiling

P = PartitionSpec


@pytest.mark.parametrize(
    ("data", "fsdp", "shape"),
    [
        (0, 1, (8, 1)),
        (0, 8, (1, 8)),
        (2, 4, (2, 4)),
        (0, 2, (4, 2)),
        (1, 1, (1, 1)),
        (2, 1, (2, 1)),
    ],
)
def test_mesh(data, fsdp, shape):
    mesh = sharding.make_mesh(data, fsdp)
    assert tuple(mesh.shape.items()) == (("data", shape[0]), ("fsdp", shape[1]))
    assert mesh.axis_types == (AxisType.Auto, AxisType.Auto)


def test_mesh_of_given_devices():
    devices = jax.devices()[2:6]
    assert set(sharding.make_mesh(0, 2, devices=devices).devices.flat) == set(devices)


@pytest.mark.parametrize(
    ("data", "fsdp", "message"),
    [
        (0, 3, "mesh.fsdp is 3, which does not divide 8"),
        (4, 4, "4 x 4 = 16, but there are 8"),
        (-1, 1, "mesh.data is -1"),
        (0, 0, "mesh.fsdp is 0"),
    ],
)
def test_a_mesh_that_does_not_fit(data, fsdp, message):
    with pytest.raises(InputError, match=message):
        sharding.make_mesh(data, fsdp)


def test_ordinary_code_runs_on_the_mesh():
    """A reshape that merges a sharded axis: on Explicit axes, jax.make_mesh's default, it raises
    ShardingTypeError.
    """
    mesh = sharding.make_mesh(2, 4)
    x = jax.device_put(jnp.arange(64.0).reshape(8, 2, 4), sharding.batch_sharding(mesh))
    np.testing.assert_array_equal(
        jax.jit(lambda x: x.reshape(16, 4) @ jnp.ones((4, 3)))(x)[:, 0],
        np.arange(64.0).reshape(16, 4).sum(1),
    )


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


def test_parameters_are_whole_without_fsdp():
    assert sharding.param_sharding(sharding.make_mesh(8, 1), (4096, 4096)).spec == P()


class State(NamedTuple):
    step: Any
    params: Any
    teacher: Any
    opt_state: Any
    carry: Any
    key: Any


@pytest.mark.parametrize("as_dict", [False, True])
def test_state(as_dict):
    mesh = sharding.make_mesh(2, 4)

    def params():
        return {"kernel": jnp.zeros((64, 128)), "bias": jnp.zeros(128)}

    def create():
        moments = {"mu": params(), "nu": params(), "count": {"epoch_0": jnp.int32(0)}}
        memory = {"rows": {"embedding": jnp.zeros((4096, 32))}, "valid": jnp.zeros(4096, bool)}
        state = State(
            jnp.int32(0),
            params(),
            None,
            moments,
            {"memory": memory, "center": jnp.zeros(65536)},
            jax.random.key(0),
        )
        return state._asdict() if as_dict else state

    abstract = jax.eval_shape(create)
    shardings = sharding.state_shardings(mesh, abstract)
    state = jax.jit(create, out_shardings=shardings)()
    spec = {
        jax.tree_util.keystr(p, simple=True, separator="/"): x.sharding.spec
        for p, x in jax.tree_util.tree_leaves_with_path(state)
    }
    cut = {path for path, s in spec.items() if "fsdp" in s}
    assert cut == {"params/kernel", "opt_state/mu/kernel", "opt_state/nu/kernel"}
    assert len(spec) == len(jax.tree.leaves(abstract))
    kernel = state["params"]["kernel"] if as_dict else state.params["kernel"]
    assert {s.data.shape for s in kernel.addressable_shards} == {(64, 32)}


def batch(rows: int):
    index = np.arange(rows, dtype=np.int32)
    return {
        "global": {
            "images": np.broadcast_to(index[:, None, None], (rows, 2, 3)).astype(np.uint8),
            "masks": None,
        },
        "index": index,
    }


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
    with pytest.raises(InputError, match=f"batch entry {name} has shape .* divide by 8 devices"):
        sharding.put_batch(entry, sharding.make_mesh())


def test_replicated():
    mesh = sharding.make_mesh(2, 4)
    x = jax.device_put(np.arange(3), sharding.replicated(mesh))
    assert x.sharding.is_fully_replicated and len(x.addressable_shards) == 8


PROCESS = """
import sys
import jax, numpy as np
index, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(f"localhost:{port}", 2, index)
from ssl_jax.train import sharding
from ssl_jax.config import InputError
mesh = sharding.make_mesh(2, 2)
rows = np.arange(index * 4, index * 4 + 4, dtype=np.int32)
put = sharding.put_batch({"index": rows}, mesh)["index"]
assert put.shape == (8,), put.shape
whole = jax.jit(lambda x: x * 1, out_shardings=sharding.replicated(mesh))(put)
np.testing.assert_array_equal(whole.addressable_data(0), np.arange(8))
try:
    sharding.make_mesh(2, 1)
except InputError as error:
    assert "several processes" in str(error), error
else:
    raise AssertionError("a mesh that leaves out devices was accepted")
jax.distributed.shutdown()
print("passed")
"""


@pytest.mark.slow
def test_two_processes(root):
    """Each process gives its rows; the global batch has them in the order of the processes."""
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = str(s.getsockname()[1])
    env = compiling.environment(2, PYTHONPATH=str(root))
    command = [sys.executable, "-c", PROCESS]
    running = [
        subprocess.Popen(
            [*command, str(i), port],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for i in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], "\n".join(outputs)
    assert all("passed" in text for text in outputs)


def test_a_methods_placement_comes_first():
    """The first pattern that matches a whole path decides, before what holds otherwise."""
    mesh = sharding.make_mesh(2, 4)
    rows = jax.ShapeDtypeStruct((64, 8), jnp.float32)
    state = {"params": {"kernel": rows}, "carry": {"memory": rows, "center": rows}}
    placement = (("carry/memory", jax.P("fsdp")), ("carry/.*", jax.P()), ("params/.*", jax.P()))
    placed = sharding.state_shardings(mesh, state, placement, min_size=1)
    assert placed["carry"]["memory"].spec == jax.P("fsdp")
    assert placed["carry"]["center"].spec == placed["params"]["kernel"].spec == jax.P()
    alone = sharding.state_shardings(mesh, state, min_size=1)
    assert alone["carry"]["memory"].spec == jax.P()
    assert alone["params"]["kernel"].spec == jax.P("fsdp")
