"""Numerics shared by self-supervised methods: arrays in, arrays out, no networks, no configs.

All functions work under jit, vmap, grad and shard_map and on sharded arrays, and compute in float32
or wider, also where JAX may promote neither ranks nor types. Arrays whose annotation begins with
`*b` or `*#b` take any leading batch dimensions; banks, memories and anchors have none.
"""

from ssl_jax.ops.alignment import Alignment, align_sets
from ssl_jax.ops.centering import centered_softmax, ema_center
from ssl_jax.ops.clustering import joint_view_clustering, object_tokens
from ssl_jax.ops.cycle import Cycle, cycle_consistent
from ssl_jax.ops.divergence import cross_entropy, entropy, volume_regularizer
from ssl_jax.ops.koleo import koleo
from ssl_jax.ops.localization import localization
from ssl_jax.ops.mean_shift import mean_shift
from ssl_jax.ops.memory import Memory, memory_init, memory_push, memory_valid
from ssl_jax.ops.nearest import nearest
from ssl_jax.ops.patches import patchify, unpatchify
from ssl_jax.ops.schedules import linear_warmup, warmup_cosine
from ssl_jax.ops.sinkhorn import (
    sinkhorn_cross_entropy,
    sinkhorn_knopp,
    sinkhorn_potentials,
    sinkhorn_potentials_fused,
)
from ssl_jax.ops.sops import build_sops, sample_anchors, sop_weights
from ssl_jax.ops.transport import entropic_transport
from ssl_jax.ops.voting import sop_vote

__all__ = [
    "Alignment",
    "Cycle",
    "Memory",
    "align_sets",
    "build_sops",
    "centered_softmax",
    "cross_entropy",
    "cycle_consistent",
    "ema_center",
    "entropic_transport",
    "entropy",
    "joint_view_clustering",
    "koleo",
    "linear_warmup",
    "localization",
    "mean_shift",
    "memory_init",
    "memory_push",
    "memory_valid",
    "nearest",
    "object_tokens",
    "patchify",
    "sample_anchors",
    "sinkhorn_cross_entropy",
    "sinkhorn_knopp",
    "sinkhorn_potentials",
    "sinkhorn_potentials_fused",
    "sop_vote",
    "sop_weights",
    "unpatchify",
    "volume_regularizer",
    "warmup_cosine",
]
