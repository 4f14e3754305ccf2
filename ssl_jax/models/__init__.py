"""Networks: vision transformers, heads and decoders, each a Model(init, apply, module) over plain
nested dicts of arrays.

Only this folder imports flax; other folders see pure functions and parameters.
"""

from ssl_jax.models import flops, functional, heads, layers, position, vit, zoo
from ssl_jax.models.functional import Model
from ssl_jax.models.heads import dino_head, l2_normalize, projection_head
from ssl_jax.models.vit import Tokens, ViTConfig
from ssl_jax.models.zoo import SIZES, count, forward_flops, vit_config

__all__ = [
    "SIZES",
    "Model",
    "Tokens",
    "ViTConfig",
    "count",
    "dino_head",
    "flops",
    "forward_flops",
    "functional",
    "heads",
    "l2_normalize",
    "layers",
    "position",
    "projection_head",
    "vit",
    "vit_config",
    "zoo",
]
