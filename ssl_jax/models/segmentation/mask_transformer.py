"""Segmenter's decoder: class tokens attend to patches (Strudel et al. 2021, section 3.2)."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from ssl_jax.models import heads, layers, stack
from ssl_jax.models.segmentation import parts
from ssl_jax.models.segmentation.batch_stats import Stateful, stateful
from ssl_jax.ops import numerics

_HEAD_WIDTH = 64  # channels of an attention head
_EPS = 1e-5  # of LayerNorm


@functools.cache
def mask_transformer(
    width: int,
    classes: int,
    *,
    levels: int = 1,
    channels: int = 0,
    depth: int = 2,
    dropout: float = 0.0,
) -> Stateful:
    """Patches, projected to `channels`, and one learned token per class pass `depth` transformer
    blocks. The score of a class at a patch is the cosine of their further projections, followed by
    a LayerNorm over the classes.

    channels: of the decoder; 0 = width. dropout: on channels of the input tokens; 0 in the paper.
    apply: as in `linear`.
    """
    channels = channels or width
    return stateful(
        _MaskTransformer,
        width=width * levels,
        classes=classes,
        channels=channels,
        depth=depth,
        heads=next(n for n in range(max(1, channels // _HEAD_WIDTH), 0, -1) if channels % n == 0),
        dropout=dropout,
    )


class _MaskTransformer(nnx.Module):
    def __init__(self, key, width, classes, channels, depth, heads, dropout):
        keys = jax.random.split(key, 5)
        std = channels**-0.5
        self.embed = layers.linear(layers.normal(keys[0], (width, channels), 0.02), jnp.float32)
        self.classes = nnx.Param(layers.normal(keys[1], (classes, channels), 0.02))
        block = functools.partial(
            layers.Block,
            width=channels,
            heads=heads,
            hidden=4 * channels,
            init_std=0.02,
            eps=_EPS,
            activation="erf",
            dtype=jnp.float32,
            attention_kind="xla",
        )
        self.blocks = stack.stacked(block, keys[2], depth)
        self.norm = layers.LayerNorm(channels, _EPS)
        self.patch_projection = nnx.Param(layers.normal(keys[3], (channels, channels), std))
        self.class_projection = nnx.Param(layers.normal(keys[4], (channels, channels), std))
        self.class_norm = layers.LayerNorm(classes, _EPS)
        self.dropout = dropout

    def __call__(self, maps: Sequence[jax.Array], *, train=False, keys=None) -> parts.Logits:
        del train  # unused
        x = jnp.concatenate([x.astype(jnp.float32) for x in maps], axis=-1)
        batch, height, width, _ = x.shape
        x = self.embed(parts.drop_channels(x, self.dropout, keys)).reshape(
            batch, height * width, -1
        )
        count, channels = self.classes[...].shape
        tokens = jnp.broadcast_to(self.classes[...], (batch, count, channels))
        x = jnp.concatenate([x, tokens], axis=1)
        x = self.norm(stack.run(self.blocks, x))
        pairs = ((x[:, :-count], self.patch_projection), (x[:, -count:], self.class_projection))
        patches, tokens = (
            heads.l2_normalize(numerics.product("bnd,de->bne", part, matrix[...]))
            for part, matrix in pairs
        )
        masks = self.class_norm(numerics.product("bnd,bcd->bnc", patches, tokens))
        return parts.Logits(masks.reshape(batch, height, width, count))
