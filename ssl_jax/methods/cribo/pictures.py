"""Pictures of CrIBo: objects with their nearest neighbours in other images."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax import ops
from ssl_jax.methods.encoder import Encoder
from ssl_jax.methods.pictures.base import Memory, Panel, Picture, register

IMAGES = 6  # rows
OBJECTS = 4  # largest objects shown per image
MEMORY = 512  # most training images whose objects are the memory
_BATCH = 16  # images of the memory in a forward pass


class Objects(NamedTuple):
    """Objects of n images, see `methods.cribo.objects.find`."""

    labels: np.ndarray  # [n, h, w] int, object of each patch
    means: jax.Array  # [n, K, d]
    exist: jax.Array  # [n, K] bool


def draw(encoder: Encoder, images: np.ndarray, memory: Memory | None = None) -> dict[str, Picture]:
    """{"matches": objects and their nearest neighbours among the objects of training images, or
    without a memory, of the other images (CrIBo fig. 4 and 5)}; {} for a single image without a
    memory.

    The memory of a run holds objects without their images, so it is filled again, with whole images
    where training has crops.
    """
    shown = _of(encoder, images)
    if memory is not None:
        batches = np.split(np.arange(memory.size), range(_BATCH, memory.size, _BATCH))
        stored = [_of(encoder, memory.images(batch)) for batch in batches]
        bank = jax.tree.map(lambda *parts: np.concatenate(parts), *stored)
        return matches(images, shown, bank, lambda j: memory.images([j])[0])
    return matches(images, shown) if len(images) > 1 else {}


def _of(encoder: Encoder, images: np.ndarray) -> Objects:
    extras = encoder(images, extras=True).extras
    assert extras is not None
    return Objects(np.asarray(extras["clusters"]), extras["objects"], extras["exist"])


def matches(
    images: np.ndarray,
    objects: Objects,
    memory: Objects | None = None,
    image_of: Callable[[int], np.ndarray] | None = None,
) -> dict[str, Picture]:
    """The picture for images [B, H, W, 3] with objects.

    memory: objects in which neighbours are searched, of images image_of(j); None = those of the
    other images.
    """
    bank = objects if memory is None else memory
    where = "other" if memory is None else "training"
    images, rows = np.asarray(images), []
    for i in range(min(len(images), IMAGES)):
        own = jnp.arange(len(bank.exist)) == (i if memory is None else -1)
        cosine, nearest = _nearest(objects.means[i], bank, ~own)
        labels, count = objects.labels[i], bank.exist.shape[1]
        sizes = np.bincount(labels.reshape(-1), minlength=count)
        row = [Panel(images[i], labels=labels, title="objects")]
        for k in np.argsort(-sizes, kind="stable")[:OBJECTS]:
            if sizes[k]:
                j, match = divmod(int(nearest[k]), count)
                here = np.where(labels == k, k, -1)
                there = np.where(np.asarray(bank.labels[j]) == match, k, -1)
                other = images[j] if image_of is None else image_of(j)
                row.append(Panel(images[i], labels=here, title=f"object {k}"))
                row.append(Panel(other, labels=there, title=f"nearest, cosine {cosine[k]:.2f}"))
        rows.append(tuple(row))
    title = f"Objects and their nearest neighbours in {where} images"
    return {"matches": Picture(title, tuple(rows))}


def _nearest(means: jax.Array, bank: Objects, images: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """Cosine [K] and index [K] (into the flattened [n K]) of the bank's nearest object in `images`
    [n] bool to each object of means [K, d]."""
    valid = bank.exist & images[:, None]
    nearest = ops.nearest(means, bank.means.reshape(-1, means.shape[-1]), where=valid.reshape(-1))
    cosine, index = (np.asarray(x)[:, 0] for x in nearest)
    return cosine, index


register("cribo", draw, memory=MEMORY)
