"""Work shared out among eight simulated devices: the same results, and nothing large is sent."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import ops
from ssl_jax.models import attention
from ssl_jax.ops import devices, numerics
from ssl_jax.runtime import sharding
from ssl_jax.train import program
from tests.losses.reference import close


@pytest.fixture(scope="module")
def mesh():
    return sharding.make_mesh(4, 2)


def cut(mesh, *axes):
    return jax.NamedSharding(mesh, jax.P(*axes))


def everything(mesh):
    """Cut along the first axis by all devices."""
    return cut(mesh, sharding.AXES)


def test_without_a_mesh_nothing_is_shared_out(mesh):
    assert devices.count() == 1 and devices.platform() == "cpu"
    with jax.set_mesh(mesh):
        assert devices.count() == 8 and devices.platform() == "cpu"
        assert devices.divide(16) and not devices.divide(12)
        counts = jax.shard_map(lambda x: x + devices.count(), in_specs=jax.P(), out_specs=jax.P())
        assert int(counts(jnp.zeros((), jnp.int32))) == 1  # here a program runs on each device


def test_the_platform_is_that_of_the_mesh():
    other = jax.sharding.AbstractDevice(device_kind="TPU v5e", num_cores=1, platform="tpu")
    mesh = jax.sharding.AbstractMesh((2,), ("data",), abstract_device=other)
    with jax.sharding.use_abstract_mesh(mesh):
        assert devices.platform() == "tpu"


# Parts, numbers of each -> how many side by side on two GPUs: at most 2 * 2**27 numbers, or one.
@pytest.mark.parametrize("parts, numbers, together", [(12, 2**25, 6), (7, 2**30, 1), (9, 0, 9)])
def test_parts_side_by_side_on_a_gpu(parts, numbers, together):
    for platform in ("cpu", "tpu", "gpu"):
        device = jax.sharding.AbstractDevice(device_kind="", num_cores=1, platform=platform)
        axes = dict(axis_types=(jax.sharding.AxisType.Auto,), abstract_device=device)
        mesh = jax.sharding.AbstractMesh((2,), ("data",), **axes)
        with jax.sharding.use_abstract_mesh(mesh):
            assert devices.at_once(parts, numbers) == (together if platform == "gpu" else 1)


@pytest.mark.parametrize("capability, known", [("7.5", False), ("9.0", True)])
def test_an_old_gpu_multiplies_float32_as_it_is(monkeypatch, capability, known):
    gpu = types.SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda *a: [gpu])
    assert devices.platform() == "gpu" and devices.knows_bfloat16() == known
    assert numerics.precision_of(jnp.float32) == ("BF16_BF16_F32_X3" if known else "highest")
    assert attention.choose("auto", 197, 64, jnp.bfloat16) == ("cudnn" if known else "xla")


@pytest.mark.parametrize("count", [16, 13])  # 13: rows are added and left out again
def test_by_rows(mesh, count):
    x, table = np.arange(count * 3.0).reshape(count, 3), np.arange(6.0).reshape(2, 3)
    seen = []

    def function(rows, number, tree):
        seen.append(rows.shape)
        return rows @ tree["table"].T, number + 1

    with jax.set_mesh(mesh):
        run = jax.jit(lambda *a: devices.by_rows(function, a[:2], (a[2],)))
        product, number = run(x, np.arange(count), {"table": table})
    close(product, x @ table.T)
    np.testing.assert_array_equal(number, np.arange(count) + 1)
    assert seen == [(2, 3)]  # each device has its share


def test_sums_and_gradients_are_added_up_once_in_float32(mesh):
    """Of a function that uses its weights in every round of a loop."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(16, 4)).astype("f"), rng.normal(size=(4, 3)).astype("f")

    def total(rows, weights):
        def round_(value, row):
            return value + jnp.tanh(row @ weights.astype(jnp.float32)).sum(), None

        return jax.lax.scan(round_, jnp.zeros(()), rows)[0]

    def loss(weights, rows):
        return devices.summed(total, (rows,), (weights,))

    narrow = jnp.asarray(w, jnp.bfloat16)
    want = jax.value_and_grad(total, argnums=1)(x, narrow)
    weights = jax.ShapeDtypeStruct(w.shape, jnp.bfloat16, sharding=cut(mesh))
    rows = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everything(mesh))
    with jax.set_mesh(mesh):
        lowered = jax.jit(jax.value_and_grad(loss)).lower(weights, rows)
        compiled, found = program.compile(lowered)
        value, gradient = compiled(
            jax.device_put(narrow, cut(mesh)), jax.device_put(x, everything(mesh))
        )
    close(value, want[0], relative=1e-6)
    close(gradient.astype(jnp.float32), want[1].astype(jnp.float32), relative=1e-2)
    of_weights = [c for c in found.collectives if c.type.startswith("f32[4,3]")]
    assert [(c.kind, c.times) for c in of_weights] == [("all-reduce", 1)]


