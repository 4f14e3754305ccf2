"""Semantic FPN (Kirillov et al. 2019, "Panoptic feature pyramid networks", section 3.1)."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from ssl_jax.models.segmentation import parts, pyramid
from ssl_jax.models.segmentation.batch_stats import Stateful, stateful


@functools.cache
def fpn(
    width: int,
    classes: int,
    *,
    channels: int = 256,
    hidden: int = 128,
    dropout: float = 0.1,
    resample: bool = True,
) -> Stateful:
    """A feature pyramid of `channels`. Convolutions with BatchNorm, ReLU and twofold upsampling at
    `hidden` channels bring each level to the finest resolution; their sum is classified.

    resample: whether the maps are first resampled to a pyramid. If not, all four levels keep the
    stride of the maps, and are upsampled and resized back (code of FLSL).

    apply(params, stats, maps, *, train=False, keys=None): four maps [B, h, w, width] -> Logits
    [B, 4 h, 4 w, classes], or [B, h, w, classes] without `resample`.
    """
    return stateful(
        _Fpn,
        width=width,
        classes=classes,
        channels=channels,
        hidden=hidden,
        dropout=dropout,
        resample=resample,
    )


class _Fpn(nnx.Module):
    def __init__(self, key, width, classes, channels, hidden, dropout, resample):
        keys = iter(jax.random.split(key, 20))
        levels = range(len(pyramid.STRIDES))
        init = nnx.initializers.glorot_uniform()
        key_pyramid = next(keys)
        self.pyramid = pyramid.Pyramid(key_pyramid, width) if resample else None
        self.lateral = nnx.List(
            parts.convolution(next(keys), width, channels, 1, init=init) for _ in levels
        )
        self.smooth = nnx.List(
            parts.convolution(next(keys), channels, channels, 3, init=init) for _ in levels
        )
        # One convolution per doubling, and one for the finest level.
        self.scale = nnx.List(
            nnx.List(
                parts.ConvNormRelu(next(keys), channels if i == 0 else hidden, hidden, 3)
                for i in range(max(1, level))
            )
            for level in levels
        )
        self.classify = parts.classifier(next(keys), hidden, classes)
        self.dropout = dropout

    def __call__(self, maps: Sequence[jax.Array], *, train=False, keys=None) -> parts.Logits:
        maps = self.pyramid(maps, train) if self.pyramid else maps
        inner = [conv(x.astype(jnp.float32)) for conv, x in zip(self.lateral, maps)]
        for i in range(len(inner) - 1, 0, -1):
            inner[i - 1] = inner[i - 1] + parts.nearest(inner[i], inner[i - 1].shape[1:3])
        sizes = [x.shape[1:3] for x in inner]
        levels = []
        for level, (smooth, x, convs) in enumerate(zip(self.smooth, inner, self.scale)):
            x = smooth(x)
            for i, conv in enumerate(convs):
                x = conv(x, train)
                if level:
                    x = parts.upsample(x, self._larger(sizes, level, i))
            levels.append(parts.upsample(x, sizes[0]))
        total = sum(levels[1:], levels[0])
        return parts.Logits(self.classify(parts.drop_channels(total, self.dropout, keys)))

    def _larger(self, sizes, level, i):
        """The size of a level after its i-th upsampling."""
        if self.pyramid:
            return sizes[level - 1 - i]
        return tuple(length * 2 ** (i + 1) for length in sizes[level])
