"""Scaled dot-product attention by the device's fastest kernel.

Plain XLA writes the scores [B, heads, N, N] to memory and reads them back. Fused kernels keep them
on the chip: cuDNN's on NVIDIA GPUs, JAX's Pallas flash attention on TPUs.
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp

from ssl_jax.ops import devices, numerics

KINDS = ("auto", "xla", "cudnn", "flash")
_BLOCK = 128  # unit of the TPU kernel's block sizes, in tokens
_MOST = 512  # tokens of the largest block that fits on the chip along with the others
# Number of tokens from which the TPU kernel is faster. It needs heads before tokens and whole
# blocks; libtpu's estimate of forward and backward time relative to plain XLA on v5e is 2.6 for
# 197 tokens and 0.38 for 785.
_WORTH = 512


def choose(kind: str, tokens: int, head_width: int, dtype: jax.typing.DTypeLike) -> str:
    """Resolves "auto" for these shapes and the platform of the mesh in context (or of JAX); returns
    any other kind unchanged.

    "auto" uses the fused kernels for 16-bit floats only.
    """
    if kind != "auto":
        return kind
    platform, short = devices.platform(), jnp.dtype(dtype).itemsize == 2
    fits = head_width <= 128 and head_width % 8 == 0
    if platform == "gpu" and short and fits and devices.knows_bfloat16():
        return "cudnn"
    if platform == "tpu" and short and tokens >= _WORTH:
        return "flash"
    return "xla"


def padding(kind: str, tokens: int, head_width: int, dtype: jax.typing.DTypeLike) -> int:
    """Number of padding tokens that the chosen kernel needs: JAX differentiates cuDNN's kernel for
    even numbers of tokens only."""
    return tokens % 2 if choose(kind, tokens, head_width, dtype) == "cudnn" else 0


def attend(
    q: jax.Array, k: jax.Array, v: jax.Array, kind: str = "auto", seen: int | None = None
) -> jax.Array:
    """softmax(q k^T / sqrt(w)) v for q, k and v of shape [B, N, heads, w]; softmax in float32.

    kind: one of KINDS; "cudnn" and "flash" raise if the device lacks them. seen: number of leading
      keys and values that are used; the others are padding. None: all.
    """
    count, width = q.shape[1], q.shape[-1]
    chosen, seen = choose(kind, count, width, q.dtype), count if seen is None else seen
    if chosen == "flash":
        return _flash(q, k, v, seen)
    kernel: Literal["xla", "cudnn"] = "cudnn" if chosen == "cudnn" else "xla"
    if extra := padding(kernel, count, width, q.dtype):
        q, k, v = (jnp.pad(x, ((0, 0), (0, extra), (0, 0), (0, 0))) for x in (q, k, v))
    lengths = jnp.full(len(q), seen, jnp.int32) if seen < q.shape[1] else None
    with jax.default_matmul_precision(numerics.precision_of(q.dtype)):
        out = jax.nn.dot_product_attention(
            q, k, v, key_value_seq_lengths=lengths, implementation=kernel
        )
    return out[:, :count]


def _flash(q, k, v, seen):
    from jax.experimental.pallas.ops.tpu import flash_attention as pallas  # heavy to import

    batch, count, _, width = q.shape
    length = math.ceil(count / _BLOCK) * _BLOCK
    q, k, v = (
        jnp.swapaxes(jnp.pad(x, ((0, 0), (0, length - count), (0, 0), (0, 0))), 1, 2)
        for x in (q, k, v)
    )
    # Tokens attend within their segment; the padding is a separate segment.
    segment = jnp.broadcast_to((jnp.arange(length) >= seen).astype(jnp.int32), (batch, length))
    block = next(b for b in range(min(length, _MOST), 0, -_BLOCK) if length % b == 0)
    names = ["block_q", "block_k_major", "block_k", "block_q_major_dkv", "block_k_major_dkv"]
    names += ["block_k_dkv", "block_q_dkv", "block_k_major_dq", "block_k_dq", "block_q_dq"]
    out = pallas.flash_attention(
        q,
        k,
        v,
        segment_ids=pallas.SegmentIds(segment, segment),
        sm_scale=1 / math.sqrt(width),
        block_sizes=pallas.BlockSizes(block_b=1, **dict.fromkeys(names, block)),
    )
    return jnp.swapaxes(out, 1, 2)[:, :count]