SEARCHES = [
    ((), 64, 1, dict(group_size=16)),
    ((), 64, 2, dict(group_size=32)),
    ((2,), 40, 2, dict(group_size=8)),
    ((), 30, 3, dict(group_size=7)),  # nothing divides
    ((3,), 21, 4, {}),
    ((2,), 64, 3, dict(cut_bank=True)),
    ((), 30, 1, dict(cut_bank=True)),  # which the devices do not divide
]


@pytest.mark.parametrize("lead, size, k, options", SEARCHES)
def test_nearest_finds_the_same_rows(mesh, lead, size, k, options):
    rng = np.random.default_rng(size + k)
    bank = rng.normal(size=(size, 8)).astype("f")
    bank[size // 2] = bank[3]  # of equal rows the first is found, wherever they lie
    queries = rng.normal(size=(*lead, size, 8)).astype("f")
    queries[..., -1, :] = bank[3]
    allowed = rng.random(size) < 0.8
    search = jax.jit(functools.partial(ops.nearest, k=k, **options))
    want = search(queries, bank, where=allowed)
    with jax.set_mesh(mesh):
        got = search(queries, bank, where=allowed)
    np.testing.assert_array_equal(got[1], want[1])
    np.testing.assert_allclose(got[0], want[0], atol=2e-7)


def test_a_cut_bank_stays_where_it_is(mesh):
    """A million rows on eight devices: only queries and what was found are sent."""
    size, width, count = 2**20, 16, 64

    def search(queries, bank):
        values, index = ops.nearest(queries, bank, k=2, cut_bank=True)
        return values, devices.take(bank, index[:, 0], cut=True)

    arguments = (
        jax.ShapeDtypeStruct((count, width), jnp.float32, sharding=everything(mesh)),
        jax.ShapeDtypeStruct((size, width), jnp.float32, sharding=everything(mesh)),
    )
    with jax.set_mesh(mesh):
        _, found = program.compile(jax.jit(search).lower(*arguments))
    assert found.flops == {"f32 exact": 2 * count * size * width / 8}
    assert max(c.bytes for c in found.collectives) == count * width * 4


def test_sinkhorn_sends_one_sum_an_iteration(mesh):
    """A number per prototype, after the chunks of a device; at first also the maximum. The loss of
    rows and its gradient need one number more."""

    def loss(logits, scores):
        how = dict(target_temperature=0.06, temperature=0.12, num_iters=5, chunk=16)
        return ops.sinkhorn_cross_entropy(scores, logits, **how).mean()

    rows = jax.ShapeDtypeStruct((64, 6), jnp.bfloat16, sharding=everything(mesh))
    with jax.set_mesh(mesh):
        _, found = program.compile(jax.jit(jax.value_and_grad(loss)).lower(rows, rows))
    assert {c.kind for c in found.collectives} == {"all-reduce"}
    sent = sorted((c.bytes, c.times) for c in found.collectives)
    assert sent == [(4, 1), (6 * 4, 1), (6 * 4, 1), (6 * 4, 4)]


def test_take(mesh):
    bank, index = np.random.default_rng(0).normal(size=(64, 3)), np.arange(13) * 4
    with jax.set_mesh(mesh):
        rows = jax.jit(functools.partial(devices.take, cut=True))(bank.astype("f"), index)
    np.testing.assert_array_equal(rows, bank.astype("f")[index])
