"""The device mesh and the sharding of arrays: batches over all devices, parameters over the axis
`fsdp` only.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from ssl_jax.config import InputError, check_multiple, free_on_resume, key

AXES = ("data", "fsdp")

# Fields of the state that are replicated unless the method places them: every step reads most
# memories and all centers in full.
_REPLICATED = ("carry", "step", "key", "counters")
# Smaller arrays are not worth a collective.
_MIN_SIZE = 2**12


def defaults() -> dict:
    """The section `mesh` of the config."""
    return free_on_resume(
        dict(
            data=key(
                0,
                "size of the mesh axis that splits the batch alone; 0 = all devices / fsdp",
                "devices",
                least=0,
            ),
            fsdp=key(
                1,
                "size of the mesh axis that splits parameters, optimizer moments and the batch",
                "devices",
                above=0,
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
    """Devices along (data, fsdp); data = 0 takes all remaining devices.

    Raises:
      InputError: the mesh does not fit the devices.
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
    """A mesh with the axes ("data", "fsdp").

    Args:
      data: shards of the batch alone; 0 = all devices / fsdp.
      fsdp: shards of parameters and moments, and of the batch too.
      devices: default: all. A single process may use the first ones only; several processes must
        use all.

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
    # Devices in process order, like the rows of a batch. (jax.make_mesh sorts devices for a torus
    # and refuses GPUs of several hosts.) Axes are Auto: Explicit ones cannot run ordinary code.
    devices.sort(key=lambda device: (device.process_index, device.id))
    return Mesh(np.array(devices[:count]).reshape(shape), AXES)


def mesh_for(rows: int) -> Mesh:
    """A mesh of this process's devices: the largest number of them that divides `rows`."""
    devices = jax.local_devices()
    count = next(n for n in range(len(devices), 0, -1) if rows % n == 0)
    return make_mesh(devices=devices[:count])


def on_mesh(function: Callable, mesh: Mesh) -> Callable:
    """Wraps `function` so that it is traced with `mesh` in context, as `by_image` requires."""

    def within(*args):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(*args)

    return within


