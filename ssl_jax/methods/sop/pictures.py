"""Pictures of SOP, SOVE and MaSSL: anchors among some images, with their nearest embeddings.

A row shows the members that an anchor would have if the memory held these images. The methods rely
on meaningful neighbours.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax import ops
from ssl_jax.methods.encoder import Encoder
from ssl_jax.methods.pictures.base import Panel, Picture, register
from ssl_jax.methods.sop import embeddings
from ssl_jax.ops import numerics

_ANCHORS, _NEAREST = 6, 6  # rows and columns of a picture, at most
_IMAGES = 256  # enough to contain several images of each kind
_BATCH = 32  # images encoded at a time


def draw(encoder: Encoder, images: np.ndarray) -> dict[str, Picture]:
    """Anchors among the images, and among their patches with a patch objective, with the nearest
    embeddings in other images.

    Embeddings are the head's outputs, as in the memory, or the encoder's if the weights lack the
    head. The config's seed determines the anchors.

    Args:
      encoder: methods.encoder.Encoder; images: [n, H, W, 3] in [0, 1], n >= 2.

    Returns:
      {"neighbours": Picture}, and "patch_neighbours" with a patch objective; each panel gives its
      cosine to the anchor.
    """
    config, images = encoder.config, np.asarray(images)
    image_embeddings, patches = _embeddings(encoder, images)
    key = numerics.key(config.seed)
    rows = _rows(images, *_neighbours(key, image_embeddings[:, None]))
    pictures = {"neighbours": Picture("Anchors (left) and the nearest images, with cosine", rows)}
    if "patch" in embeddings.tasks(config[config.method]):
        count, height, width, size = patches.shape
        key = jax.random.fold_in(key, 1)
        nearest = _neighbours(key, patches.reshape(count, height * width, size))
        pictures["patch_neighbours"] = Picture(
            "Anchor patches (left) and the nearest patches of other images, with cosine",
            _rows(images, *nearest, grid=(height, width)),
        )
    return pictures


def _embeddings(encoder, images) -> tuple[jax.Array, jax.Array]:
    """Embeddings of images [n, d] and of patches [n, h, w, d], computed for a few images at a time,
    since attention in large images takes gigabytes."""
    size = min(_BATCH, len(images))
    padded = np.pad(images, [(0, -len(images) % size), *[(0, 0)] * 3], mode="edge")
    wholes, patches = [], []
    for start in range(0, len(padded), size):
        features = encoder(padded[start : start + size], extras=True)
        extras = features.extras or {}
        wholes.append(extras.get("embedding", features.image))
        patches.append(extras.get("patch_embeddings", features.patches))
    return jnp.concatenate(wholes)[: len(images)], jnp.concatenate(patches)[: len(images)]


def _neighbours(key, embeddings) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Anchors among embeddings [n, m, d] of n images, at most one per image, and their nearest
    embeddings in other images.

    Images with anchors are excluded as neighbours, and no row contains an image twice.

    Returns:
      anchors [a] and neighbours [a, k], best first, as flat indices into n * m; cosine [a, k].
    """
    count, each, width = embeddings.shape
    num_anchors = min(_ANCHORS, count // 2)
    k = min(_NEAREST, count - num_anchors)
    key_image, key_within = jax.random.split(key)
    chosen = ops.sample_anchors(key_image, count, num_anchors)[0]
    anchors = chosen * each + jax.random.randint(key_within, (num_anchors,), 0, each, jnp.int32)
    queries = embeddings.reshape(count * each, width)[anchors]

    def best_of_image(rows):
        return ops.nearest(queries, rows, k=1)

    # [a, n, 1]: the best embedding of every image; then the best images without anchors.
    cosine, within = jax.vmap(best_of_image, out_axes=1)(embeddings)
    cosine = jnp.where(jnp.isin(jnp.arange(count), chosen), -jnp.inf, cosine[..., 0])
    cosine, image = jax.lax.top_k(cosine, k)
    index = image * each + jnp.take_along_axis(within[..., 0], image, axis=1)
    return np.asarray(anchors), np.asarray(index), np.asarray(cosine)


def _rows(images, anchors, index, cosine, grid=(1, 1)):
    """Panels of each row: the anchor, then its neighbours with their cosines; with a grid of
    patches, marks show the patches."""
    height, width = grid

    def panel(flat, title):
        image, patch = divmod(int(flat), height * width)
        y, x = divmod(patch, width)
        marks = (((y + 0.5) / height, (x + 0.5) / width),) if height * width > 1 else ()
        return Panel(images[image], marks=marks, title=title)

    return tuple(
        (
            panel(anchor, f"anchor {i + 1}"),
            *(panel(n, f"{s:.2f}") for n, s in zip(neighbours, values, strict=True)),
        )
        for i, (anchor, neighbours, values) in enumerate(zip(anchors, index, cosine, strict=True))
    )


for _method in ("sop", "sove", "massl"):
    register(_method, draw, images=_IMAGES, scenes=False)
