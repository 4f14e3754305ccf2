"""A linear classifier of patch tokens."""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from ssl_jax.models.segmentation import parts
from ssl_jax.models.segmentation.batch_stats import Stateful, stateful


@functools.cache
def linear(
    width: int, classes: int, *, levels: int = 1, batch_norm: bool = False, dropout: float = 0.0
) -> Stateful:
    """A linear layer on the concatenated tokens of one or several layers, optionally after
    BatchNorm.

    apply(params, stats, maps, *, train=False, keys=None): `levels` maps [B, h, w, width] and keys
    [B] for dropout -> Logits [B, h, w, classes].

    As in iBOT (appendix E: no norm, four layers), CrIBo (section 4.2: the linear decoder of
    Segmenter) and STELLAR (appendix C.2: BatchNorm).
    """
    return stateful(
        _Linear, width=width * levels, classes=classes, batch_norm=batch_norm, dropout=dropout
    )


class _Linear(nnx.Module):
    def __init__(self, key, width, classes, batch_norm, dropout):
        self.norm = parts.batch_norm(width) if batch_norm else None
        self.classify = parts.classifier(key, width, classes)
        self.dropout = dropout

    def __call__(self, maps: Sequence[jax.Array], *, train=False, keys=None) -> parts.Logits:
        x = jnp.concatenate([x.astype(jnp.float32) for x in maps], axis=-1)
        if self.norm is not None:
            x = self.norm(x, use_running_average=not train)
        return parts.Logits(self.classify(parts.drop_channels(x, self.dropout, keys)))
