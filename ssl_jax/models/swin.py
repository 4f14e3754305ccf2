"""Swin transformer (Liu et al. 2021, "Swin transformer: hierarchical vision transformer using
shifted windows"), as trained by EsViT, iBOT and SOP: attention within windows, which every second
block shifts; after each stage, four adjacent tokens are merged into one of twice the width.

`vit.vit` builds it from a config with `stages`, with the same interface. `config.patch` is the side
of a token in the last stage (32 pixels with four stages), to which masks also refer.
"""

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
from ssl_jax.ops import patchify

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
        b, height, width, _ = x.shape
        _, weights = self.attn(self.norm1(x), shift)
        indices, _ = self.attn.windows(height, width, shift)
        count = height * width
        full = jnp.zeros((b, weights.shape[2], count, count), jnp.float32)
        for i, index in enumerate(indices):
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
        b, height, width, d = x.shape
        indices, regions = self.windows(height, width, shift)
        # Zero padding is attended to like any token; the published code does not mask it.
        tokens = jnp.pad(x.reshape(b, height * width, d), ((0, 0), (0, 1), (0, 0)))
        parts = self.qkv(tokens[:, indices]).reshape(b, *indices.shape, 3, self.heads, -1)
        q, k, v = (parts[:, :, :, i] for i in range(3))
        scores = jnp.einsum("bnqhd,bnkhd->bnhqk", q, k, preferred_element_type=jnp.float32)
        scores = scores / math.sqrt(q.shape[-1]) + self._biases()
        if shift:
            separate = regions[:, :, None] != regions[:, None, :]
            scores = scores + jnp.where(separate, _APART, 0.0)[:, None]
        weights = jax.nn.softmax(scores, axis=-1)
        out = jnp.einsum("bnhqk,bnkhd->bnqhd", weights.astype(v.dtype), v)
        out = self.proj(out.reshape(b, -1, d))
        back = np.empty(height * width + 1, np.int64)
        back[indices.reshape(-1)] = np.arange(indices.size)
        return out[:, back[:-1]].reshape(b, height, width, d), weights

    def windows(self, height, width, shift):
        """See `_windows`."""
        return _windows(height, width, self.window, shift, self.shift_first)

    def _biases(self):
        """[heads, w^2, w^2]."""
        rows, columns = np.divmod(np.arange(self.window**2), self.window)
        down = rows[:, None] - rows[None] + self.window - 1
        right = columns[:, None] - columns[None] + self.window - 1
        return jnp.moveaxis(self.relative_bias[...][down * (2 * self.window - 1) + right], -1, 0)


@functools.cache
def _windows(
    height: int, width: int, window: int, shift: int, shift_first: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Two int arrays [windows, window^2]: the token index at each position of each window
    (height * width for padding at the right and bottom), and the region of each position; a
    shifted window has no attention between regions."""
    padded = [-(-side // window) * window for side in (height, width)]
    below, right = padded[0] - height, padded[1] - width

    def shifted(grid):
        return np.roll(grid, (-shift, -shift), (0, 1))

    def pad(grid):
        return np.pad(grid, ((0, below), (0, right)), constant_values=height * width)

    grid = np.arange(height * width).reshape(height, width)
    grid = pad(shifted(grid)) if shift_first else shifted(pad(grid))
    # 0, except in the last window: 1, or 2 for rows shifted in from the opposite side.
    axes = [
        (np.arange(side) >= side - window).astype(int) + (np.arange(side) >= side - shift)
        for side in padded
    ]
    regions = 3 * axes[0][:, None] + axes[1]

    def split(array):
        rows, columns = (side // window for side in padded)
        parts = array.reshape(rows, window, columns, window).swapaxes(1, 2)
        return parts.reshape(rows * columns, window * window)

    return split(grid), split(regions)


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
