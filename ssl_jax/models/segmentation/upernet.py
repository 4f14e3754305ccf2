"""UPerNet: a feature pyramid with pooled context (Xiao et al. 2018, "Unified perceptual parsing for
scene understanding")."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from ssl_jax.models.segmentation import parts, pyramid
from ssl_jax.models.segmentation.batch_stats import Stateful, stateful

POOLS = (1, 2, 3, 6)  # cells per side to which the coarsest map is pooled
_AUXILIARY = 2, 256  # level that the auxiliary head reads, and the head's channels


@functools.cache
def upernet(width: int, classes: int, *, channels: int = 512, dropout: float = 0.1) -> Stateful:
    """UPerNet with an auxiliary head, a convolution and a classifier on the third map.

    apply(params, stats, maps, *, train=False, keys=None): four maps [B, h, w, width] -> Logits
    [B, 4 h, 4 w, classes], in training with auxiliary [B, h, w, classes].
    """
    return stateful(_UperNet, width=width, classes=classes, channels=channels, dropout=dropout)


class _UperNet(nnx.Module):
    def __init__(self, key, width, classes, channels, dropout):
        keys = iter(jax.random.split(key, 20))

        def block(inputs, out, size):
            return parts.ConvNormRelu(next(keys), inputs, out, size)

        finer = range(len(pyramid.STRIDES) - 1)
        self.pyramid = pyramid.Pyramid(next(keys), width)
        self.pools = nnx.List(block(width, channels, 1) for _ in POOLS)
        self.context = block(width + len(POOLS) * channels, channels, 3)
        self.lateral = nnx.List(block(width, channels, 1) for _ in finer)
        self.smooth = nnx.List(block(channels, channels, 3) for _ in finer)
        self.fuse = block(len(pyramid.STRIDES) * channels, channels, 3)
        self.classify = parts.classifier(next(keys), channels, classes)
        self.auxiliary = block(width, _AUXILIARY[1], 3)
        self.classify_auxiliary = parts.classifier(next(keys), _AUXILIARY[1], classes)
        self.dropout = dropout

    def __call__(self, maps: Sequence[jax.Array], *, train=False, keys=None) -> parts.Logits:
        levels = self.pyramid(maps, train)
        inner = [block(x, train) for block, x in zip(self.lateral, levels)]
        inner.append(self._context(levels[-1], train))
        for i in range(len(inner) - 1, 0, -1):
            inner[i - 1] = inner[i - 1] + parts.upsample(inner[i], inner[i - 1].shape[1:3])
        outs = [block(x, train) for block, x in zip(self.smooth, inner)] + inner[-1:]
        finest = inner[0].shape[1:3]
        x = self.fuse(jnp.concatenate([parts.upsample(x, finest) for x in outs], axis=-1), train)
        logits = self.classify(parts.drop_channels(x, self.dropout, keys))
        if not train:
            return parts.Logits(logits)
        x = self.auxiliary(levels[_AUXILIARY[0]], train)
        folded = None if keys is None else jax.vmap(lambda key: jax.random.fold_in(key, 1))(keys)
        x = parts.drop_channels(x, self.dropout, folded)
        return parts.Logits(logits, self.classify_auxiliary(x))

    def _context(self, x, train):
        """Pools at several sizes, upsamples and merges (PSPNet)."""
        size = x.shape[1:3]
        pooled = [
            parts.upsample(block(parts.average(x, cells), train), size)
            for cells, block in zip(POOLS, self.pools)
        ]
        return self.context(jnp.concatenate([x, *pooled], axis=-1), train)
