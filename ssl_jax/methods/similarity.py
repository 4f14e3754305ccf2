"""What FLSL shows of images: how much of an image each patch resembles, and what single patches
attend to.
"""

import jax.numpy as jnp
import numpy as np

from ssl_jax.methods.base import Features, Panel, Picture
from ssl_jax.models import heads

PLACES = (
    (0.25, 0.25),
    (0.25, 0.75),
    (0.5, 0.5),
    (0.75, 0.25),
    (0.75, 0.75),
)  # of the patches that ask, in parts of the image


def aggregated(patches):
    """Similarity of each patch to all of its image: s_j = sum_i cos(z_i, z_j) / max_j, not below 0
    (FLSL section 5.5).

    The larger the region that looks alike, the brighter. patches: [B, h, w, d]. Returns [B, h, w]
    in [0, 1].
    """
    unit = heads.l2_normalize(patches)
    score = jnp.einsum("bhwd,bd->bhw", unit, unit.sum(axis=(1, 2)))
    return jnp.maximum(score / jnp.maximum(score.max(axis=(1, 2), keepdims=True), 1e-6), 0.0)


def maps(images, found: Features, depth: int) -> Picture:
    """Aggregated similarity after each of `found.layers` (FLSL fig. 3, 5 and 6). images: [B, H, W,
    3]; depth: blocks of the network.
    """
    shape = found.patches.shape
    heat = {
        block: np.asarray(aggregated(tokens.patches.reshape(shape)))
        for block, tokens in found.layers.items()
    }

    def row(b, image):
        return Panel(image, title="image"), *(
            Panel(image, heat[block][b], title=f"block {block + 1} of {depth}") for block in heat
        )

    title = "Aggregated similarity: how much of the image a patch resembles"
    return Picture(title, tuple(row(b, image) for b, image in enumerate(np.asarray(images))))


def attention(images, found: Features) -> Picture:
    """What the patches at PLACES attend to in the last block, mean of the heads (FLSL fig. 4a). For
    a network of patch tokens only.
    """
    h, w = found.patches.shape[1:3]
    weights = np.asarray(found.attention.mean(axis=1)).reshape(-1, h, w, h, w)

    def asked(b, image, y, x):
        return Panel(
            image,
            weights[b, y, x],
            marks=(((y + 0.5) / h, (x + 0.5) / w),),
            title=f"patch {y}, {x}",
        )

    def row(b, image):
        return Panel(image, title="image"), *(
            asked(b, image, int(y * h), int(x * w)) for y, x in PLACES
        )

    title = "Attention of the marked patch, last block, mean of the heads"
    return Picture(title, tuple(row(b, image) for b, image in enumerate(np.asarray(images))))
