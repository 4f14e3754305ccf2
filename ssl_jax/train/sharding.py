"""The mesh and where arrays live on it. Batches are cut over all devices; parameters over the axis
`fsdp` only.
"""

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from ssl_jax.config import InputError, check_multiple, free_on_resume, key

AXES = ("data", "fsdp")

# Fields of the state that every device holds whole: memories and centers are read whole at every
# step.
_REPLICATED = ("carry", "step", "key", "counters")
# Smaller arrays are not worth a collective.
_MIN_SIZE = 2**12


def defaults() -> dict:
    """The section `mesh` of the config."""
    return free_on_resume(
        dict(
            data=key(0, "devices along the batch only; 0 = all devices / fsdp", "devices", least=0),
            fsdp=key(
                1, "devices along which parameters and moments are cut as well", "devices", above=0
            ),
        )
    )


def check(config: ConfigDict, num_devices: int) -> None:
    """Refuses a mesh that does not fit the devices, and a batch that does not fit the mesh."""
    o = config.optim
    data, fsdp = mesh_shape(config.mesh.data, config.mesh.fsdp, num_devices)
    devices = data * fsdp
    check_multiple("optim.batch_size", o.batch_size, devices, "number of devices")
    pieces = f"{devices} devices x optim.chunks {o.chunks}"
    check_multiple("optim.batch_size", o.batch_size, devices * o.chunks, pieces)


def mesh_shape(data: int, fsdp: int, num_devices: int) -> tuple[int, int]:
    """Devices along (data, fsdp); data = 0 takes all that are left. Raises InputError if they do
    not fit.
    """
    if fsdp < 1 or data < 0:
        raise InputError(
            f"mesh.data is {data} and mesh.fsdp is {fsdp}; use mesh.data >= 0 (0 = all devices) and"
            " mesh.fsdp >= 1"
        )
    if data == 0:
        if num_devices % fsdp:
            divisors = [d for d in range(1, num_devices + 1) if num_devices % d == 0]
            raise InputError(
                f"mesh.fsdp is {fsdp}, which does not divide {num_devices} devices; use one of"
                f" {divisors}"
            )
        data = num_devices // fsdp
    if data * fsdp > num_devices:
        raise InputError(
            f"mesh.data x mesh.fsdp is {data} x {fsdp} = {data * fsdp}, but there are {num_devices}"
            " devices; mesh.data=0 takes all"
        )
    return data, fsdp


def make_mesh(data: int = 0, fsdp: int = 1, *, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh ("data", "fsdp") with Auto axes (jax's default became Explicit, which ordinary code
    cannot run under).

    Args:
      data: devices along the batch only; 0 = all devices / fsdp.
      fsdp: devices that share parameters and moments as well.
      devices: defaults to all. A single process may use fewer than there are (the first ones);
        several processes must use all.

    Raises:
      InputError: the mesh does not fit the devices.
    """
    devices = list(jax.devices() if devices is None else devices)
    shape = mesh_shape(data, fsdp, len(devices))
    count = shape[0] * shape[1]
    if count != len(devices) and len({d.process_index for d in devices}) > 1:
        raise InputError(
            f"mesh.data x mesh.fsdp is {count} devices, but several processes must use all"
            f" {len(devices)}"
        )
    return jax.make_mesh(
        shape, AXES, axis_types=(AxisType.Auto, AxisType.Auto), devices=devices[:count]
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Axis 0 cut over all devices."""
    return NamedSharding(mesh, PartitionSpec(AXES))


def param_sharding(
    mesh: Mesh, shape: tuple[int, ...], *, min_size: int = _MIN_SIZE
) -> NamedSharding:
    """Cuts the largest dimension that `fsdp` divides (the first of equals); no such dimension or a
    small array: whole.

    Args:
      shape: of the array. min_size: arrays with fewer elements stay whole.
    """
    fsdp = mesh.shape["fsdp"]
    candidates = [i for i, n in enumerate(shape) if n and n % fsdp == 0]
    if fsdp == 1 or not candidates or np.prod(shape) < min_size:
        return replicated(mesh)
    cut = max(candidates, key=lambda i: (shape[i], -i))
    return NamedSharding(
        mesh, PartitionSpec(*("fsdp" if i == cut else None for i in range(cut + 1)))
    )


def state_shardings(
    mesh: Mesh,
    abstract_state: Any,
    placement: tuple[tuple[str, PartitionSpec], ...] = (),
    *,
    min_size: int = _MIN_SIZE,
) -> Any:
    """A sharding per leaf of a TrainState (or a dict with its field names) of arrays or
    ShapeDtypeStructs.

    Parameters, teacher and moments follow `param_sharding`; carry, key, step and counters are
    replicated; unless `placement` says otherwise.

    Args:
      placement: ordered (regular expression of a whole path such as "carry/memory/rows",
        PartitionSpec over "data" and "fsdp"); the first match counts.
    """

    def place(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        for pattern, spec in placement:
            if re.fullmatch(pattern, name):
                return NamedSharding(mesh, spec)
        field = getattr(path[0], "name", getattr(path[0], "key", None))
        return (
            replicated(mesh)
            if field in _REPLICATED
            else param_sharding(mesh, leaf.shape, min_size=min_size)
        )

    return jax.tree_util.tree_map_with_path(place, abstract_state)


def put_batch(batch: Any, mesh: Mesh) -> Any:
    """Puts a batch on the mesh, axis 0 cut over all devices.

    Args:
      batch: pytree of NumPy arrays that hold THIS process's rows (all rows if there is one
        process); every process has as many.

    Returns:
      The same pytree of global arrays, rows in the order of the processes.

    Raises:
      InputError: the global number of rows does not divide by the number of devices.
    """
    sharding, processes = batch_sharding(mesh), len({d.process_index for d in mesh.devices.flat})

    def put(path, rows):
        rows = np.asarray(rows)
        if rows.ndim == 0 or rows.shape[0] * processes % mesh.size:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise InputError(
                f"batch entry {name} has shape {rows.shape} in each of {processes} processes; "
                f"its rows must divide by {mesh.size} devices"
            )
        if processes == 1:
            return jax.device_put(rows, sharding)
        return jax.make_array_from_process_local_data(
            sharding, rows, (rows.shape[0] * processes, *rows.shape[1:])
        )

    return jax.tree_util.tree_map_with_path(put, batch)
