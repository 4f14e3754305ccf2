"""Inputs of a decoder that reconstructs images: the map of patch tokens, or the low-rank map L S
of sparse tokens S and their localization maps L."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from ssl_jax.config import InputError
from ssl_jax.features.feed import ahead, feed
from ssl_jax.features.network import Network
from ssl_jax.models import factorise

KINDS = ("auto", "dense", "sparse")


def latents(network: Network, images: np.ndarray, kind: str = "auto") -> jax.Array:
    """Latent maps [B, h, w, d] of images [B, H, W, 3].

    kind: "dense", the patch tokens; "sparse", the low-rank map; "auto", the low-rank map if the
    network has one, else the patch tokens.

    Raises InputError for "sparse" and a network without localization maps.
    """
    features, extras = (network(images), {}) if kind == "dense" else network.with_extras(images)
    if kind == "dense" or kind == "auto" and "localization" not in extras:
        return features.patches
    if "localization" not in extras:
        raise InputError(
            'tokens="sparse" needs a network with sparse tokens and localization maps; use'
            ' tokens="dense"'
        )
    maps = extras["localization"]
    b, h, w, r = maps.shape
    return factorise.recompose(maps.reshape(b, h * w, r), extras["tokens"]).reshape(b, h, w, -1)


def readable(source: Any, records: np.ndarray, size: int) -> np.ndarray:
    """The records that can be read. Reads `size` of them at a time."""
    batches = feed(source, records, lambda row, record: [row], size)
    return records[[row for batch in batches for row in batch.views]]


def shuffled(
    network: Network,
    image_of: Callable[[int, int], np.ndarray],
    records: np.ndarray,
    *,
    kind: str,
    size: int,
    epochs: int,
    seed: int,
) -> Iterator[tuple[jax.Array, np.ndarray]]:
    """Yields (latents [size, h w, d], images [size, H, W, 3] in [0, 1]) of readable records,
    shuffled in each epoch, whose last partial batch is dropped.

    image_of: (record, epoch) -> image, all of one shape.
    """

    def rows_of(epoch):
        order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(records)
        rows = order[: len(order) // size * size].reshape(-1, size)
        return ([(row, epoch) for row in batch] for batch in rows)

    places = (batch for epoch in range(epochs) for batch in rows_of(epoch))
    for batch in ahead(lambda place: image_of(*place), places, 1):
        images = np.stack(batch)
        cells = latents(network, images, kind)
        yield cells.reshape(size, -1, cells.shape[-1]), images
