"""The layers of a pre-norm transformer, as NNX modules that own arrays and nothing else (no Rngs,
no mutable state).

Parameters are float32. Linear layers and attention products run in the compute dtype;
normalisation, softmax and the residual stream stay in float32 (what PyTorch's autocast does), so
bfloat16 rounds branches but never the running sum.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx


def normal(key, shape, std: float):
    """float32 [*shape] ~ N(0, std^2).

    The papers' code calls torch's trunc_normal_(std=std), whose cut lies at the ABSOLUTE values
    +-2: 100 standard deviations away at std 0.02, so a plain normal is the same thing.
    `check_init_std` refuses the range where it would not be."""
    return std * jax.random.normal(key, shape, jnp.float32)


def check_init_std(std: float) -> None:
    """Raises ValueError outside (0, 0.4]: above, the cut of `normal` at +-2 would be nearer than 5
    standard deviations.
    """
    if not 0 < std <= 0.4:
        raise ValueError(f"init_std is {std}; it must lie in (0, 0.4]")


def uniform(key, shape):
    """float32 [fan_in, ...] ~ U(-1/sqrt(fan_in), 1/sqrt(fan_in)): torch's default, which the papers
    keep for some layers.
    """
    bound = 1 / math.sqrt(shape[0])
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)


class Linear(nnx.Module):
    """y = x W + b with W [in, out], computed and returned in `dtype`."""

    def __init__(self, kernel, dtype):
        self.kernel = nnx.Param(kernel)
        self.bias = nnx.Param(jnp.zeros(kernel.shape[1], jnp.float32))
        self.dtype = jnp.dtype(dtype)

    def __call__(self, x):
        kernel, bias = self.kernel[...].astype(self.dtype), self.bias[...].astype(self.dtype)
        # One flat matrix product instead of a batched one: training is an eighth faster on CPU, the
        # same elsewhere.
        rows = x.astype(self.dtype).reshape(-1, kernel.shape[0])
        return (rows @ kernel + bias).reshape(*x.shape[:-1], kernel.shape[1])


class LayerNorm(nnx.Module):
    """Zero mean and unit variance over the last axis, then scale and bias; in and out float32.
    Finite for constant rows.
    """

    def __init__(self, width: int, eps: float):
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width, jnp.float32))
        self.eps = eps

    def __call__(self, x):
        x = x.astype(jnp.float32)
        x = x - x.mean(
            axis=-1, keepdims=True
        )  # two passes: E[x^2] - E[x]^2 cancels for rows far from zero
        variance = jnp.square(x).mean(axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(variance + self.eps) * self.scale[...] + self.bias[...]


class Mlp(nnx.Module):
    """Linear, GELU, Linear: [..., width] -> [..., width]. `approximate` selects the tanh form;
    published weights use erf.
    """

    def __init__(self, key, width: int, hidden: int, *, init_std: float, approximate: bool, dtype):
        key1, key2 = jax.random.split(key)
        self.fc1 = Linear(normal(key1, (width, hidden), init_std), dtype)
        self.fc2 = Linear(normal(key2, (hidden, width), init_std), dtype)
        self.approximate = approximate

    def __call__(self, x):
        return self.fc2(jax.nn.gelu(self.fc1(x), approximate=self.approximate))


class Attention(nnx.Module):
    """Multi-head self-attention [B, N, width] -> [B, N, width].

    The columns of qkv's kernel [width, 3 width] are q, k, v, each cut into heads (timm's and DINO's
    order).
    """

    def __init__(self, key, width: int, heads: int, *, init_std: float, dtype):
        key1, key2 = jax.random.split(key)
        self.qkv = Linear(normal(key1, (width, 3 * width), init_std), dtype)
        self.proj = Linear(normal(key2, (width, width), init_std), dtype)
        self.heads = heads

    def __call__(self, x, *, return_weights: bool = False):
        """Output, and the attention weights [B, heads, N, N] (float32, rows sum to 1) or None."""
        b, n, width = x.shape
        q, k, v = jnp.moveaxis(self.qkv(x).reshape(b, n, 3, self.heads, width // self.heads), 2, 0)
        weights = None
        if return_weights:
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
            weights = jax.nn.softmax(scores / math.sqrt(q.shape[-1]), axis=-1)
            out = jnp.einsum("bhqk,bkhd->bqhd", weights.astype(v.dtype), v)
        else:
            out = jax.nn.dot_product_attention(q, k, v)  # softmax in float32
        return self.proj(out.reshape(b, n, width)), weights


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); x is float32 [B, N, width]."""

    def __init__(
        self,
        key,
        width: int,
        heads: int,
        hidden: int,
        *,
        init_std: float,
        eps: float,
        approximate: bool,
        dtype,
    ):
        key1, key2 = jax.random.split(key)
        self.norm1 = LayerNorm(width, eps)
        self.attn = Attention(key1, width, heads, init_std=init_std, dtype=dtype)
        self.norm2 = LayerNorm(width, eps)
        self.mlp = Mlp(key2, width, hidden, init_std=init_std, approximate=approximate, dtype=dtype)

    def __call__(self, x, branch_scale=None, *, return_weights: bool = False):
        """Runs the block.

        Args:
          x: float32 [B, N, width].
          branch_scale: float32 [2, B], what drop-path multiplies each example's two branches by, or
          None. return_weights: also return the attention weights.

        Returns:
          x after the block and the weights [B, heads, N, N] or None.
        """
        scale = (1.0, 1.0) if branch_scale is None else branch_scale[:, :, None, None]
        update, weights = self.attn(self.norm1(x), return_weights=return_weights)
        x = x + scale[0] * update.astype(jnp.float32)
        x = x + scale[1] * self.mlp(self.norm2(x)).astype(jnp.float32)
        return x, weights


def drop_path_scales(keys, rate: float, depth: int):
    """Per-example branch factors of stochastic depth (Huang et al. 2016): 0 with probability r_i,
    else 1 / (1 - r_i).

    r_i rises linearly from 0 at the first block to `rate` at the last. Each draw is a function of
    the example's key, the block and the branch alone, so it does not depend on the rest of the
    batch, on chunking or on the total depth's other draws.

    Args:
      keys: [B] typed PRNG keys.

    Returns:
      float32 [depth, 2, B].
    """
    rates = jnp.linspace(0.0, rate, depth)[:, None, None]
    branches = jnp.arange(2 * depth).reshape(depth, 2)

    def draw(key, branch):
        return jax.random.uniform(jax.random.fold_in(key, branch))

    over_batch = jax.vmap(draw, in_axes=(0, None))
    uniforms = jax.vmap(jax.vmap(over_batch, in_axes=(None, 0)), in_axes=(None, 0))(keys, branches)
    return jnp.where(uniforms >= rates, 1 / (1 - rates), 0.0)
