"""Aggregated similarity of each patch to its image, block by block (FLSL figs. 3, 5 and 6), for any
network.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax.methods.base import Features
from ssl_jax.methods.encoder import Encoder
from ssl_jax.methods.pictures.base import Panel, Picture
from ssl_jax.models import heads, zoo


def draw(encoder: Encoder, images: np.ndarray) -> dict[str, Picture]:
    """{"similarity": before the blocks, and after each quarter of them}."""
    depth = zoo.vit_config(encoder.config.model).depth
    features = encoder(images, layers=quarters(depth))
    return {"similarity": picture(np.asarray(images), features, depth)}


def quarters(depth: int) -> tuple[int, ...]:
    """Indices of the input (-1) and of the last block of each quarter of `depth` blocks."""
    return tuple(sorted({-1} | {max(1, round(depth * part / 4)) - 1 for part in (1, 2, 3, 4)}))


def title_of(block: int, depth: int) -> str:
    """Title for the patches after this block."""
    return f"block {block + 1} of {depth}" if block >= 0 else "before the blocks"


def aggregated_similarity(patches: jax.Array) -> jax.Array:
    """Similarity of each patch to its whole image: s_j = sum_i cos(z_i, z_j), divided by its
    maximum over j and clipped at 0 (FLSL section 5.5).

    Patches of larger similar regions score higher. patches: [B, h, w, d]. Returns [B, h, w] in
    [0, 1].
    """
    unit = heads.l2_normalize(patches)
    score = jnp.einsum("bhwd,bd->bhw", unit, unit.sum(axis=(1, 2)))
    return jnp.maximum(score / jnp.maximum(score.max(axis=(1, 2), keepdims=True), 1e-6), 0.0)


def picture(images: np.ndarray, features: Features, depth: int) -> Picture:
    """Aggregated similarity after each of `features.layers` (FLSL fig. 3, 5 and 6). depth: number
    of blocks of the network.
    """
    assert features.layers is not None
    height, width = features.patches.shape[1:3]
    heat = {
        block: np.asarray(aggregated_similarity(tokens.on_grid(height, width)))
        for block, tokens in features.layers.items()
    }

    def row(b, image):
        return Panel(image, title="image"), *(
            Panel(image, maps[b], title=title_of(block, depth)) for block, maps in heat.items()
        )

    title = "Aggregated similarity: how much of the image a patch resembles"
    return Picture(title, tuple(row(b, image) for b, image in enumerate(images)))
