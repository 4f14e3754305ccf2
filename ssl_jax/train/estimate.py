"""Estimates a step's memory, FLOPs, communication and time on devices that need not be present.

    mesh = sharding.make_mesh(devices=estimate.topology("v5e:16x16"))  # or "h100:8"
    step = estimate.compile(config, mesh)         # the actual step, compiled; nothing runs
    estimate.seconds(step.program, estimate.MACHINES["v5e"], mesh.size)

Times are lower bounds from published peaks, each as if it were the only cost.
"""

import importlib.util
import math
import os
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ssl_jax import extras, methods
from ssl_jax.config import InputError, MissingFile, unknown
from ssl_jax.runtime import memory as memory_lib
from ssl_jax.runtime import sharding
from ssl_jax.train import program, setup, step
from ssl_jax.views import recipe

FIELDS = ("params", "teacher", "opt_state", "carry", "constants")


class Machine(NamedTuple):
    """A device's published figures; devices.toml gives the sources.

    flops: {operand type: dense FLOP/s}. memory: bytes. memory_rate: bytes per second. link_rate:
    bytes per second to other devices of the slice or host, in one direction. reached: share of
    memory_rate that a copy attains. target: XLA's name of a GPU, "" for a TPU.
    """

    flops: dict[str, float]
    memory: float
    memory_rate: float
    link_rate: float
    reached: float = 1.0
    target: str = ""


def _machine(bf16: float, tf32: float = 0.0, f32: float = 0.0, **others: Any) -> Machine:
    # A TPU computes a float32 product in one bfloat16 pass by default, and in six if exact.
    flops = {"bf16": bf16, "f16": bf16, "f32": tf32 or bf16, "f32 x3": bf16 / 3}
    return Machine(flops | {"f32 exact": f32 or bf16 / 6}, **others)


_FILE = Path(__file__).with_name("devices.toml")
MACHINES = {name: _machine(**row) for name, row in tomllib.loads(_FILE.read_text("utf-8")).items()}
_HOST = 8  # GPUs per host


class TooLarge(InputError):
    """The intermediate results of a step alone exceed a device's memory."""


class Step(NamedTuple):
    """A compiled step.

    memory: {"params", "teacher", "opt_state", "carry", "constants", "batch", "temporary", and
    "images" if cached on the device: bytes per device}. program: that of one device, with kernels
    unless the device is simulated. useful: model FLOPs per device (`step.flops_per_image`).
    """

    memory: dict[str, float]
    program: program.Program
    useful: float


def named(name: str) -> str:
    """The key of a device in MACHINES, in any letter case. Raises InputError."""
    names = {key.lower(): key for key in MACHINES}
    if name.lower() not in names:
        raise InputError(unknown("device", name, list(MACHINES)))
    return names[name.lower()]


