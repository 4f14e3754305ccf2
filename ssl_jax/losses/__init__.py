"""The papers' objectives as pure functions of network outputs: arrays in, a dict of named terms out.

No network, no parameters, no config: they can be called from any JAX training code. The means over pairs, batch and
tasks are taken here and nowhere else; under `jit` with a sharded batch they are means over the global batch.
"""

from ssl_jax.losses.dino import dino
from ssl_jax.losses.sop import sop, sop_patch

__all__ = ["dino", "sop", "sop_patch"]
