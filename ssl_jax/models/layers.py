"""The layers of a pre-norm transformer, as flax.nnx modules with parameters only (no Rngs, no
mutable state).

Parameters are float32. Linear layers and attention products run in the compute dtype;
normalisation, softmax and the residual stream stay in float32 (as with PyTorch's autocast), so
bfloat16 rounds branches but never the running sum.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from ssl_jax.models import attention, fused, rope
from ssl_jax.ops import numerics


def normal(key: jax.Array, shape: tuple[int, ...], std: float) -> jax.Array:
    """float32 [*shape] ~ N(0, std^2).

    The papers' code calls torch's trunc_normal_(std=std), which truncates at the ABSOLUTE values
    +-2. At std 0.02 these are 100 standard deviations, so a plain normal is equivalent;
    `check_init_std` refuses larger values.
    """
    return std * jax.random.normal(key, shape, jnp.float32)


def check_init_std(std: float) -> None:
    """Raises ValueError outside (0, 0.4]. Above, truncation at +-2 would lie within 5 standard
    deviations, see `normal`.
    """
    if not 0 < std <= 0.4:
        raise ValueError(f"init_std is {std}; it must lie in (0, 0.4]")


def uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """float32 [fan_in, ...] ~ U(-1/sqrt(fan_in), 1/sqrt(fan_in)), torch's default, which some
    layers of the papers use.
    """
    bound = 1 / math.sqrt(shape[0])
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)


def linear(kernel: jax.Array, dtype: DTypeLike, *, bias: bool = True) -> nnx.Linear:
    """y = x W + b, computed in `dtype`, with W = kernel [in, out] and b = 0 initially; without b
    if `bias` is false."""
    return nnx.Linear(
        *kernel.shape,
        use_bias=bias,
        kernel_init=lambda *_: kernel,
        dtype=jnp.dtype(dtype),
        dot_general=_rows_times_matrix,
        rngs=nnx.Rngs(0),  # unused
    )


def _rows_times_matrix(x, kernel, dimension_numbers, precision=None, out_sharding=None):
    """One flat matrix product instead of a batched one. On a CPU, it makes training faster by a
    sixth with 16 tokens and by 1 to 5 % with 64.
    """
    del dimension_numbers, out_sharding  # always the last axis of x and the first of the kernel
    precision = numerics.precision_of(x.dtype) if precision is None else precision
    rows = jax.lax.dot(x.reshape(-1, kernel.shape[0]), kernel, precision=precision)
    return rows.reshape(*x.shape[:-1], kernel.shape[1])


class LayerNorm(nnx.Module):
    """Zero mean and unit variance over the last axis, then scale and bias, in float32.

    Finite for constant rows, and accurate for rows far from zero, where E[x^2] - E[x]^2 cancels.
    """

    def __init__(self, width: int, eps: float):
        self.scale = nnx.Param(jnp.ones(width, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(width, jnp.float32))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        return fused.layer_norm(x.astype(jnp.float32), self.scale[...], self.bias[...], self.eps)


class LayerScale(nnx.Module):
    """x * gamma, a learned factor per channel of a branch (Touvron et al. 2021, "Going deeper with
    image transformers", section 2), initially `value`.
    """

    def __init__(self, width: int, value: float):
        self.gamma = nnx.Param(jnp.full(width, value, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * self.gamma[...]


ACTIVATIONS = ("erf", "tanh", "swiglu")


class Mlp(nnx.Module):
    """Linear, activation, Linear: [..., width] -> [..., width].

    activation: "erf" (exact GELU), "tanh" (GELU's tanh form) or "swiglu", for which the first layer
    returns a gate and a value of `hidden` channels each, concatenated in this order.
    """

    def __init__(
        self,
        key: jax.Array,
        width: int,
        hidden: int,
        *,
        init_std: float,
        activation: str,
        dtype: DTypeLike,
    ):
        key1, key2 = jax.random.split(key)
        inner = hidden * 2 if activation == "swiglu" else hidden
        self.fc1 = linear(normal(key1, (width, inner), init_std), dtype)
        self.fc2 = linear(normal(key2, (hidden, width), init_std), dtype)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.fc1(x)
        if self.activation == "swiglu":
            return self.fc2(fused.swiglu(x))
        return self.fc2(fused.gelu(x, self.activation == "tanh"))


class Attention(nnx.Module):
    """Multi-head self-attention [B, N, width] -> [B, N, width].

    The columns of qkv's kernel [width, 3 width] are q, k, v, each split into heads (the order of
    timm and DINO). bias: "all" (of qkv), "qv" (q_bias, v_bias) or "none". kind: see
    `attention.attend`.
    """

    def __init__(
        self,
        key: jax.Array,
        width: int,
        heads: int,
        *,
        init_std: float,
        dtype: DTypeLike,
        bias: str = "all",
        kind: str = "auto",
    ):
        key1, key2 = jax.random.split(key)
        kernel = normal(key1, (width, 3 * width), init_std)
        self.qkv = linear(kernel, dtype, bias=bias == "all")
        self.biased = bias == "qv"
        if self.biased:
            self.q_bias, self.v_bias = (nnx.Param(jnp.zeros(width, jnp.float32)) for _ in range(2))
        self.proj = linear(normal(key2, (width, width), init_std), dtype)
        self.heads, self.kind = heads, kind

    def padding(self, tokens: int) -> int:
        """Number of padding tokens that the kernel needs, see `attention.padding`."""
        width = self.qkv.in_features // self.heads
        dtype = self.qkv.dtype or jnp.float32
        return attention.padding(self.kind, tokens, width, dtype)

    def __call__(
        self,
        x: jax.Array,
        *,
        rotation: rope.Rotation | None = None,
        seen: int | None = None,
        return_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Output, and the attention weights [B, heads, N, N] (float32, rows sum to 1) or None.

        rotation: of q and k, or None. seen: number of leading tokens that are attended to; the
          others are padding. None: all.
        """
        b, n, width = x.shape
        parts = self.qkv(x).reshape(b, n, 3, self.heads, width // self.heads)
        q, k, v = (parts[:, :, i] for i in range(3))
        if self.biased:
            q, v = (
                part + bias[...].astype(part.dtype).reshape(self.heads, -1)
                for part, bias in ((q, self.q_bias), (v, self.v_bias))
            )
        if rotation is not None:
            q, k = rope.rotate(q, rotation), rope.rotate(k, rotation)
        weights = None
        if return_weights:
            scores = numerics.product("bqhd,bkhd->bhqk", q, k, out=jnp.float32)
            weights = jax.nn.softmax(scores / math.sqrt(q.shape[-1]), axis=-1)
            out = numerics.product("bhqk,bkhd->bqhd", weights.astype(v.dtype), v)
        else:
            out = attention.attend(q, k, v, self.kind, seen)
        return self.proj(out.reshape(b, n, width)), weights


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); x is float32 [B, N, width].

    With layer_scale above 0, each branch ends with a `LayerScale` of this initial value.
    """

    def __init__(
        self,
        key: jax.Array,
        width: int,
        heads: int,
        hidden: int,
        *,
        init_std: float,
        eps: float,
        activation: str,
        dtype: DTypeLike,
        layer_scale: float = 0.0,
        qkv_bias: str = "all",
        attention_kind: str = "auto",
    ):
        key1, key2 = jax.random.split(key)
        self.norm1 = LayerNorm(width, eps)
        self.attn = Attention(
            key1, width, heads, init_std=init_std, dtype=dtype, bias=qkv_bias, kind=attention_kind
        )
        self.norm2 = LayerNorm(width, eps)
        self.mlp = Mlp(key2, width, hidden, init_std=init_std, activation=activation, dtype=dtype)
        self.scaled = layer_scale > 0
        if self.scaled:
            self.ls1, self.ls2 = (LayerScale(width, layer_scale) for _ in range(2))

    def __call__(
        self,
        x: jax.Array,
        branch_scale: jax.Array | None = None,
        rotation: rope.Rotation | None = None,
        *,
        seen: int | None = None,
        return_weights: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Runs the block.

        Args:
          x: float32 [B, N, width].
          branch_scale: float32 [2, B], drop-path's factors on each example's two branches, or None.
          rotation: of queries and keys, or None.
          seen: number of leading tokens that are attended to; the others are padding. None: all.
          return_weights: also return the attention weights.

        Returns:
          x after the block and the weights [B, heads, N, N] or None.
        """
        # Rows [B N, width]: on a GPU, XLA would store [B, N, width] with the batch last and copy it
        # before each product.
        shape, rows = x.shape, x.reshape(-1, x.shape[-1])
        factors: jax.Array | tuple[float, float] = (1.0, 1.0)
        if branch_scale is not None:
            factors = jnp.repeat(branch_scale, shape[1], axis=1)[..., None]
        update, weights = self.attn(
            self.norm1(rows).reshape(shape),
            rotation=rotation,
            seen=seen,
            return_weights=return_weights,
        )
        update = update.reshape(rows.shape).astype(jnp.float32)
        rows = rows + factors[0] * (self.ls1(update) if self.scaled else update)
        update = self.mlp(self.norm2(rows)).astype(jnp.float32)
        rows = rows + factors[1] * (self.ls2(update) if self.scaled else update)
        return rows.reshape(shape), weights
