"""Which vectors of a network an evaluation looks at."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ssl_jax.config import InputError, Key, key

KINDS = ("image", "cls", "mean", "cls_mean", "sparse")
DENSE = "patches"


def keys() -> dict[str, Key]:
    """The keys `tokens` and `layers` of an evaluation of images."""
    return dict(
        tokens=key(
            "image",
            'the vector of an image: "image" (what the method means by it), class token ("cls"),'
            ' mean of the patch tokens ("mean"), both side by side ("cls_mean"), or mean of the'
            ' sparse tokens ("sparse")',
            choices=KINDS,
        ),
        layers=layers_key(),
    )


def layers_key() -> Key:
    """The key `layers` of an evaluation."""
    return key(
        1,
        "last blocks whose tokens are put side by side, each after the final norm",
        "blocks",
        above=0,
        most=1000,
    )


def reader(network: Any, kind: str = "image", layers: int = 1) -> Callable[[Any], jax.Array]:
    """The function from images [B, H, W, 3] to vectors, float32.

    Args:
      network: a `methods.encoder.Encoder`, or any function with a result that has `.image` [B, d]
        and `.patches` [B, h, w, d]: raw pixels have no other tokens, so theirs are taken.
      kind: one of KINDS for one vector [B, d] per image, or "patches" for [B, h, w, d].
      layers: the last blocks whose vectors are put side by side.

    Raises:
      InputError: the network lacks such tokens, or has fewer blocks.
    """
    config = getattr(network, "config", None)
    if config is None:
        return lambda images: _plain(network(images), kind)
    if layers == 1:
        sparse = kind == "sparse"
        return lambda images: _last(network(images, **({"extras": True} if sparse else {})), kind)
    if kind == "image":
        raise InputError(
            f'layers is {layers}, but "image" is of the last block alone; choose tokens "cls",'
            ' "mean", "cls_mean" or "sparse"'
        )
    depth = config.model.depth
    if layers > depth:
        raise InputError(f"layers is {layers} but {network} has {depth} blocks")
    blocks = tuple(range(depth - layers, depth))

    def read(images):
        found = network(images, layers=blocks)
        grid = found.patches.shape[1:3]
        return jnp.concatenate([_of_block(found.layers[i], kind, grid) for i in blocks], axis=-1)

    return read


def _plain(found, kind):
    return found.patches if kind == DENSE else found.image


def _last(found, kind):
    """Vectors of the last block, from `methods.Features`."""
    if kind == "image":
        return found.image
    sparse = (found.extras or {}).get("tokens")
    return _chosen(kind, found.cls, found.patches, sparse)


def _of_block(tokens, kind, grid):
    """Vectors of one block, from `vit.Tokens`."""
    patches = tokens.patches.reshape(len(tokens.patches), *grid, -1)
    return _chosen(kind, tokens.cls, patches, tokens.queries)


def _chosen(kind, cls, patches, sparse):
    if kind == DENSE:
        return patches
    if kind in ("cls", "cls_mean") and cls is None:
        raise InputError(f'tokens is "{kind}" but the network has no class token; use "mean"')
    if kind == "sparse" and sparse is None:
        raise InputError('tokens is "sparse" but the network has no sparse tokens; use "image"')
    if kind == "cls":
        return cls
    if kind == "sparse":
        return sparse.mean(axis=1)
    mean = patches.mean(axis=(1, 2))
    return mean if kind == "mean" else jnp.concatenate([cls, mean], axis=-1)
