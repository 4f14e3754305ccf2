"""The ring memory against a Python list, with recognisable rows."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import ops

SPEC = {"vector": ((2,), jnp.float32), "number": ((), jnp.int32)}

push = jax.jit(ops.memory_push)


def batch(first, count):
    """Rows that carry their insertion number."""
    numbers = np.arange(first, first + count)
    return {
        "vector": np.stack([numbers, -numbers], axis=1).astype(np.float32),
        "number": numbers.astype(np.int32),
    }


@pytest.mark.parametrize("sizes", [(3, 3, 3), (2, 3, 4, 1), (5, 8, 0, 13, 2), (7, 7, 7), (20,)])
def test_first_in_first_out_at_any_batch_size(sizes):
    """Insertion j lies in row j mod N."""
    size, pushed = 7, 0
    memory, want = ops.memory_init(SPEC, size), np.full(size, -1)
    for count in sizes:
        memory = push(memory, batch(pushed, count))
        for j in range(pushed, pushed + count):
            want[j % size] = j
        pushed += count
        np.testing.assert_array_equal(ops.memory_valid(memory), want >= 0)
        assert int(memory["cursor"]) == pushed % size and memory["cursor"].dtype == jnp.int32
        rows, filled = jax.device_get(memory["rows"]), want >= 0
        np.testing.assert_array_equal(rows["number"][filled], want[filled])
        np.testing.assert_array_equal(rows["vector"][filled], np.stack([want, -want], 1)[filled])
        assert not np.any(rows["vector"][~filled])
    for there in (False, True):
        again = push(memory, batch(pushed, 2), where=there)
        want = push(memory, batch(pushed, 2)) if there else memory
        jax.tree.map(np.testing.assert_array_equal, again, want)


def test_filled_memory_holds_different_unit_rows_until_they_are_replaced():
    spec = {"a": ((3,), jnp.float32), "b": ((3,), jnp.bfloat16)}
    memory = ops.memory_init(spec, 10, filled=jax.random.key(0))
    start, other = (np.asarray(memory["rows"][name], np.float32) for name in "ab")
    np.testing.assert_allclose(np.linalg.norm(start, axis=1), 1, rtol=1e-6)
    assert memory["rows"]["b"].dtype == jnp.bfloat16 and not np.allclose(start, other, atol=0.1)
    assert ops.memory_valid(memory).all() and len(np.unique(start, axis=0)) == 10
    row = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
    for step in range(3):
        memory = push(memory, {"a": row, "b": row})
        changed = (np.asarray(memory["rows"]["a"]) != start).any(axis=1)
        assert changed.sum() == min(4 * (step + 1), 10)
    again = ops.memory_init(spec, 10, filled=jax.random.key(1))
    assert not np.allclose(start, again["rows"]["a"], atol=0.1)


@pytest.mark.parametrize("held", [jnp.float32, jnp.bfloat16])
def test_rows_take_the_type_of_the_memory_and_old_memory_is_untouched(held):
    memory = ops.memory_init({"x": ((2,), held)}, 3)
    other = jnp.bfloat16 if held == jnp.float32 else jnp.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a scatter that casts by itself warns
        after = ops.memory_push(memory, {"x": jnp.ones((2, 2), other)})
    assert after["rows"]["x"].dtype == held
    assert not np.any(memory["rows"]["x"]) and int(memory["cursor"]) == 0


def test_no_row_is_written_twice():
    """The order of two writes to one row is not defined on accelerators; of 9 rows, the last 4 are
    written.
    """
    memory = ops.memory_init({"x": ((2,), jnp.float32)}, 4)
    text = str(jax.make_jaxpr(ops.memory_push)(memory, {"x": jnp.ones((9, 2))}))
    assert "i32[4,1]" in text and "i32[9" not in text  # the indices of the scatter


def test_sharded_rows_arrive_in_global_order():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    across, everywhere = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), ()))
    memory = jax.device_put(ops.memory_init(SPEC, 12), everywhere)
    push_replicated = jax.jit(ops.memory_push, out_shardings=everywhere)
    for first in (0, 16):
        memory = push_replicated(memory, jax.device_put(batch(first, 16), across))
    want = [j for i in range(12) for j in range(32) if j % 12 == i and j >= 20]
    np.testing.assert_array_equal(memory["rows"]["number"], want)
    np.testing.assert_array_equal(memory["rows"]["vector"][:, 1], -np.array(want))


def test_a_choice_of_rows_is_refused():
    """It made the cursor a vector, and the next rows went to wrong places."""
    held = ops.memory_init(SPEC, 4)
    rows = {"vector": np.ones((2, 2)), "number": np.ones(2)}
    for where in (np.array([True, False]), 1):
        with pytest.raises(ValueError, match="where"):
            ops.memory_push(held, rows, where=where)


@pytest.mark.parametrize(
    ("argument", "rows"),
    [
        ("names", {"vector": np.ones((2, 2))}),
        ("vector", {"vector": np.ones((2, 3)), "number": np.ones(2)}),
        ("number", {"vector": np.ones((2, 2)), "number": np.ones(3)}),
        ("number", {"vector": np.ones((2, 2)), "number": 1}),
    ],
)
def test_rows_that_do_not_fit_are_refused(argument, rows):
    with pytest.raises(ValueError, match=argument):
        ops.memory_push(ops.memory_init(SPEC, 4), rows)
