"""Swin transformer (Liu et al. 2021, "Swin transformer: hierarchical vision transformer using
shifted windows"), as trained by EsViT, iBOT and SOP: attention within windows, which every second
block shifts; after each stage, four adjacent tokens are merged into one of twice the width.

`vit.vit` builds it from a config with `stages`, with the same interface. `config.patch` is the side
of a token in the last stage (32 pixels with four stages), to which masks also refer.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from ssl_jax.models import layers as layers_lib
from ssl_jax.models import stack
from ssl_jax.models.shape import Tokens, ViTConfig
from ssl_jax.ops import numerics, patchify

_APART = -100.0  # added to scores between tokens that are adjacent only because of the shift


class Swin(nnx.Module):
    """The network of a config with `stages`, see `vit.vit`.

    Parameters: "patch" (kernel [side * side * channels, d_0], rows ordered by row, column and
    channel), "patch_norm", "mask_token" [1, d_0], "norm"; for each stage "stages/i/blocks" (each
    array [depth_i, ...]; "attn/relative_bias" is [(2 w - 1)^2, heads], indexed by the offset in
    rows and columns); for all but the last "stages/i/merge_norm" and "stages/i/merge" (kernel
    [4 d_i, 2 d_i]).
    """

    def __init__(self, key: jax.Array, config: ViTConfig):
        c, count = config, len(config.stages)
        keys = jax.random.split(key, count + 1)
        side, first = c.patch >> (count - 1), c.width >> (count - 1)
        self.config, self.side = c, side
        kernel = layers_lib.uniform(keys[0], (side * side * c.in_channels, first))
        self.patch = layers_lib.linear(kernel, c.dtype)
        self.patch_norm = layers_lib.LayerNorm(first, c.norm_eps)
        if c.mask_token:
            self.mask_token = nnx.Param(jnp.zeros((1, first), jnp.float32))
        self.stages = nnx.List([_Stage(keys[i + 1], c, i) for i in range(count)])
        self.norm = layers_lib.LayerNorm(c.width, c.norm_eps)

    def __call__(
        self,
        images: jax.Array,
        masks: jax.Array | None = None,
        keep: None = None,
        keys: jax.Array | None = None,
        layers: Sequence[int] = (),
        norm_layers: bool = True,
        attention: bool = False,
    ) -> Tokens:
        """See `apply` in `vit.vit`. masks: [B, n] for the last stage's tokens. layers: block
        indices counted over all stages; outputs before the last stage have smaller patches and
        widths, and no norm."""
        c = self.config
        scales = None
        if keys is not None and c.drop_path > 0:
            scales = stack.drop_path_scales(keys, c.drop_path, c.depth)
        x, start, weights = self._embed(images, masks), 0, None
        inner = {-1: self._tokens(x, False)}
        for i, (depth, stage) in enumerate(zip(c.stages, self.stages, strict=True)):
            last, stop = i == len(c.stages) - 1, start + depth
            requested = {j - start for j in layers if start <= j < stop}
            part = None if scales is None else scales[start:stop]
            x, outputs, weights = stage(x, part, requested, attention and last)
            norm = last and norm_layers
            inner |= {start + j: self._tokens(y, norm) for j, y in outputs.items()}
            x, start = x if last else stage.merged(x), stop
        result = self._tokens(x)
        return result._replace(layers={i: inner[i] for i in sorted(layers)}, attention=weights)

    def _tokens(self, x, norm=True):
        x = self.norm(x) if norm else x
        return Tokens(None, x.reshape(x.shape[0], -1, x.shape[-1]), None, {}, None)

    def _embed(self, images, masks):
        """Images [B, H, W, C] -> [B, h, w, d_0] (float32) on the first stage's grid."""
        c = self.config
        b, height, width, _ = images.shape
        mean, std = (jnp.array(values, jnp.float32) for values in (c.mean, c.std))
        x = patchify((images.astype(jnp.float32) - mean) / std, self.side)
        x = self.patch_norm(self.patch(x)).reshape(b, height // self.side, width // self.side, -1)
        if masks is None:
            return x
        times = c.patch // self.side
        masks = masks.reshape(b, height // c.patch, width // c.patch)
        masks = masks.repeat(times, axis=1).repeat(times, axis=2)
        return jnp.where(masks[..., None], self.mask_token[...], x)


class _Stage(nnx.Module):
    """Blocks on one grid, and the merging of its tokens for the next stage."""

    def __init__(self, key: jax.Array, config: ViTConfig, index: int):
        c, after = config, len(config.stages) - 1 - index
        width, native = c.width >> after, c.image_size // (c.patch >> after)
        self.width, self.depth, self.scan, self.remat = width, c.stages[index], c.scan, c.remat
        # Windows follow the native grid, not the image; a small native grid is one window.
        self.window = min(c.window, native)
        self.shift = c.window // 2 if native > c.window else 0
        build = functools.partial(
            _Block, width=width, heads=c.heads >> after, window=self.window, config=c
        )
        key_blocks, key_merge = jax.random.split(key)
        self.blocks = stack.stacked(build, key_blocks, self.depth)
        if after:
            self.merge_norm = layers_lib.LayerNorm(4 * width, c.norm_eps)
            kernel = layers_lib.normal(key_merge, (4 * width, 2 * width), c.init_std)
            self.merge = layers_lib.linear(kernel, c.dtype, bias=False)

    def __call__(self, x, scales, requested, attention):
        """x after all blocks, {i: x after block i} for i in `wanted`, and the last block's
        attention weights or None."""
        graphdef, state = nnx.split(self.blocks, graph=True)

        def body(shift):
            def one(x, inputs):
                state, scale = inputs
                return nnx.merge(graphdef, state)(x, scale, shift), None

            return stack.recomputed(one, self.remat, in_scan=self.scan)

        inputs, outputs, weights = (state, scales), {}, None
        if self.scan and not self.shift and not requested and not attention:
            return jax.lax.scan(body(0), x, inputs)[0], {}, None
        for i, row in enumerate(stack.apart(inputs, self.depth)):
            shift = self.shift * (i % 2)
            if attention and i == self.depth - 1:
                block = nnx.merge(graphdef, row[0])
                weights = block.weights(x, shift)
            x, _ = body(shift)(x, row)
            if i in requested:
                outputs[i] = x
        return x, outputs, weights

    def merged(self, x):
        """[B, h, w, d] -> [B, h / 2, w / 2, 2 d]: concatenates four adjacent tokens, column by
        column, then applies a norm and a linear layer."""
        corners = [x[:, i::2, j::2] for j in range(2) for i in range(2)]
        return self.merge(self.merge_norm(jnp.concatenate(corners, axis=-1))).astype(jnp.float32)


class _Block(nnx.Module):
    """x + attention(norm(x)) within windows, then x + mlp(norm(x)); x is float32 [B, h, w, d]."""

    def __init__(self, key: jax.Array, width: int, heads: int, window: int, config: ViTConfig):
        c = config
        key1, key2 = jax.random.split(key)
        self.norm1 = layers_lib.LayerNorm(width, c.norm_eps)
        self.attn = _Attention(key1, width, heads, window, c)
        self.norm2 = layers_lib.LayerNorm(width, c.norm_eps)
        self.mlp = layers_lib.Mlp(
            key2,
            width,
            int(width * c.mlp_ratio),
            init_std=c.init_std,
            activation=c.activation,
            dtype=c.dtype,
        )

    def __call__(self, x, scale, shift):
        """scale: drop-path factors [2, B] or None. shift: of the windows, right and down."""

        def added(x, branch, which):
            branch = branch.astype(jnp.float32)
            return x + (branch if scale is None else scale[which][:, None, None, None] * branch)

        out, _ = self.attn(self.norm1(x), shift)
        x = added(x, out, 0)
        return added(x, self.mlp(self.norm2(x)), 1)

    def weights(self, x, shift):
        """Attention weights [B, heads, N, N] over the whole grid; rows sum to 1 minus the weight on
        padding."""
        _, weights = self.attn(self.norm1(x), shift)
        count = math.prod(x.shape[1:3])
        full = jnp.zeros((len(x), weights.shape[2], count, count), jnp.float32)
        for i, index in enumerate(self.attn.windows(x, shift).tokens()):
            full = full.at[:, :, index[:, None], index[None]].set(weights[:, i], mode="drop")
        return full


class _Attention(nnx.Module):
    """Self-attention within windows, with a learned bias per relative position."""

    def __init__(self, key: jax.Array, width: int, heads: int, window: int, config: ViTConfig):
        key1, key2, key3 = jax.random.split(key, 3)
        std, dtype = config.init_std, config.dtype
        self.qkv = layers_lib.linear(layers_lib.normal(key1, (width, 3 * width), std), dtype)
        self.proj = layers_lib.linear(layers_lib.normal(key2, (width, width), std), dtype)
        self.relative_bias = nnx.Param(layers_lib.normal(key3, ((2 * window - 1) ** 2, heads), std))
        self.heads, self.window, self.shift_first = heads, window, config.shift_first

    def __call__(self, x, shift):
        """[B, h, w, d] -> [B, h, w, d] and the weights [B, windows, heads, w^2, w^2] (float32)."""
        windows = self.windows(x, shift)
        # Zero padding is attended to like any token; the published code does not mask it.
        parts = self.qkv(windows.cut(x.astype(self.qkv.dtype)))
        parts = parts.reshape(*parts.shape[:3], 3, self.heads, -1)
        q, k, v = (parts[:, :, :, i] for i in range(3))
        scores = numerics.product("bnqhd,bnkhd->bnhqk", q, k, out=jnp.float32)
        scores = scores / math.sqrt(q.shape[-1]) + self._biases()
        if shift:
            regions = windows.regions()
            separate = regions[:, :, None] != regions[:, None, :]
            scores = scores + jnp.where(separate, _APART, 0.0)[:, None]
        weights = jax.nn.softmax(scores, axis=-1)
        out = numerics.product("bnhqk,bnkhd->bnqhd", weights.astype(v.dtype), v)
        return windows.joined(self.proj(out.reshape(*out.shape[:3], -1))), weights

    def windows(self, x, shift):
        """The windows of x [B, h, w, d]."""
        _, height, width, _ = x.shape
        return _Windows(height, width, self.window, shift, self.shift_first)

    def _biases(self):
        """[heads, w^2, w^2]."""
        rows, columns = np.divmod(np.arange(self.window**2), self.window)
        down = rows[:, None] - rows[None] + self.window - 1
        right = columns[:, None] - columns[None] + self.window - 1
        return jnp.moveaxis(self.relative_bias[...][down * (2 * self.window - 1) + right], -1, 0)


@dataclasses.dataclass(frozen=True)
class _Windows:
    """Windows of window^2 tokens on a grid that is shifted to the top left, and padded at the right
    and bottom."""

    height: int
    width: int
    window: int
    shift: int
    shift_first: bool

    @property
    def padded(self) -> tuple[int, ...]:
        """Height and width after padding."""
        return tuple(-(-side // self.window) * self.window for side in (self.height, self.width))

    def cut(self, x: jax.Array) -> jax.Array:
        """[B, height, width, d] -> [B, windows, window^2, d], with zeros as padding."""
        rows, columns = self.padded
        widths = ((0, 0), (0, rows - self.height), (0, columns - self.width), (0, 0))
        if self.shift_first:
            return self._split(jnp.pad(self._rolled(x, -self.shift), widths))
        return self._split(self._rolled(jnp.pad(x, widths), -self.shift))

    def joined(self, x: jax.Array) -> jax.Array:
        """The inverse of `cut`."""
        rows, columns = (side // self.window for side in self.padded)
        x = x.reshape(-1, rows, columns, self.window, self.window, x.shape[-1]).swapaxes(2, 3)
        x = x.reshape(-1, *self.padded, x.shape[-1])
        if self.shift_first:
            return self._rolled(x[:, : self.height, : self.width], self.shift)
        return self._rolled(x, self.shift)[:, : self.height, : self.width]

    def tokens(self) -> jax.Array:
        """Int32 [windows, window^2]: the token at each position; height * width for padding."""
        count = self.height * self.width
        index = jnp.arange(count).reshape(1, self.height, self.width, 1) - count
        return self.cut(index)[0, :, :, 0] + count

    def regions(self) -> np.ndarray:
        """Int [windows, window^2]: the region of each position; a shifted window has no attention
        between regions."""
        # 0, except in the last window: 1, or 2 for rows shifted in from the opposite side.
        rows, columns = (
            (np.arange(side) >= side - self.window).astype(int)
            + (np.arange(side) >= side - self.shift)
            for side in self.padded
        )
        return self._split((3 * rows[:, None] + columns)[None, :, :, None])[0, :, :, 0]

    def _rolled(self, x, by):
        return jnp.roll(x, (by, by), (1, 2)) if self.shift else x

    def _split(self, x):
        rows, columns = (side // self.window for side in self.padded)
        x = x.reshape(-1, rows, self.window, columns, self.window, x.shape[-1]).swapaxes(2, 3)
        return x.reshape(-1, rows * columns, self.window**2, x.shape[-1])


def forward_flops(config: ViTConfig, height: int, width: int) -> float:
    """FLOPs of the matrix products in one image's forward pass; see `zoo.forward_flops`."""
    c, count = config, len(config.stages)
    side = c.patch >> (count - 1)
    total = (height // side) * (width // side) * side**2 * c.in_channels * (c.width >> (count - 1))
    for i, depth in enumerate(c.stages):
        after = count - 1 - i
        d, cell, native = c.width >> after, c.patch >> after, c.image_size // (c.patch >> after)
        window = min(c.window, native)
        tokens = (height // cell) * (width // cell)
        padded = math.prod(-(-side // cell // window) * window for side in (height, width))
        attention = 4 * padded * d * d + 2 * padded * window**2 * d
        total += depth * (attention + 2 * tokens * d * int(d * c.mlp_ratio))
        total += tokens // 4 * 8 * d * d if after else 0
    return 2.0 * total
