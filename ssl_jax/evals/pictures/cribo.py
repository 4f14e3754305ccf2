"""What CrIBo shows: objects beside their nearest neighbours in other images."""

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from numpy.typing import ArrayLike

from ssl_jax import ops
from ssl_jax.evals.pictures.base import Panel, Picture, register
from ssl_jax.methods.cribo import objects
from ssl_jax.methods.encoder import Encoder
from ssl_jax.ops import numerics
from ssl_jax.views import boxes

CLUSTERS = 12  # at most, as in the figures of the paper
IMAGES = 6  # rows
OBJECTS = 4  # of an image, the largest


def draw(encoder: Encoder, images: np.ndarray) -> dict[str, Picture]:
    """{"matches": objects and their nearest neighbours (CrIBo fig. 4 and 5)}; {} for a single
    image, which has no neighbours.
    """
    if len(images) < 2:
        return {}
    section = encoder.config.cribo
    return matches(images, encoder(images).patches, section, seed=encoder.config.seed)


def matches(
    images: ArrayLike, patches: jax.Array, section: ConfigDict, *, seed: int
) -> dict[str, Picture]:
    """The picture for images [B, H, W, 3] with patches [B, h, w, d]; section: `cribo` of the
    config.
    """
    images, title = np.asarray(images), "Objects and their nearest neighbours in other images"
    labels, means, valid = find(images.shape[1:3], patches, section, seed=seed)
    rows = []
    for i in range(min(len(images), IMAGES)):
        cosine, nearest = nearest_elsewhere(means, valid, i)
        sizes = np.bincount(labels[i].reshape(-1), minlength=means.shape[1])
        row = [Panel(images[i], labels=labels[i], title="objects")]
        for k in np.argsort(-sizes, kind="stable")[:OBJECTS]:
            if sizes[k]:
                j, match = divmod(int(nearest[k]), means.shape[1])
                own = np.where(labels[i] == k, k, -1)
                other = np.where(labels[j] == match, k, -1)
                row.append(Panel(images[i], labels=own, title=f"object {k}"))
                row.append(Panel(images[j], labels=other, title=f"nearest, cosine {cosine[k]:.2f}"))
        rows.append(tuple(row))
    return {"matches": Picture(title, tuple(rows))}


def find(
    size: tuple[int, int], patches: jax.Array, section: ConfigDict, *, seed: int
) -> tuple[np.ndarray, jax.Array, jax.Array]:
    """Objects of single images: labels [B, h, w] of their patches, their mean patches [B, K, d] and
    which of the K exist [B, K].

    size: (height, width) of the images in pixels.
    """
    count, rows, columns, width = patches.shape
    num_clusters = min(CLUSTERS, section.clusters, rows * columns)
    tokens = patches.reshape(count, -1, width)
    frames = jnp.tile(jnp.array([0.0, 0.0, *size]), (count, 1))
    positions = boxes.patch_positions(frames, jnp.zeros(count, bool), (rows, columns))
    assign = objects.clustering(section, num_clusters)
    seeds = jax.random.split(numerics.key(seed), count)
    labels = assign(tokens, positions, seeds, section.position_weight).argmax(axis=-1)
    assigned = jax.nn.one_hot(labels, num_clusters)
    # The image stands for both of its views.
    means, valid = ops.object_tokens(*(jnp.concatenate([x, x], axis=1) for x in (tokens, assigned)))
    return np.asarray(labels).reshape(count, rows, columns), means[:, 0], valid


def nearest_elsewhere(means: jax.Array, valid: jax.Array, i: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine [K] and index [K] (into the flattened [B K]) of the object of another image that is
    nearest to each of image i.
    """
    elsewhere = valid & (jnp.arange(len(means)) != i)[:, None]
    found = ops.nearest(means[i], means.reshape(-1, means.shape[-1]), where=elsewhere.reshape(-1))
    cosine, index = (np.asarray(x)[:, 0] for x in found)
    return cosine, index


register("cribo", draw)
