"""Pictures of FLSL: the similarity of each patch to its image, and the attention of some
patches."""

import numpy as np

from ssl_jax.methods.base import Features
from ssl_jax.methods.encoder import Encoder
from ssl_jax.methods.pictures import similarity
from ssl_jax.methods.pictures.base import Panel, Picture, register

# Positions (y, x) of the patches whose attention is shown, as fractions of the image.
PLACES = ((0.25, 0.25), (0.25, 0.75), (0.5, 0.5), (0.75, 0.25), (0.75, 0.75))


def draw(encoder: Encoder, images: np.ndarray) -> dict[str, Picture]:
    """{"similarity": see `pictures.similarity`, "attention": see `attention`}."""
    images = np.asarray(images)
    seen = attention(images, encoder(images, attention=True))
    return similarity.draw(encoder, images) | {"attention": seen}


def attention(images: np.ndarray, features: Features) -> Picture:
    """Attention of the patches at PLACES in the last block, averaged over heads (FLSL fig. 4a). For
    networks with patch tokens only.
    """
    assert features.attention is not None
    h, w = features.patches.shape[1:3]
    weights = np.asarray(features.attention.mean(axis=1)).reshape(-1, h, w, h, w)

    def panel(b, image, y, x):
        mark = (y + 0.5) / h, (x + 0.5) / w
        return Panel(image, weights[b, y, x], marks=(mark,), title=f"patch {y}, {x}")

    def row(b, image):
        return Panel(image, title="image"), *(
            panel(b, image, int(y * h), int(x * w)) for y, x in PLACES
        )

    title = "Attention of the marked patch, last block, mean of the heads"
    return Picture(title, tuple(row(b, image) for b, image in enumerate(images)))


register("flsl", draw)
