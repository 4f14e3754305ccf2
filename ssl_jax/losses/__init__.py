"""The papers' objectives as pure functions of network outputs: arrays in, a dict of named terms
out.

No network, no parameters, no config: they can be called from any JAX training code. The means over
pairs, batch and tasks are taken here and nowhere else; under `jit` with a sharded batch they are
means over the global batch.
"""

from ssl_jax.losses.cribo import cribo_images, cribo_objects
from ssl_jax.losses.dino import dino
from ssl_jax.losses.dinov2 import batch_koleo, dinov2
from ssl_jax.losses.flsl import batch_softmax, flsl
from ssl_jax.losses.ibot import ibot, ibot_patch
from ssl_jax.losses.mae import mae, normalize_patches
from ssl_jax.losses.meters import assignment_meters
from ssl_jax.losses.pairings import across_views, masked_patches
from ssl_jax.losses.segmentation import dice, pixel_cross_entropy
from ssl_jax.losses.sop import sop, sop_patch
from ssl_jax.losses.stellar import stellar

__all__ = [
    "across_views",
    "assignment_meters",
    "batch_koleo",
    "batch_softmax",
    "cribo_images",
    "cribo_objects",
    "dice",
    "dino",
    "dinov2",
    "flsl",
    "ibot",
    "ibot_patch",
    "mae",
    "masked_patches",
    "normalize_patches",
    "pixel_cross_entropy",
    "sop",
    "sop_patch",
    "stellar",
]