def topology(name: str) -> list[jax.Device]:
    """Descriptions of the devices of a TPU slice such as "v5e:16x16" (chips), or of several GPUs,
    "h100:8"; none need be present. Raises InputError if their compiler is not installed or does
    not know the slice."""
    from jax.experimental import topologies

    kind, _, size = name.partition(":")
    kind = named(kind)
    if target := MACHINES[kind].target:
        count = int(size) if size.isdecimal() else 0
        hosts = max(1, count // _HOST)
        if not count or count % min(count, _HOST):
            raise InputError(
                f"--topology={name}: give the number of GPUs, up to {_HOST} or a multiple of it,"
                f" such as {kind.lower()}:{_HOST}"
            )
        slices = dict(topology=f"1x{hosts}x{count // hosts}", target_config=target)
        try:
            return list(topologies.get_topology_desc(platform="cuda", **slices).devices)
        except NotImplementedError as error:
            raise MissingFile(
                f"--topology={name} needs JAX's compiler for GPUs (about 3 GB; neither a GPU nor"
                f" a driver): {extras.install('gpu')}; or use --devices=N"
            ) from error
    if importlib.util.find_spec("libtpu") is None:
        raise MissingFile(
            f"--topology={name} needs Google's compiler for TPUs (about 600 MB):"
            f" {extras.install('tpu')}; or use --devices=N"
        )
    # Describe a TPU host to libtpu, which would ask the network otherwise.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # nothing runs on a TPU here
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_WORKER_ID", "0")
    os.environ.setdefault("TPU_CHIPS_PER_HOST_BOUNDS", "2,2,1")
    os.environ.setdefault("TPU_HOST_BOUNDS", "1,1,1")
    options = {"chip_config_name": "megacore"} if kind == "v4" else {}
    try:
        slice_ = f"{kind}:{size}"
        description = topologies.get_topology_desc(platform="tpu", topology_name=slice_, **options)
    except Exception as error:
        raise InputError(f"no TPU slice {name}: {error}") from error
    return list(description.devices)


def compile(config: ConfigDict, mesh: Mesh, **options: Any) -> Step:
    """Compiles the step of a resolved config for a mesh, with these XLA options. Raises TooLarge
    if the compiler reports that it does not fit."""
    method = methods.make(config)
    optimizer, state = setup.on_mesh(method, config, mesh)
    size = (config.data.size or 256,) * 2
    kind = (np.float32 if config.data.range else np.uint8), config.model.in_channels
    count, crop_on = config.optim.batch_size, config.data.crop_on
    batch = recipe.abstract_batch(method.views, count, size, crop_on, *kind)
    by_batch = sharding.batch_sharding(mesh)
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=by_batch), batch)
    shardings = jax.tree.map(lambda x: x.sharding, state)
    train_step = step.compile_step(step.make_step(method, optimizer, config), mesh, shardings)
    memory = {name: _bytes_on_device(getattr(state, name)) for name in FIELDS}
    platform = mesh.devices.flat[0].platform
    try:
        lowered = train_step.lower(state, batch)
        compiled, of_one = (_for_gpu if platform == "gpu" else program.compile)(lowered, **options)
    except jax.errors.JaxRuntimeError as error:
        if (reason := memory_lib.exhausted(error)) is None:
            raise
        gibibytes = sum(memory.values()) / 2**30
        raise TooLarge(
            f"the step does not fit a device, which also holds {gibibytes:.2f} GiB of the state:"
            f' {reason} To make it fit: model.remat="block", a larger optim.chunks, more devices or'
            " a smaller optim.batch_size"
        ) from error
    memory["batch"] = _bytes_on_device(batch)
    if config.data.cache == "device":
        images = config.run.steps_per_epoch * config.optim.batch_size
        memory["images"] = 1.0 * np.dtype(kind[0]).itemsize * kind[1] * math.prod(size) * images
    memory["temporary"] = _temporary(compiled.memory_analysis(), platform == "cpu")
    ran = () if platform == "cpu" else program.read(str(compiled.as_text())).kernels
    useful = step.flops_per_image(config, state) * config.optim.batch_size / mesh.size
    return Step(memory, of_one._replace(kernels=ran), useful)


def _for_gpu(lowered: jax.stages.Lowered, **options: Any) -> tuple:
    """Like `program.compile`, but without autotuning, which needs a GPU."""
    options = {"xla_gpu_autotune_level": 0} | options
    try:
        return program.compile(lowered, **options)
    except jax.errors.JaxRuntimeError as error:
        if memory_lib.exhausted(error) is not None:
            raise
    # Without autotuning, XLA lacks Triton tiles for some products (version 0.11: for all). cuBLAS
    # needs none, but has no float32 product in three bfloat16 passes: XLA writes its parts to
    # memory.
    return program.compile(lowered, **options, xla_gpu_enable_triton_gemm=False)


def _temporary(used: Any, simulated: bool) -> float:
    """Peak bytes of intermediate results.

    used: XLA's memory analysis. Its temp_size is an upper bound: TPUs compile programs for which
    it exceeds their memory. simulated: compiled for a CPU, whose peak excludes these results.
    """
    if not used:
        return 0.0
    live = used.argument_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
    peak = 0 if simulated else getattr(used, "peak_memory_in_bytes", 0)
    return max(0.0, float(peak - live)) if peak else float(used.temp_size_in_bytes)


def _bytes_on_device(tree: Any) -> float:
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def seconds(
    of_one: program.Program,
    machine: Machine,
    devices: int,
    *,
    state_bytes: float = 0.0,
    simulated: bool = False,
) -> dict[str, float]:
    """{"compute", "memory", "communication": seconds per step}.

    The memory time covers the kernels' reads and writes or, for a simulated device without
    kernels, one read and write of the state. `program.moved` is not used, because operands of
    products may stay on the chip.

    state_bytes: bytes of the state on a device. simulated: compiled for a CPU, which multiplies
    float32 directly where `machine` takes three passes (`ops.numerics.precision_of`).
    """
    alike = {"f32 exact": "f32 x3"} if simulated else {}
    compute = sum(
        number / machine.flops.get(alike.get(kind, kind), machine.flops["f32"])
        for kind, number in of_one.flops.items()
    )
    total = 0.0
    for collective in of_one.collectives:
        count = collective.devices or devices
        share = (count - 1) / count
        # Bytes that a device sends in a ring, as a fraction of its result.
        parts = {"all-reduce": 2 * share, "reduce-scatter": count - 1, "collective-permute": 1.0}
        total += parts.get(collective.kind, share) * collective.bytes * collective.times
    return {
        "compute": compute,
        "memory": (of_one.traffic() or 2 * state_bytes) / (machine.memory_rate * machine.reached),
        "communication": total / machine.link_rate,
    }
