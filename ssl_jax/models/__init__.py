"""Networks: vision transformers and projection heads, each a Model(init, apply) over plain nested
dicts of arrays.

The only folder that imports flax; nothing outside sees a flax object.
"""

from ssl_jax.models import functional, heads, layers, position, vit, zoo
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
