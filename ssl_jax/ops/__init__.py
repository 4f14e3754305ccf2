"""Numerics shared by self-supervised methods: arrays in, arrays out; nothing here knows of networks or configs.

All functions work under jit, vmap and grad and on sharded arrays, take any leading batch dimensions, and compute in
float32 or wider.
"""

from ssl_jax.ops.divergence import cross_entropy, entropy
from ssl_jax.ops.memory import Memory, memory_init, memory_push, memory_valid
from ssl_jax.ops.nearest import nearest
from ssl_jax.ops.voting import build_sops, sample_anchors, sop_vote, sop_weights

__all__ = [
    "Memory",
    "build_sops",
    "cross_entropy",
    "entropy",
    "memory_init",
    "memory_push",
    "memory_valid",
    "nearest",
    "sample_anchors",
    "sop_vote",
    "sop_weights",
]
