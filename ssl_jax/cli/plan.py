"""`ssl-jax plan`: estimates memory and time of a training step on devices that need not exist
here."""

import argparse
import json
import math
from typing import Any

import jax
from ml_collections import ConfigDict

from ssl_jax import methods, settings
from ssl_jax.cli import arguments
from ssl_jax.config import InputError, MissingFile
from ssl_jax.data import source
from ssl_jax.runtime import sharding
from ssl_jax.train import estimate, start
from ssl_jax.train.program import Program

_MIB, _GIB = 2**20, 2**30
_LINES = 8  # printed collectives, and printed matrix products
_MOST = 10  # printed lines of source, whose kernels move the most bytes
_LOADED = 161.0  # images/s for which one core prepares views: dino:vits16, docs/benchmarks.md


def run(options: argparse.Namespace) -> int:
    config = arguments.start(options).config
    # Before anything else, because reading weights would initialise JAX's devices.
    devices, name = _devices(options.topology or "", options.devices, options.device)
    config = _resolved(start.shaped(config), len(devices), options.images)
    if options.memory:
        config, result = fitted(config, devices, name, options.memory * _GIB)
    else:
        result = report(config, devices, name)
    if options.largest_batch:
        result["largest_batch"] = largest_batch(config, devices, name, result)
    print(json.dumps(result, indent=2) if options.json else text(result))
    return 0


def _devices(topology: str, count: int | None, device: str | None) -> tuple[list[jax.Device], str]:
    """(devices to compile for, name of the machine whose peak rates are used)."""
    if bool(topology) == bool(count):
        raise InputError(
            "give either --topology=DEVICES, such as h100:8 or v5e:16x16, or --devices=N"
        )
    name = estimate.named(device or topology.partition(":")[0] or "H100")
    jax.config.update("jax_platforms", "cpu")
    if topology:
        return estimate.topology(topology), name
    jax.config.update("jax_num_cpu_devices", count)
    return jax.devices(), name


def _resolved(config: ConfigDict, num_devices: int, records: int | None) -> ConfigDict:
    """The resolved config of a run on `records` images; None = those of the data set. Files that
    training needs may be missing."""
    settings.validate(config, num_devices=num_devices)
    try:
        methods.get(config.method).check(config)
    except MissingFile:
        pass
    if records is None:
        try:
            records = len(source.make_source(config.data))
        except InputError as error:
            raise InputError(f"{error}; or give the number of images: --images=N") from error
    return settings.resolve(config, num_records=records, num_devices=num_devices)


def report(config: ConfigDict, devices: list[jax.Device], name: str) -> dict:
    """Compiles the step and returns the numbers that the command prints."""
    mesh = sharding.make_mesh(config.mesh.data, config.mesh.fsdp, devices=devices)
    machine = estimate.MACHINES[name]
    step = estimate.compile(config, mesh)
    seconds = estimate.seconds(
        step.program,
        machine,
        mesh.size,
        state_bytes=sum(step.memory[name] for name in estimate.FIELDS),
        simulated=devices[0].platform == "cpu",
    )
    slowest = max(seconds.values())
    batch, steps = config.optim.batch_size, config.run.total_steps
    kinds, lines = totals("kind", step.program), totals("where", step.program)
    return {
        "method": config.method,
        "device": name,
        "mesh": dict(mesh.shape),
        "batch": batch,
        "remat": config.model.remat,
        "memory": step.memory,
        "memory_of_device": machine.memory,
        "reached": machine.reached,
        "flops": step.program.flops,
        "flops_where": [
            {"where": where, "operands": kind, "flops": number}
            for (where, kind), number in _largest(step.program.where)
        ],
        "sent": {
            kind: step.program.volume(kind)
            for kind in sorted({c.kind for c in step.program.collectives})
        },
        "sent_where": [c._asdict() for c in step.program.collectives[:_LINES]],
        "kernels": kinds,
        "kernels_where": dict(list(lines.items())[:_MOST]),
        "traffic": step.program.traffic(),
        "moved": step.program.moved,
        "seconds_moved": step.program.moved / machine.memory_rate,
        "seconds": seconds,
        "bound": max(seconds, key=seconds.__getitem__),
        "mfu": step.useful / slowest / max(machine.flops.values()),
        "images_per_second": batch / slowest,
        "cores": batch / slowest / _LOADED,
        "steps": steps,
        "hours": steps * slowest / 3600,
        "device_hours": steps * slowest / 3600 * mesh.size,
    }


