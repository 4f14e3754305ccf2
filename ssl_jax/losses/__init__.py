"""The papers' objectives as pure functions of network outputs: arrays in, a dict of named terms
out.

No network, no parameters, no config: they can be called from any JAX training code. The means over
pairs, batch and tasks are taken here and nowhere else; under `jit` with a sharded batch they are
means over the global batch. Call them under `jit`: outside, loops over views are compiled anew at
every call. Inside `jax.shard_map` (or `pmap`) all means, centres, Sinkhorn sums and neighbours are
those of a device's shard.

Temperatures: `student_temperature` is that of what is trained, `teacher_temperature` that of the
targets, whoever makes them.
"""

from typing import TYPE_CHECKING

from ssl_jax.losses.bootstrapping import cribo_images, cribo_objects
from ssl_jax.losses.dino import dino
from ssl_jax.losses.dinov2 import batch_koleo, dinov2
from ssl_jax.losses.distillation import distillation
from ssl_jax.losses.flsl import batch_softmax, flsl
from ssl_jax.losses.gram import gram
from ssl_jax.losses.ibot import ibot, ibot_patch
from ssl_jax.losses.ibot_fused import ibot_patch_fused
from ssl_jax.losses.mae import mae, normalize_patches
from ssl_jax.losses.meters import assignment_meters
from ssl_jax.losses.pairings import across_views, masked_patches
from ssl_jax.losses.segmentation import dice, pixel_cross_entropy
from ssl_jax.losses.sop import sop, sop_patch
from ssl_jax.losses.stellar import Tokens, stellar
from ssl_jax.losses.stellar import balanced_tokens as balanced_tokens  # its parts
from ssl_jax.losses.stellar import class_tokens as class_tokens
from ssl_jax.losses.stellar import match_meters as match_meters
from ssl_jax.losses.stellar import reconstruction as reconstruction

__all__ = [
    "Tokens",
    "across_views",
    "assignment_meters",
    "batch_koleo",
    "batch_softmax",
    "cribo_images",
    "cribo_objects",
    "dice",
    "dino",
    "dinov2",
    "distillation",
    "flsl",
    "gram",
    "ibot",
    "ibot_patch",
    "ibot_patch_fused",
    "mae",
    "masked_patches",
    "normalize_patches",
    "pixel_cross_entropy",
    "sop",
    "sop_patch",
    "stellar",
]

# Methods without a loss of their name: what they have instead.
_INSTEAD = {
    "cribo": "cribo_images and cribo_objects",
    "distill": "distillation",
    "massl": "sop, with one member for each anchor and all weights 1",
    "sove": "sop and sop_patch",
}


if not TYPE_CHECKING:  # a checker of types would take every name for known

    def __getattr__(name: str):
        hint = f"; see {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise AttributeError(f"ssl_jax.losses has no {name!r}{hint}")
