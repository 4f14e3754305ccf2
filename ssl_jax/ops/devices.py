"""Work of an op shared out among the devices of the mesh in JAX's context.

    with jax.set_mesh(mesh):
        values, index = jax.jit(ops.nearest, static_argnames="k")(queries, bank, k=5)

Left to itself, XLA gives a search that runs in passes to every device as a whole. Where there is no
mesh, or the code already runs once per device (`jax.shard_map`), nothing is shared out.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from ssl_jax.ops import passes

# Whether `jax.vmap` has shared the work out already: over an axis sharded along Explicit ones.
_MAPPED: ContextVar[bool] = ContextVar("mapped", default=False)
_AT_ONCE = 2**27  # numbers of an array of parts side by side, on each device


def _axes() -> tuple[str, ...]:
    """Axes of the mesh that XLA cuts arrays along; () if there is nothing to be shared out."""
    mesh = jax.sharding.get_abstract_mesh()
    automatic = all(kind == AxisType.Auto for kind in mesh.axis_types) and not _MAPPED.get()
    return mesh.axis_names if automatic and not mesh.empty and mesh.size > 1 else ()


def count() -> int:
    """Devices that work is shared out among, 1 or more."""
    return jax.sharding.get_abstract_mesh().size if _axes() else 1


def platform() -> str:
    """ "cpu", "gpu" or "tpu": of the mesh, which need not be of this machine, or JAX's default."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device.platform if device is not None else jax.default_backend()


def knows_bfloat16() -> bool:
    """Whether the device multiplies bfloat16: GPUs before Ampere (T4, V100) do not, and of AMD's,
    which we have never tried, it is not assumed. Of a GPU that is not in this machine it is taken
    for granted.
    """
    if platform() != "gpu" or jax.default_backend() != "gpu":
        return True
    try:
        return float(jax.devices()[0].compute_capability) >= 8
    except ValueError:  # "gfx942"
        return False


def at_once(parts: int, numbers: int) -> int:
    """How many of the equal parts of an op are computed side by side: a divisor of their number.

    One on a CPU or TPU, whose fast memory holds what one part needs. On a GPU many small kernels
    take longer: as many as keep an array of so many numbers a part, sharded, below 512
    MB.
    """
    if platform() != "gpu":
        return 1
    most = _AT_ONCE * count() // max(1, numbers)
    return max(n for n in range(1, parts + 1) if parts % n == 0 and n <= max(1, most))


def by_rows(function: Callable[..., Any], rows: tuple, whole: tuple = ()) -> Any:
    """function(*rows, *whole), where each device takes its share of the rows.

    Args:
      function: of which row i of every result depends on row i of `rows` alone.
      rows: arrays [n, ...] with the same n. If the devices do not divide it, rows of zeros are
        added and left out again. whole: trees of arrays that every device needs whole.

    Returns:
      As `function`: a tree of arrays [n, ...], sharded along their first axis.
    """
    axes = _axes()
    if not axes:
        return function(*rows, *whole)
    size = rows[0].shape[0]
    sharded, replicated = PartitionSpec(axes), PartitionSpec()
    shared = jax.shard_map(
        function,
        in_specs=(*(sharded for _ in rows), *(replicated for _ in whole)),
        out_specs=sharded,
        check_vma=False,  # loops that start from constants
    )
    padded = (passes.pad(x, -size % count()) for x in rows)
    return jax.tree.map(lambda x: x[:size], shared(*padded, *whole))


def summed(function: Callable[..., Any], rows: tuple, whole: tuple = ()) -> Any:
    """function(*rows, *whole), a sum over rows, added up over the devices' shares of the rows.

    So is the gradient by `whole`: once, and over the devices in float32.

    Args:
      function: gives a tree of sums over rows. rows: trees of arrays [n, ...]. whole: trees of
        arrays that every device needs whole. All devices get all of `rows` if they do not divide n.
    """
    axes, size = _axes(), jax.tree.leaves(rows)[0].shape[0]
    if not axes or not divide(size):
        return function(*rows, *whole)

    def cast(tree, like):
        return jax.tree.map(lambda x, y: x.astype(y.dtype), tree, like)

    whole = jax.tree.map(jnp.asarray, whole)
    # A gradient is added up in the type that its array crosses the border in.
    wide = jax.tree.map(_at_least_float32, whole)

    def share(*arguments):
        row_args, whole_args = arguments[: len(rows)], arguments[len(rows) :]
        return jax.tree.map(lambda x: x[None], function(*row_args, *cast(whole_args, whole)))

    sharded, replicated = PartitionSpec(axes), PartitionSpec()
    shared = jax.shard_map(
        share,
        in_specs=(*(sharded for _ in rows), *(replicated for _ in whole)),
        out_specs=sharded,
        check_vma=False,
    )
    return jax.tree.map(lambda x: x.sum(axis=0), shared(*rows, *wide))


def _at_least_float32(array: jax.Array) -> jax.Array:
    """Floats narrower than float32 as float32; everything else as it is."""
    narrow = jnp.issubdtype(array.dtype, jnp.floating) and array.dtype.itemsize < 4
    return array.astype(jnp.float32) if narrow else array


def divide(size: int) -> bool:
    """Whether arrays of so many rows can be sharded over the devices."""
    return size % count() == 0


