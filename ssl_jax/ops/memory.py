"""Ring memory (first in, first out) of paired rows, as a pytree that belongs in the
training state.
"""

from typing import TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, Bool, Int, Key, Shaped

from ssl_jax.ops import devices
from ssl_jax.ops.arguments import require
from ssl_jax.ops.checked import Count, checked
from ssl_jax.ops.numerics import float_type


class Memory(TypedDict):
    """rows: {name: [N, ...]}, row j of all names belongs together; valid: [N] bool; cursor: int32,
    next row written.
    """

    rows: dict[str, Shaped[Array, "N ..."]]
    valid: Bool[Array, " N"]
    cursor: Int[Array, ""]


@checked
def memory_init(spec: dict, size: Count, *, filled: Key[Array, ""] | None = None) -> Memory:
    """A memory of `size` rows, empty or filled with random unit rows.

    Args:
      spec: {name: (shape of one row, dtype)}; names are pushed together. A plain number per row has
        shape ().
      size: N >= 1.
      filled: PRNG key: rows drawn from N(0, 1) and divided by their L2 norm over the last axis, all
        valid (SOP's cold start); None: zeros, none valid.

    Returns:
      Memory with cursor 0.

    Raises:
      ValueError: size below 1, no names, or `filled` with rows that cannot be unit vectors
      (integers or shape ()).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> memory = memory_init({"embedding": ((3,), jnp.float32)}, 4, filled=jax.random.key(0))
      >>> print(jnp.linalg.norm(memory["rows"]["embedding"], axis=-1).round(3))
      [1. 1. 1. 1.]

    Reference: SOP section 2.2 and appendix A.1 (memories start as random unit rows).
    """
    require(len(spec) >= 1, "spec", spec, "a name with (shape, dtype), at least one")
    rows = {}
    for position, (name, (shape, dtype)) in enumerate(sorted(spec.items())):
        if filled is None:
            rows[name] = jnp.zeros((size, *shape), dtype)
            continue
        vectors = len(shape) >= 1 and jnp.issubdtype(dtype, jnp.floating)
        require(
            vectors,
            f"spec[{name!r}]",
            (shape, dtype),
            "float vectors where the memory starts filled",
        )
        wide = float_type(jnp.zeros((), dtype))
        draw = jax.random.normal(jax.random.fold_in(filled, position), (size, *shape), wide)
        rows[name] = (draw / jnp.linalg.norm(draw, axis=-1, keepdims=True)).astype(dtype)
    return Memory(
        rows=rows, valid=jnp.full(size, filled is not None), cursor=jnp.zeros((), jnp.int32)
    )


def memory_push(
    memory: Memory, rows: dict[str, Shaped[Array, "B ..."]], *, where: Bool[Array, ""] | None = None
) -> Memory:
    """Overwrites the B oldest rows, wrapping around at the end.

    Insertion number j (counted from 0 since `memory_init`) lies in row j mod N. Any B is allowed;
    of more than N rows the last N stay. Under a sharded batch the rows arrive in their global
    order; the memory may be whole on every device, or cut along its rows.

    Args:
      memory: Memory of N rows.
      rows: {name: [B, ...]} with the memory's names and row shapes; cast to its types. No gradient
        flows in.
      where: bool scalar; False: the memory stays as it is. (Unlike a choice between two memories,
        this needs no copy of it.) None: True.

    Returns:
      The new Memory: written rows valid, cursor (old + B) mod N.

    Raises:
      ValueError: other names or row shapes than the memory's, different B among the names, or a
        `where` for each row.

    Example:
      >>> import jax.numpy as jnp
      >>> memory = memory_init({"x": ((), jnp.float32)}, 3)
      >>> memory = memory_push(memory, {"x": jnp.array([0.0, 1.0])})
      >>> memory = memory_push(memory, {"x": jnp.array([2.0, 3.0])})
      >>> memory["rows"]["x"].tolist(), int(memory["cursor"])
      ([3.0, 1.0, 2.0], 1)

    Reference: SOP section 2.2 (FIFO memories); modular indices instead of the official code's N mod
    B = 0.
    """
    old = memory["rows"]
    require(
        sorted(rows) == sorted(old),
        "the names of rows",
        sorted(rows),
        f"{sorted(old)} as in the memory",
    )
    counts = {jnp.shape(row)[:1] for row in rows.values()}
    one = len(counts) == 1 and () not in counts
    require(one, "the number of rows", sorted(counts), "the same B for every name")
    for name, row in rows.items():
        inner = old[name].shape[1:]
        require(
            jnp.shape(row)[1:] == inner,
            f"the shape of rows[{name!r}]",
            jnp.shape(row),
            f"[B, {inner}]",
        )

    if where is not None:
        kind, shape = jnp.result_type(where), jnp.shape(where)
        scalar = shape == () and kind == jnp.bool_
        require(scalar, "where", f"an array of {kind} {shape}", "a bool scalar")

    def cut(mesh):
        return jax.tree.map(lambda x: NamedSharding(mesh, jax.typeof(x).sharding.spec), memory)

    return devices.automatic(_push, (memory, rows, where), {}, cut)


def _push(memory: Memory, rows: dict, where) -> Memory:
    old = memory["rows"]
    count, size = len(next(iter(rows.values()))), memory["valid"].shape[0]
    skipped = max(0, count - size)
    index = (memory["cursor"] + np.arange(skipped, count, dtype=np.int32)) % size
    moved = jnp.asarray(count, jnp.int32)
    if where is not None:
        index = jnp.where(where, index, index + size)  # rows that there are not: nothing is written
        moved = jnp.where(where, moved, 0)

    def write(array, values):
        values = jnp.asarray(values).astype(array.dtype)
        return jnp.asarray(array).at[index].set(values, unique_indices=True, mode="drop")

    return Memory(
        rows={n: write(old[n], jax.lax.stop_gradient(jnp.asarray(rows[n]))[skipped:]) for n in old},
        valid=write(memory["valid"], True),
        cursor=((memory["cursor"] + moved) % size).astype(jnp.int32),
    )


def memory_valid(memory: Memory) -> Bool[Array, " N"]:
    """Which rows hold something: [N] bool (True for random rows of a filled memory too).

    Example:
      >>> import jax.numpy as jnp
      >>> memory = memory_push(memory_init({"x": ((), jnp.float32)}, 3), {"x": jnp.ones(2)})
      >>> memory_valid(memory).tolist()
      [True, True, False]
    """
    return memory["valid"]
