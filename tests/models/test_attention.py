"""Attention kernels: which one is taken where, and that they agree with plain XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.models import attention


def on(platform: str):
    device = jax.sharding.AbstractDevice(device_kind="any", num_cores=1, platform=platform)
    mesh = jax.sharding.AbstractMesh((1,), ("data",), abstract_device=device)
    return jax.sharding.use_abstract_mesh(mesh)


@pytest.mark.parametrize(
    "platform, tokens, width, dtype, chosen",
    [
        ("cpu", 785, 64, "bfloat16", "xla"),
        ("gpu", 37, 64, "bfloat16", "cudnn"),
        ("gpu", 197, 64, "float32", "xla"),
        ("gpu", 197, 36, "bfloat16", "xla"),  # no multiple of 8
        ("tpu", 785, 64, "bfloat16", "flash"),
        ("tpu", 785, 64, "float32", "xla"),
        ("tpu", 197, 64, "bfloat16", "xla"),
    ],
)
def test_auto(platform, tokens, width, dtype, chosen):
    with on(platform):
        assert attention.choose("auto", tokens, width, dtype) == chosen
        assert attention.choose("xla", tokens, width, dtype) == "xla"


@pytest.mark.parametrize(
    "tokens, dtype, tolerance", [(197, jnp.float32, 3e-6), (130, jnp.bfloat16, 0.02)]
)
def test_the_tpu_kernel_interpreted_agrees(tokens, dtype, tolerance):
    """Tokens that fill no block: the padding takes part in nothing, nor does it get a gradient."""
    pltpu = pytest.importorskip("jax.experimental.pallas.tpu")
    shape = (2, tokens, 2, 64)
    keys = jax.random.split(jax.random.key(0), 3)
    arrays = [jax.random.normal(key, shape, dtype) for key in keys]

    def outcome(kind):
        def loss(*arrays):
            return jnp.sin(attention.attend(*arrays, kind).astype(jnp.float32)).sum()

        return jax.tree.leaves(jax.value_and_grad(loss, (0, 1, 2))(*arrays))

    want = outcome("xla")
    with pltpu.force_tpu_interpret_mode():
        got = outcome("flash")
    for a, b in zip(got, want, strict=True):
        a, b = (np.asarray(x, np.float32) for x in (a, b))
        np.testing.assert_allclose(a, b, atol=tolerance * max(1, np.abs(b).max()))