def by_bank(
    search: Callable[..., tuple[jax.Array, jax.Array]], queries: jax.Array, bank: tuple
) -> tuple[jax.Array, jax.Array]:
    """Searches the k best rows of a bank whose rows are sharded over the devices.

    Every device searches its rows for all queries; then a device compares what all have found for
    its share of the queries. Only queries and results are sent, never the bank.

    Args:
      search: (queries [q, d], *bank) -> values [q, k], best first, and rows [q, k] of the bank it
        is given; among equals the lower row first.
      bank: arrays [n, ...], or None. The devices must divide n.

    Returns:
      values [q, k] and rows [q, k] of the whole bank, sharded by queries.
    """
    axes = _axes()
    if not axes:
        return search(queries, *bank)

    def share(queries, bank):
        values, index = search(queries, *bank)
        index = index + jax.lax.axis_index(axes).astype(index.dtype) * bank[0].shape[0]
        parts = [x.reshape(count_, -1, x.shape[-1]) for x in (values, index)]
        # [q / devices, devices, k]: what each device found for this one's queries.
        values, index = (
            jnp.moveaxis(jax.lax.all_to_all(x, axes, 0, 0), 0, 1).reshape(x.shape[1], -1)
            for x in parts
        )
        values, index = jax.lax.sort((-values, index), num_keys=2)
        k = parts[0].shape[-1]
        return -values[:, :k], index[:, :k]

    size, count_ = queries.shape[0], count()
    rows, copy = PartitionSpec(axes), PartitionSpec()
    shared = jax.shard_map(share, in_specs=(copy, rows), out_specs=rows, check_vma=False)
    values, index = shared(passes.pad(queries, -size % count_), bank)
    return values[:size], index[:size]


def take(bank: jax.Array, index: jax.Array, *, cut: bool) -> jax.Array:
    """bank[index], [q, ...], of a bank [n, ...] of numbers.

    cut: True: its rows are sharded over the devices, if these divide n; each sends those of the
    rows that it holds, and the result is sharded by `index` [q].
    """
    axes = _axes()
    if not axes or not cut or not divide(bank.shape[0]):
        return bank[index]

    def share(index, rows):
        index = jax.lax.all_gather(index, axes, tiled=True)
        here = index - jax.lax.axis_index(axes).astype(index.dtype) * rows.shape[0]
        mine = (here >= 0) & (here < rows.shape[0])
        taken = rows[jnp.where(mine, here, 0)]
        taken = jnp.where(mine.reshape(-1, *(1 for _ in rows.shape[1:])), taken, 0)
        return jax.lax.psum_scatter(taken, axes, tiled=True)

    size, spec = index.shape[0], PartitionSpec(axes)
    shared = jax.shard_map(share, in_specs=(spec, spec), out_specs=spec, check_vma=False)
    return shared(passes.pad(index, -size % count()), bank)[:size]


def explicit_mesh(tree: Any) -> AbstractMesh | None:
    """The mesh with Explicit axes that the arrays of a tree are of, if there is one."""
    arrays = (x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array))
    meshes = (jax.typeof(x).sharding.mesh for x in arrays)
    return next((mesh for mesh in meshes if AxisType.Explicit in mesh.axis_types), None)


def automatic(
    function: Callable[..., Any],
    args: tuple,
    kwargs: dict,
    results: Callable[[AbstractMesh], Any] = lambda mesh: NamedSharding(mesh, PartitionSpec()),
) -> Any:
    """function(*args, **kwargs), for which XLA chooses how arrays are sharded.

    With Explicit axes, the default of `jax.make_mesh`, every product, gather and reshape would have
    to name how its result is sharded. So the function gets arrays of Auto axes, and only its
    results are of Explicit ones.

    Args:
      results: mesh -> the shardings of what the function returns (a tree or the beginning of one);
        by default every device has all of it.
    """
    mesh = explicit_mesh((args, kwargs))
    if mesh is None:
        return function(*args, **kwargs)
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = {i: x for i, x in enumerate(leaves) if isinstance(x, jax.Array)}

    def within(arrays):
        args, kwargs = jax.tree.unflatten(tree, [arrays.get(i, x) for i, x in enumerate(leaves)])
        return function(*args, **kwargs)

    kinds = zip(mesh.axis_names, mesh.axis_types)
    explicit = tuple(name for name, kind in kinds if kind == AxisType.Explicit)
    computed = jax.sharding.auto_axes(within, axes=explicit, out_sharding=results(mesh))
    try:
        return computed(arrays)
    except ValueError as error:
        # Of `jax.shard_map` within `jax.vmap` over a sharded axis.
        if "marked as manual" not in str(error):
            raise
    token = _MAPPED.set(True)
    try:
        return computed(arrays)
    finally:
        _MAPPED.reset(token)


def varying(tree: Any, like: Any) -> Any:
    """The arrays of a tree as ones that differ between devices where an array of `like` does.

    So `jax.shard_map` wants what a loop starts from, and what shares a gradient of its own.
    """

    def axes(x) -> frozenset:
        return getattr(getattr(jax.typeof(x), "mat", None), "varying", frozenset())

    target_axes = frozenset().union(*map(axes, jax.tree.leaves(like)))

    def mark(x):
        missing = tuple(target_axes - axes(x))
        return jax.lax.pcast(x, missing, to="varying") if missing else x

    return jax.tree.map(mark, tree)


def whole(tree: Any) -> Any:
    """The arrays of a tree, on every device in full from here on."""
    if not _axes():
        return tree
    return jax.tree.map(
        lambda x: jax.lax.with_sharding_constraint(jnp.asarray(x), PartitionSpec()), tree
    )