# Changes that save memory, in the order in which they are tried; none changes what is learned.
_SAVING: tuple[dict[str, Any], ...] = (
    {},
    *({"model.remat": kind} for kind in ("dots", "block")),
    *({"optim.chunks": count} for count in (2, 4, 8, 16)),
)


def fitted(
    config: ConfigDict, devices: list[jax.Device], name: str, room: float
) -> tuple[ConfigDict, dict]:
    """(config, report) with the first changes of _SAVING that make the step fit in `room` bytes per
    device, or with all of them; the report lists them under "changes". Raises TooLarge if the
    compiler refuses the step even then."""
    config = ConfigDict(config.to_dict())
    changes: dict[str, Any] = {}
    for change in _SAVING:
        chunks = change.get("optim.chunks", 0)
        if chunks and config.optim.batch_size % (chunks * len(devices)):
            continue
        changes |= change
        config.update_from_flattened_dict(change)
        refused = None
        try:
            result = report(config, devices, name)
        except estimate.TooLarge as error:
            refused = error
            continue
        if _total(result["memory"]) < room:
            break
    if refused:
        raise refused
    return config, result | {"memory_of_device": room, "changes": changes}


def totals(field: str, program: Program) -> dict[str, dict]:
    """{value of the field: {"times", "bytes"} of the kernels with it}, most bytes first."""
    total: dict[str, dict] = {}
    for kernels in program.kernels:
        row = total.setdefault(getattr(kernels, field), {"times": 0, "bytes": 0.0})
        row["times"] += kernels.times
        row["bytes"] += kernels.bytes
    return dict(sorted(total.items(), key=lambda item: -item[1]["bytes"]))


def _largest(numbers: dict) -> list[tuple]:
    return sorted(numbers.items(), key=lambda item: -item[1])[:_LINES]


