"""Pictures of CrIBo: objects with their nearest neighbours in other images."""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ssl_jax import ops
from ssl_jax.methods.encoder import Encoder
from ssl_jax.methods.pictures.base import Panel, Picture, register

IMAGES = 6  # rows
OBJECTS = 4  # largest objects shown per image


def draw(encoder: Encoder, images: np.ndarray) -> dict[str, Picture]:
    """{"matches": objects and their nearest neighbours (CrIBo fig. 4 and 5)}; {} for a single
    image.
    """
    if len(images) < 2:
        return {}
    extras = encoder(images, extras=True).extras
    assert extras is not None
    return matches(images, np.asarray(extras["clusters"]), extras["objects"], extras["exist"])


def matches(
    images: ArrayLike, labels: np.ndarray, means: jax.Array, valid: jax.Array
) -> dict[str, Picture]:
    """The picture for images [B, H, W, 3] with objects, see `methods.cribo.objects.find`."""
    images, title = np.asarray(images), "Objects and their nearest neighbours in other images"
    rows = []
    for i in range(min(len(images), IMAGES)):
        cosine, nearest = nearest_elsewhere(means, valid, i)
        sizes = np.bincount(labels[i].reshape(-1), minlength=means.shape[1])
        row = [Panel(images[i], labels=labels[i], title="objects")]
        for k in np.argsort(-sizes, kind="stable")[:OBJECTS]:
            if sizes[k]:
                j, match = divmod(int(nearest[k]), means.shape[1])
                here = np.where(labels[i] == k, k, -1)
                there = np.where(labels[j] == match, k, -1)
                row.append(Panel(images[i], labels=here, title=f"object {k}"))
                row.append(Panel(images[j], labels=there, title=f"nearest, cosine {cosine[k]:.2f}"))
        rows.append(tuple(row))
    return {"matches": Picture(title, tuple(rows))}


def nearest_elsewhere(means: jax.Array, valid: jax.Array, i: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine [K] and index [K] (into the flattened [B K]) of the nearest object in other images to
    each object of image i.
    """
    elsewhere = valid & (jnp.arange(len(means)) != i)[:, None]
    nearest = ops.nearest(means[i], means.reshape(-1, means.shape[-1]), where=elsewhere.reshape(-1))
    cosine, index = (np.asarray(x)[:, 0] for x in nearest)
    return cosine, index


register("cribo", draw)
