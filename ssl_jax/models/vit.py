"""Vision transformer (Dosovitskiy et al. 2021) for self-supervised methods: any image size, masks,
queries, registers, drop-path.

    from ssl_jax.models import vit
    model = vit.vit(vit.ViTConfig(width=192, depth=12, heads=3, patch=16, image_size=224))
    params = model.init(jax.random.key(0))
    tokens = model.apply(params, images)    # images [B, H, W, 3] in [0, 1]
    tokens.cls, tokens.patches              # [B, 192], [B, n, 192]

Tokens inside the network are ordered: class token, registers, patches (row by row), queries.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from ssl_jax.models import layers as layers_lib
from ssl_jax.models import position as position_lib
from ssl_jax.models import rope, stack, stem, swin
from ssl_jax.models.functional import Model, functional
from ssl_jax.models.shape import Tokens, ViTConfig, check_inputs
from ssl_jax.ops import patchify


@functools.cache
def vit(config: ViTConfig) -> Model:
    """The network of a config as init(key) -> params and apply(params, images, ...) -> Tokens (see
    `apply` in this function).

    Parameters: "patch" (kernel [patch * patch * channels, d], rows ordered by row, column, channel
    within the patch; or those of `stem.ConvStem`), "cls" [1, d], "position" [(1 if cls) + n, d]
    (class token's code first; only if learned), "registers" [r, d], "queries" [q, d], "mask_token"
    [1, d], "blocks" (each array [depth, ...]), "norm". With `config.stages`: see `swin.Swin`.
    """
    build = swin.Swin if config.stages else _ViT
    model = functional(functools.partial(build, config=config), build.__call__)

    def apply(
        params,
        images,
        *,
        masks=None,
        keep=None,
        keys=None,
        layers=(),
        norm_layers=True,
        attention=False,
    ) -> Tokens:
        """Encodes images.

        Args:
          params: parameters from init. A "mask_token" is ignored if this config has none, so that
            a clean (teacher or evaluation) pass can use the student's tree.
          images: float [B, H, W, channels] in [0, 1]; H and W multiples of the patch.
          masks: bool [B, n], True = the mask token replaces the patch embedding before position
            embeddings are added.
          keep: int32 [B, m], indices of the patches to keep; the others are dropped after position
            embeddings are added.
          keys: [B] typed PRNG keys, one per image, for drop-path and the augmentation of rotary
            position embeddings; None = neither.
          layers: indices of blocks whose outputs are also returned, -1 = the input of the first;
            norm_layers: whether to apply the final norm to them.
          attention: also return the last block's attention weights.

        Raises:
          ValueError: an invalid shape, dtype or index, named in the message.
        """
        if not config.mask_token:
            params = {name: value for name, value in params.items() if name != "mask_token"}
        check_inputs(config, images, masks, keep, keys, layers)
        outputs = tuple(layers), norm_layers, attention
        return model.apply(params, images, masks, keep, keys, *outputs)

    return model._replace(apply=apply)


def module(config: ViTConfig, key: jax.Array) -> "_ViT":
    """The network as a flax.nnx.Module, for use inside another module."""
    return _ViT(key, config)


class _ViT(nnx.Module):
    def __init__(self, key, config: ViTConfig):
        c, d = config, config.width
        keys = jax.random.split(key, 5)
        self.config, self.native = c, (c.grid, c.grid)  # native: (h, w) of the position embeddings
        if c.stem == "conv":
            conv = stem.ConvStem(keys[0], c.patch, c.in_channels, d, c.norm_eps, c.dtype)
            self.patch: nnx.Module = conv
        else:
            # torch's default for convolutions, which DINO keeps and which scales with the patch
            # size, unlike init_std.
            self.patch = layers_lib.linear(
                layers_lib.uniform(keys[0], (c.patch * c.patch * c.in_channels, d)), c.dtype
            )
        if c.cls:
            self.cls = nnx.Param(layers_lib.normal(keys[1], (1, d), c.cls_std or c.init_std))
        if c.position == "learned":
            codes = layers_lib.normal(keys[2], (c.cls + c.grid**2, d), c.position_std or c.init_std)
            self.position = nnx.Param(codes)
        if c.registers:  # almost zero, as in the code of DINOv2
            key_registers = jax.random.fold_in(keys[3], 1)
            self.registers = nnx.Param(layers_lib.normal(key_registers, (c.registers, d), 1e-6))
        if c.queries:  # N(0, 1/d), as in STELLAR
            self.queries = nnx.Param(layers_lib.normal(keys[3], (c.queries, d), d**-0.5))
        if c.mask_token:
            self.mask_token = nnx.Param(jnp.zeros((1, d), jnp.float32))
        block = functools.partial(
            layers_lib.Block,
            width=d,
            heads=c.heads,
            hidden=c.hidden,
            init_std=c.init_std,
            eps=c.norm_eps,
            activation=c.activation,
            dtype=c.dtype,
            layer_scale=c.layer_scale,
            qkv_bias=c.qkv_bias,
            attention_kind=c.attention,
        )
        self.blocks = stack.stacked(block, keys[4], c.depth)
        self.norm = layers_lib.LayerNorm(d, c.norm_eps)

    def __call__(
        self, images, masks=None, keep=None, keys=None, layers=(), norm_layers=True, attention=False
    ) -> Tokens:
        c = self.config
        x = self._embed(images, masks, keep)
        scales = None
        if keys is not None and c.drop_path > 0:
            scales = stack.drop_path_scales(keys, c.drop_path, c.depth)
        rotation = self._rotation(images, keep, keys)
        x, inner, weights = self._encode(x, scales, rotation, layers, attention)
        if weights is not None and c.registers:
            hidden = slice(int(c.cls), c.cls + c.registers)
            for axis in (2, 3):
                weights = jnp.delete(weights, hidden, axis=axis)
        first, last = c.cls + c.registers, x.shape[1] - c.queries

        def tokens(x, layers, weights, norm=True):
            x = self.norm(x) if norm else x.astype(jnp.float32)
            cls = x[:, 0] if c.cls else None
            queries = x[:, last:] if c.queries else None
            return Tokens(cls, x[:, first:last], queries, layers, weights)

        inner = {i: tokens(y, {}, None, norm_layers) for i, y in inner.items()}
        return tokens(x, inner, weights)

    def queries_after(self, images: jax.Array, middle: jax.Array | None) -> jax.Array:
        """The query tokens [B, q, d] after the final norm; `middle` [depth - 1, N, d] is added to
        the tokens after every block but the last."""
        c = self.config
        codes = None if middle is None else jnp.pad(middle, ((0, 1), (0, 0), (0, 0)))
        x = self._embed(images, None, None)
        rotation = self._rotation(images, None, None)
        x = stack.run(self.blocks, x, codes=codes, rotation=rotation, scan=c.scan, remat=c.remat)
        return self.norm(x[:, x.shape[1] - c.queries :])

    def _embed(self, images, masks, keep):
        """Images [B, H, W, C] -> tokens [B, N, d] (float32) before the first block."""
        c = self.config
        b, height, width, _ = images.shape
        mean, std = (jnp.array(values, jnp.float32) for values in (c.mean, c.std))
        x = (images.astype(jnp.float32) - mean) / std
        x = self.patch(x if c.stem == "conv" else patchify(x, c.patch)).astype(jnp.float32)
        if masks is not None:
            x = jnp.where(masks[..., None], self.mask_token[...], x)
        cls_code, codes = self._codes((height // c.patch, width // c.patch))
        x = x + codes
        if keep is not None:
            x = jnp.take_along_axis(x, keep[..., None], axis=1)
        parts = [x]
        if c.registers:
            parts.insert(0, jnp.broadcast_to(self.registers[...], (b, c.registers, c.width)))
        if c.cls:
            parts.insert(0, jnp.broadcast_to(self.cls[...] + cls_code, (b, 1, c.width)))
        if c.queries:
            parts.append(jnp.broadcast_to(self.queries[...], (b, c.queries, c.width)))
        return jnp.concatenate(parts, axis=1)

    def _codes(self, grid):
        """Position embeddings of the class token ([1, d], or 0) and of the patches ([n, d], or 0)
        for an image with this grid.
        """
        c = self.config
        if c.position == "rope":
            return 0.0, 0.0
        resize = functools.partial(
            position_lib.resize_codes,
            native=self.native,
            target=grid,
            rule=c.position_resize,
            kernel=c.resize_kernel,
        )
        if c.position == "sincos":
            return 0.0, resize(jnp.asarray(position_lib.sincos_2d(c.grid, c.width), jnp.float32))
        codes = self.position[...]
        return codes[: int(c.cls)], resize(codes[int(c.cls) :])

    def _rotation(self, images, keep, keys):
        """The rotation of queries and keys of all tokens; None without RoPE."""
        c, (_, height, width, _) = self.config, images.shape
        if c.position != "rope":
            return None
        grid = height // c.patch, width // c.patch
        rotation = rope.of_patches(grid, c.width // c.heads, c.rope, keys)
        if keep is not None:
            rotation = rope.keep(rotation, keep)
        return rope.among(rotation, c.cls + c.registers, c.queries)

    def _encode(self, x, scales, rotation, layers, attention):
        """Runs all blocks: x after the last, {i: x after block i} for i in layers, and the last
        block's weights or None.

        With scan, the stack is split only where an output is requested.
        """
        c, depth = self.config, self.config.depth
        # The last block runs separately if its attention weights are requested.
        stacked = depth - 1 if attention else depth
        outputs, start, weights = {-1: x}, 0, None
        for stop in sorted({i + 1 for i in layers if 0 <= i < stacked} | {stacked}):
            x = stack.run(
                self.blocks,
                x,
                scales,
                rotation=rotation,
                start=start,
                stop=stop,
                scan=c.scan,
                remat=c.remat,
            )
            outputs[stop - 1], start = x, stop
        if attention:
            last = stack.block_of(self.blocks, depth - 1)
            scale = None if scales is None else scales[depth - 1]
            x, weights = last(x, scale, rotation, return_weights=True)
            outputs[depth - 1] = x
        return x, {i: outputs[i] for i in sorted(layers)}, weights
