"""Attention kernels: which one is taken where, and that they agree with plain XLA."""

import os
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.models import attention
from tests.conftest import ROOT


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


def outcome(kind, arrays, seen=None):
    """Value and gradients of a function of the attention of the first `seen` tokens."""

    def loss(*arrays):
        out = attention.attend(*arrays, kind, seen)[:, :seen]
        return jnp.sin(out.astype(jnp.float32)).sum()

    return jax.tree.leaves(jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*arrays))


def same_outcome(got, want, tolerance):
    for a, b in zip(got, want, strict=True):
        a, b = (np.asarray(x, np.float32) for x in (a, b))
        np.testing.assert_allclose(a, b, atol=tolerance * max(1, np.abs(b).max()))


def arrays_of(tokens, dtype):
    shape = (2, tokens, 2, 64)
    return [jax.random.normal(key, shape, dtype) for key in jax.random.split(jax.random.key(0), 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "tokens, dtype, tolerance", [(197, jnp.float32, 3e-6), (130, jnp.bfloat16, 0.02)]
)
def test_the_tpu_kernel_interpreted_agrees(tokens, dtype, tolerance):
    """Tokens that fill no block: the padding takes part in nothing, nor does it get a gradient."""
    pltpu = pytest.importorskip("jax.experimental.pallas.tpu")
    arrays = arrays_of(tokens, dtype)
    want = outcome("xla", arrays)
    with pltpu.force_tpu_interpret_mode():
        got = outcome("flash", arrays)
    same_outcome(got, want, tolerance)


@pytest.mark.parametrize("kind", ["xla", pytest.param("flash", marks=pytest.mark.slow)])
def test_padding_takes_part_in_nothing(kind):
    """Nor gets a gradient, whatever stands in it."""
    pltpu = pytest.importorskip("jax.experimental.pallas.tpu")
    arrays = arrays_of(130, jnp.float32)
    with pltpu.force_tpu_interpret_mode():
        got = outcome(kind, arrays, 129)
    want = outcome("xla", [x[:, :129] for x in arrays])
    same_outcome([x[:, :129] if x.ndim else x for x in got], want, 3e-6)
    assert all(np.all(x[:, 129:] == 0) for x in got[2:])  # of keys and values


@pytest.mark.parametrize("tokens", [64, 65])
def test_cudnn_gets_what_jax_lets_it_differentiate(tokens, monkeypatch):
    """JAX refuses an odd number of tokens: one more goes in, which takes part in nothing."""
    plain, counts = jax.nn.dot_product_attention, []

    def kernel(q, k, v, *, implementation, **others):
        if implementation == "cudnn":
            counts.append(q.shape[1])
        return plain(q, k, v, implementation="xla", **others)

    arrays = arrays_of(tokens, jnp.bfloat16)
    want = outcome("xla", arrays)
    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
    same_outcome(outcome("cudnn", arrays), want, 0.02)
    assert counts and all(count % 2 == 0 and count >= tokens for count in counts)


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="needs an NVIDIA GPU")
def test_cudnn_agrees_on_a_gpu():
    """cuDNN's own kernel, in a process that sees the GPU: the tests are kept on the CPU."""
    code = """
import sys
import jax
try:
    jax.devices("gpu")
except RuntimeError:
    sys.exit(77)
from tests.models import test_attention as t
for tokens in (64, 65, 197):
    arrays = t.arrays_of(tokens, "bfloat16")
    t.same_outcome(t.outcome("cudnn", arrays), t.outcome("xla", arrays), 0.02)
"""
    environment = os.environ | {"JAX_PLATFORMS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    del environment["XLA_FLAGS"]  # the tests' own, for CPUs
    command = [sys.executable, "-c", code]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if result.returncode == 77:
        pytest.skip("this JAX is not built for GPUs")
    assert result.returncode == 0, result.stderr