def replicated(mesh: Mesh | AbstractMesh) -> NamedSharding:
    """The sharding in which every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """The sharding of `axis` over all devices."""
    return NamedSharding(mesh, PartitionSpec(*(None,) * axis, AXES))


def param_sharding(mesh: Mesh | AbstractMesh, shape: tuple[int, ...]) -> NamedSharding:
    """Shards the largest dimension that `fsdp` divides (the first of equals). Arrays of fewer than
    4096 numbers and arrays without such a dimension are replicated."""
    fsdp = mesh.shape["fsdp"]
    candidates = [i for i, n in enumerate(shape) if n and n % fsdp == 0]
    if fsdp == 1 or not candidates or np.prod(shape) < _MIN_SIZE:
        return replicated(mesh)
    dimension = max(candidates, key=lambda i: (shape[i], -i))
    return NamedSharding(
        mesh, PartitionSpec(*("fsdp" if i == dimension else None for i in range(dimension + 1)))
    )


def state_shardings(
    mesh: Mesh | AbstractMesh,
    abstract_state: Any,
    placement: tuple[tuple[str, PartitionSpec], ...] = (),
) -> Any:
    """A sharding per leaf of a TrainState (or a dict with its field names) of arrays or
    ShapeDtypeStructs.

    Parameters, teacher and moments follow `param_sharding`; carry, key, step and counters are
    replicated. `placement` takes precedence.

    Args:
      placement: ordered pairs (regular expression of a whole path such as "carry/memory/rows",
        PartitionSpec over "data" and "fsdp"); the first match counts. An array whose shape the
        devices do not divide is replicated.
    """

    def place(path, leaf):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        for pattern, spec in placement:
            if re.fullmatch(pattern, name):
                sharding = NamedSharding(mesh, spec)
                return sharding if _divides(sharding, leaf.shape) else replicated(mesh)
        field = getattr(path[0], "name", getattr(path[0], "key", None))
        return replicated(mesh) if field in _REPLICATED else param_sharding(mesh, leaf.shape)

    return jax.tree_util.tree_map_with_path(place, abstract_state)


def _divides(sharding: NamedSharding, shape: tuple[int, ...]) -> bool:
    """Whether an array of this shape can have this sharding."""
    try:
        sharding.shard_shape(shape)
    except ValueError:
        return False
    return True


def by_image(
    function: Callable[[Any, Any], Any],
    placement: tuple[tuple[str, PartitionSpec], ...] = (),
    *,
    dtype: str = "float32",
) -> Callable[[Any, Any], Any]:
    """Runs `function` on each device's own images, for the mesh in context (`jax.set_mesh`).

    The gradient of the weights is summed over the devices once and in float32, however often
    `function` uses them; XLA alone would sum after each use, even inside loops. Sharded weights
    are gathered for the call, and their gradient is reduce-scattered.

    Args:
      function: (weights, images) -> results whose row i depends on row i of `images` alone.
        weights: {field of the state: tree}; images: a tree of arrays [B, ...].
      placement: see `state_shardings`; it gives the sharding of the weights.
      dtype: compute dtype of the networks, in which their kernels are gathered.
    """

    def per_device(weights, images):
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.empty or mesh.size == 1:
            return function(weights, images)
        shardings = state_shardings(mesh, weights, placement)
        specs = jax.tree.map(lambda sharding: sharding.spec, shardings)

        def on_device(weights, images):
            def gather(path, part, spec):
                trained = getattr(path[0], "key", "") != "constants"
                kernel = trained and getattr(path[-1], "key", "") == "kernel"
                return _gathered(part, spec, dtype if kernel else part.dtype) if any(spec) else part

            return function(jax.tree_util.tree_map_with_path(gather, weights, specs), images)

        return jax.shard_map(
            on_device,
            in_specs=(specs, PartitionSpec(AXES)),
            out_specs=PartitionSpec(AXES),
            check_vma=False,  # else the gradient is summed at every use
        )(weights, images)

    return per_device


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gathered(sharded, spec, dtype):
    """Gathers an array from its shards, sent in `dtype`. The result keeps the input's type, so
    that gradients are summed in it."""
    full = sharded.astype(dtype)
    for axis, names in enumerate(spec):
        if names is not None:
            full = jax.lax.all_gather(full, names, axis=axis, tiled=True)
    return full.astype(sharded.dtype)


def _gathered_forward(sharded, spec, dtype):
    return _gathered(sharded, spec, dtype), None


def _gathered_backward(spec, dtype, _, gradient):
    for axis, names in enumerate(spec):
        if names is not None:
            gradient = jax.lax.psum_scatter(gradient, names, scatter_dimension=axis, tiled=True)
    return (gradient,)


_gathered.defvjp(_gathered_forward, _gathered_backward)


def put_batch(batch: Any, mesh: Mesh, axis: int = 0) -> Any:
    """Puts a batch on the mesh, its rows sharded over all devices.

    Args:
      batch: pytree of arrays with THIS process's rows, equally many in every process.
      axis: of the rows.

    Returns:
      The same pytree of global arrays, rows in process order.

    Raises:
      InputError: the number of devices does not divide the global number of rows.
    """
    row_sharding = batch_sharding(mesh, axis)
    processes = len({device.process_index for device in mesh.devices.flat})

    def put(path, rows):
        rows = rows if isinstance(rows, jax.Array) else np.asarray(rows)
        if rows.ndim <= axis or rows.shape[axis] * processes % mesh.size:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            raise InputError(
                f"batch entry {name} has shape {rows.shape} in each of {processes} processes; "
                f"its rows must divide by {mesh.size} devices"
            )
        if processes == 1:
            return jax.device_put(rows, row_sharding)
        shape = (*rows.shape[:axis], rows.shape[axis] * processes, *rows.shape[axis + 1 :])
        return jax.make_array_from_process_local_data(row_sharding, rows, shape)

    return jax.tree_util.tree_map_with_path(put, batch)
