"""The ring memory against a Python list, with recognisable rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import ops

SPEC = {"vector": ((2,), jnp.float32), "number": ((), jnp.int32)}


def batch(first, count):
    """Rows that carry their insertion number."""
    numbers = np.arange(first, first + count)
    return {"vector": np.stack([numbers, -numbers], axis=1).astype(np.float32), "number": numbers.astype(np.int32)}


@pytest.mark.parametrize("sizes", [(3, 3, 3), (2, 3, 4, 1), (5, 8, 0, 13, 2), (7, 7, 7), (20,)])
def test_first_in_first_out_at_any_batch_size(sizes):
    """Spec section 8 items 9 and 10: insertion j lies in row j mod N."""
    size, pushed = 7, 0
    memory, want = ops.memory_init(SPEC, size), np.full(size, -1)
    push = jax.jit(ops.memory_push)
    for count in sizes:
        memory = push(memory, batch(pushed, count))
        for j in range(pushed, pushed + count):
            want[j % size] = j
        pushed += count
        np.testing.assert_array_equal(ops.memory_valid(memory), want >= 0)
        assert int(memory["cursor"]) == pushed % size and memory["cursor"].dtype == jnp.int32
        filled = want >= 0
        np.testing.assert_array_equal(memory["rows"]["number"][filled], want[filled])
        np.testing.assert_array_equal(memory["rows"]["vector"][filled], np.stack([want, -want], 1)[filled])
        assert not np.any(memory["rows"]["vector"][~filled])


def test_filled_memory_holds_different_unit_rows_until_they_are_replaced():
    """Spec section 8 item 9: B rows change in a step, none of the first rows is left after ceil(N / B) steps."""
    spec = {"a": ((3,), jnp.float32), "b": ((3,), jnp.bfloat16)}
    memory = ops.memory_init(spec, 10, filled=jax.random.key(0))
    start = np.asarray(memory["rows"]["a"])
    np.testing.assert_allclose(np.linalg.norm(start, axis=1), 1, rtol=1e-6)
    assert memory["rows"]["b"].dtype == jnp.bfloat16
    assert not np.allclose(start, memory["rows"]["b"], atol=0.1)
    assert ops.memory_valid(memory).all() and len(np.unique(start, axis=0)) == 10
    row = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
    for step in range(3):
        memory = ops.memory_push(memory, {"a": row, "b": row})
        changed = (np.asarray(memory["rows"]["a"]) != start).any(axis=1)
        assert changed.sum() == min(4 * (step + 1), 10)
        np.testing.assert_allclose(np.linalg.norm(memory["rows"]["a"], axis=1), 1, rtol=1e-6)
    other = ops.memory_init(spec, 10, filled=jax.random.key(1))
    assert not np.allclose(start, other["rows"]["a"], atol=0.1)


def test_no_gradient_flows_in():
    memory = ops.memory_init({"x": ((2,), jnp.float32)}, 3)
    push = lambda rows: ops.memory_push(memory, {"x": rows})["rows"]["x"].sum()  # noqa: E731
    assert not np.any(jax.grad(push)(jnp.ones((2, 2))))


def test_rows_take_the_type_of_the_memory_and_old_memory_is_untouched():
    memory = ops.memory_init({"x": ((2,), jnp.float32)}, 3)
    after = ops.memory_push(memory, {"x": jnp.ones((2, 2), jnp.bfloat16)})
    assert after["rows"]["x"].dtype == jnp.float32
    assert not np.any(memory["rows"]["x"]) and int(memory["cursor"]) == 0


def test_sharded_rows_arrive_in_global_order():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    across, everywhere = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), ()))
    memory = jax.device_put(ops.memory_init(SPEC, 12), everywhere)
    push = jax.jit(ops.memory_push, out_shardings=everywhere)
    for first in (0, 16):
        memory = push(memory, jax.device_put(batch(first, 16), across))
    want = [j for i in range(12) for j in range(32) if j % 12 == i and j >= 20]
    np.testing.assert_array_equal(memory["rows"]["number"], want)
    np.testing.assert_array_equal(memory["rows"]["vector"][:, 1], -np.array(want))


def test_errors():
    memory = ops.memory_init(SPEC, 4)
    with pytest.raises(ValueError, match=r"names of rows is \['vector'\]; it must be \['number', 'vector'\]"):
        ops.memory_push(memory, {"vector": np.ones((2, 2))})
    with pytest.raises(ValueError, match=r"shape of rows\['vector'\] is \(2, 3\)"):
        ops.memory_push(memory, {"vector": np.ones((2, 3)), "number": np.ones(2)})
    with pytest.raises(ValueError, match="the same B for every name"):
        ops.memory_push(memory, {"vector": np.ones((2, 2)), "number": np.ones(3)})
    with pytest.raises(ValueError, match="the same B for every name"):
        ops.memory_push(ops.memory_init({"n": ((), jnp.int32)}, 4), {"n": 1})
    with pytest.raises(ValueError, match="size is 0"):
        ops.memory_init(SPEC, 0)
    with pytest.raises(ValueError, match="spec is {}"):
        ops.memory_init({}, 4)
    with pytest.raises(ValueError, match=r"spec\['number'\] is .*; it must be float vectors"):
        ops.memory_init(SPEC, 4, filled=jax.random.key(0))
