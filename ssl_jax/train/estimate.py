"""What a step would take on devices that need not be here: memory, FLOPs, what is sent, time.

    mesh = sharding.make_mesh(devices=estimate.topology("v5e:16x16"))
    step = estimate.compile(config, mesh)         # the actual step, compiled; nothing runs
    estimate.seconds(step.program, estimate.MACHINES["v5e"], mesh.size)

Times are lower bounds from published peaks, each as if nothing else took any.
"""

import importlib.util
import math
import os
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ssl_jax import methods
from ssl_jax.config import InputError, MissingFile, unknown
from ssl_jax.train import loop, program, sharding, step
from ssl_jax.views import recipe

FIELDS = ("params", "teacher", "opt_state", "carry", "constants")


class Machine(NamedTuple):
    """A device as its maker describes it.

    flops: {operands of products: FLOP a second}, dense. memory: bytes. memory_rate: bytes a second
    from and to it. link_rate: bytes a second to other devices of the slice or host, in one
    direction.
    """

    flops: dict[str, float]
    memory: float
    memory_rate: float
    link_rate: float


def _tpu(bf16: float, memory: float, memory_rate: float, link_rate: float) -> Machine:
    # A float32 product is one pass in bfloat16 unless told otherwise, and six if exact.
    flops = {"bf16": bf16, "f32": bf16, "f32 x3": bf16 / 3, "f32 exact": bf16 / 6}
    return Machine(flops, memory * 2**30, memory_rate * 1e9, link_rate * 1e9)


def _gpu(bf16, tf32, f32, memory: float, memory_rate: float, link_rate: float) -> Machine:
    flops = {"bf16": bf16, "f16": bf16, "f32": tf32, "f32 x3": bf16 / 3, "f32 exact": f32}
    return Machine(flops, memory * 1e9, memory_rate * 1e9, link_rate * 1e9)


# Google Cloud's pages on each TPU; NVIDIA's data sheets of A100 80 GB, H100 and H200 SXM. Of the 16
# GiB of a v5e its compiler leaves a program 15.75.
MACHINES = {
    "v4": _tpu(275e12, 32, 1228, 150),
    "v5e": _tpu(197e12, 15.75, 819, 100),
    "v5p": _tpu(459e12, 95, 2765, 300),
    "v6e": _tpu(918e12, 32, 1640, 224),
    "A100": _gpu(312e12, 156e12, 19.5e12, 80, 2039, 300),
    "H100": _gpu(989e12, 494e12, 67e12, 80, 3350, 450),
    "H200": _gpu(989e12, 494e12, 67e12, 141, 4800, 450),
}


class TooLarge(InputError):
    """A step whose intermediate results alone a device cannot hold."""


class Step(NamedTuple):
    """A compiled step.

    memory: {"params", "teacher", "opt_state", "carry", "constants", "batch", "temporary": bytes on
    one device}. program: of one device.
    """

    memory: dict[str, float]
    program: program.Program


def topology(name: str) -> list[jax.Device]:
    """The devices of a TPU slice such as "v5e:16x16" (chips), without one. Raises InputError
    without libtpu, or for a slice that it does not know."""
    from jax.experimental import topologies

    kind = name.partition(":")[0]
    if kind not in MACHINES:
        raise InputError(unknown("TPU", kind, [m for m in MACHINES if m.startswith("v")]))
    if importlib.util.find_spec("libtpu") is None:
        raise MissingFile(
            "a TPU slice needs Google's compiler: pip install 'libtpu==0.0.42.*' (about 600 MB); or"
            " use --devices=N"
        )
    # One host of the machine that libtpu takes this one for; it asks the network otherwise.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # nothing runs on a TPU here
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_WORKER_ID", "0")
    os.environ.setdefault("TPU_CHIPS_PER_HOST_BOUNDS", "2,2,1")
    os.environ.setdefault("TPU_HOST_BOUNDS", "1,1,1")
    options = {"chip_config_name": "megacore"} if kind == "v4" else {}
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except Exception as error:
        raise InputError(f"no TPU slice {name}: {error}") from error
    return list(found.devices)


def compile(config: ConfigDict, mesh: Mesh, **options: Any) -> Step:
    """Compiles the step of a resolved config for a mesh, with these options of XLA. Raises TooLarge
    where the compiler of the devices says so."""
    method = methods.make(config)
    optimizer, state = loop.on_mesh(method, config, mesh)
    size = (config.data.size or 256,) * 2
    batch = recipe.abstract_batch(method.views, config.optim.batch_size, size, config.data.crop_on)
    cut = sharding.batch_sharding(mesh)
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=cut), batch)
    places = jax.tree.map(lambda x: x.sharding, state)
    train_step = step.compile_step(step.make_step(method, optimizer, config), mesh, places)
    memory = {name: _held(getattr(state, name)) for name in FIELDS}
    try:
        compiled, of_one = program.compile(train_step.lower(state, batch), **options)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        held = sum(memory.values()) / 2**30
        reason = str(error).partition("RESOURCE_EXHAUSTED: ")[2].partition("\n")[0]
        raise TooLarge(
            f"the step does not fit a device, which holds {held:.2f} GiB of the state as well:"
            f' {reason} To make it fit: model.remat="block", a larger optim.chunks, more devices or'
            " a smaller optim.batch_size"
        ) from error
    memory["batch"] = _held(batch)
    simulated = mesh.devices.flat[0].platform == "cpu"
    memory["temporary"] = _temporary(compiled.memory_analysis(), simulated)
    return Step(memory, of_one)


def _temporary(used: Any, simulated: bool) -> float:
    """Bytes of intermediate results that live at once.

    used: what XLA says of a program; its "temp_size" is the space of all of them, of which TPUs
    need less: they compile programs for which it exceeds their memory. simulated: by a CPU, whose
    peak leaves them out.
    """
    if not used:
        return 0.0
    kept = used.argument_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
    peak = 0 if simulated else getattr(used, "peak_memory_in_bytes", 0)
    return max(0.0, float(peak - kept)) if peak else float(used.temp_size_in_bytes)


def _held(tree: Any) -> float:
    """Bytes of a tree on one device."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def seconds(
    of_one: program.Program,
    machine: Machine,
    devices: int,
    *,
    held: float = 0.0,
    simulated: bool = False,
) -> dict[str, float]:
    """{"compute", "memory", "communication": seconds a step}.

    Memory: of reading and writing the state once. What products read and write (`program.moved`)
    may stay on the chip.

    held: bytes of the state on a device. simulated: compiled for a CPU, which multiplies float32 as
    it is where `machine` takes three passes (`ops.numerics.precision_of`).
    """
    alike = {"f32 exact": "f32 x3"} if simulated else {}
    compute = sum(
        number / machine.flops.get(alike.get(kind, kind), machine.flops["f32"])
        for kind, number in of_one.flops.items()
    )
    total = 0.0
    for one in of_one.collectives:
        count = one.devices or devices
        share = (count - 1) / count
        # What a device sends in a ring, as a part of what it holds afterwards.
        parts = {"all-reduce": 2 * share, "reduce-scatter": count - 1, "collective-permute": 1.0}
        total += parts.get(one.kind, share) * one.bytes * one.times
    return {
        "compute": compute,
        "memory": 2 * held / machine.memory_rate,
        "communication": total / machine.link_rate,
    }