def largest_batch(config: ConfigDict, devices: list, name: str, result: dict) -> int:
    """The largest batch that fits and is a multiple of the devices, extrapolated linearly from two
    batch sizes."""
    mesh, batch = result["mesh"], result["batch"]
    count = mesh["data"] * mesh["fsdp"] * config.optim.chunks
    other = ConfigDict(config.to_dict())
    other.optim.batch_size = max(count, batch // 2 // count * count)
    if other.optim.batch_size == batch:
        other.optim.batch_size = 2 * batch
    mesh = sharding.make_mesh(config.mesh.data, config.mesh.fsdp, devices=devices)
    try:
        memory = estimate.compile(other, mesh).memory
    except estimate.TooLarge:  # twice a batch of one image per device
        return batch
    grows = (_total(memory) - _total(result["memory"])) / (other.optim.batch_size - batch)
    free = result["memory_of_device"] - _total(result["memory"])
    return max(0, int((batch + free / max(grows, 1.0)) // count * count))


def _total(memory: dict) -> float:
    return sum(memory.values())


def text(result: dict) -> str:
    """The report for people."""
    mesh, memory = result["mesh"], result["memory"]
    devices = mesh["data"] * mesh["fsdp"]
    needed, available = _total(memory), result["memory_of_device"]
    lines = [
        f"{result['method']} on {devices} x {result['device']} (data {mesh['data']}, fsdp"
        f" {mesh['fsdp']}), batch {result['batch']}: {result['batch'] / devices:g} images per"
        " device",
        "",
        "memory per device",
        *(f"  {name:<14} {number / _MIB:>10,.0f} MiB" for name, number in memory.items()),
        f"  {'total':<14} {needed / _MIB:>10,.0f} MiB of {available / _GIB:.4g} GiB: "
        + ("fits" if needed < available else "DOES NOT FIT"),
        "",
        "matrix products per device and step",
        *(
            f"  {kind:<14} {number / 1e12:>10,.3f} TFLOP"
            for kind, number in result["flops"].items()
        ),
        *(
            f"    {row['flops'] / 1e12:>8,.3f} {row['operands']:<10} {row['where']}"
            for row in result["flops_where"]
        ),
        "",
        *_kernels(result),
        "communication per step (size of the results)",
        *(f"  {kind:<18} {number / _MIB:>10,.1f} MiB" for kind, number in result["sent"].items()),
        *(
            f"    {row['bytes'] * row['times'] / _MIB:>8,.1f} MiB x{row['times']:<4}"
            f" {row['kind']:<14} {row['type'].split('{')[0]:<24} {row['where']}"
            for row in result["sent_where"]
        ),
        "",
        f"time per step, at the published peaks ({result['reached']:.0%} of the memory's)",
        *(f"  {name:<14} {1000 * t:>10,.2f} ms" for name, t in result["seconds"].items()),
        f"  bound by {result['bound']}: at most {result['images_per_second']:,.0f} images/s"
        f" ({result['images_per_second'] / devices:,.0f} per device), MFU {result['mfu']:.1%};"
        f" {result['steps']:,} steps in {result['hours']:,.2f} h,"
        f" {result['device_hours']:,.1f} device-hours",
        f"  data loading: {math.ceil(result['cores']):,} cores (data.workers of all machines) keep"
        f" up; one core prepares about {_LOADED:.0f} images/s (dino:vits16)",
        *suggestions(result),
    ]
    if changes := result.get("changes"):
        flags = " ".join(f"--config.{key}={value}" for key, value in changes.items())
        lines.append(f"  these numbers include {flags}; without, the step takes more")
    if "largest_batch" in result:
        lines.append(f"  largest batch that fits: about {result['largest_batch']:,}")
    return "\n".join(lines)


def _kernels(result: dict) -> list[str]:
    """Lines on the kernels or, if there are none, on the bytes that matrix products move."""
    kinds = result["kernels"]
    if not kinds:
        return [
            f"matrix products read and write {result['moved'] / _GIB:,.1f} GiB per step:"
            f" {1000 * result['seconds_moved']:,.2f} ms if all of it goes through device memory",
            "",
        ]
    count = sum(row["times"] for row in kinds.values())
    attention = next((k for k in kinds if k.startswith("attention")), "attention not fused")
    return [
        f"kernels per device and step: {count:,}, which read and write"
        f" {result['traffic'] / 1e9:,.1f} GB; {attention}",
        *(f"  {kind:<18} {_moved(row)}" for kind, row in kinds.items()),
        "lines of source whose kernels move most",
        *(f"  {_moved(row)}  {line or 'none'}" for line, row in result["kernels_where"].items()),
        "",
    ]


def _moved(row: dict) -> str:
    return f"{row['bytes'] / 1e9:>10,.3f} GB x{row['times']:<6,}"


def suggestions(result: dict) -> list[str]:
    """Lines of advice."""
    memory, fits = result["memory"], _total(result["memory"]) < result["memory_of_device"]
    lines = []
    if not fits:
        largest = max(memory, key=memory.get)
        remedy = {
            "temporary": 'model.remat="block" or a larger optim.chunks',
            "carry": "more devices, or a smaller memory of the method",
            "batch": "a smaller optim.batch_size",
        }.get(largest, "a larger mesh.fsdp")
        lines.append(f"  to make it fit: {remedy} (largest: {largest})")
    elif result["remat"] != "none" and 2 * _total(memory) < result["memory_of_device"]:
        less = "none" if result["remat"] == "dots" else "dots"
        lines.append(f'  to recompute less, as memory allows: model.remat="{less}"')
    if result["bound"] == "communication":
        lines.append("  to communicate less: a larger optim.batch_size or a smaller mesh.fsdp")
    return lines
