"""Segmentation heads on the patch tokens of a vision transformer.

    from ssl_jax.models import segmentation
    head = segmentation.linear(384, classes=21, batch_norm=True)
    params, stats = head.init(jax.random.key(0))
    out, stats = head.apply(params, stats, [tokens], train=True)  # tokens [B, h, w, 384]
    out.logits                                                     # [B, h, w, 21]

`linear` and `mask_transformer` predict on the patch grid, `fpn` and `upernet` on a finer one. All
are `batch_stats.Stateful`: BatchNorm's running statistics are an argument and a result.
"""

from ssl_jax.models.segmentation.batch_stats import Stateful, stateful
from ssl_jax.models.segmentation.fpn import fpn
from ssl_jax.models.segmentation.linear import linear
from ssl_jax.models.segmentation.mask_transformer import mask_transformer
from ssl_jax.models.segmentation.parts import Logits, upsample
from ssl_jax.models.segmentation.pyramid import STRIDES
from ssl_jax.models.segmentation.upernet import upernet

__all__ = [
    "STRIDES",
    "Logits",
    "Stateful",
    "fpn",
    "linear",
    "mask_transformer",
    "stateful",
    "upernet",
    "upsample",
]
