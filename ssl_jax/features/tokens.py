"""Which vectors of a network an evaluation looks at."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ssl_jax.config import InputError, field
from ssl_jax.models import zoo

KINDS = ("image", "cls", "mean", "cls_mean", "sparse")
DENSE = "patches"
_ALONE = (
    'but "image" is of the last block alone; choose tokens "cls", "mean", "cls_mean" or "sparse"'
)
SPARSE_TOKENS = "sparse_tokens"  # all of them, not their mean


def layers_field() -> Any:
    """Declares the key `layers` of an evaluation."""
    return field(
        1,
        "last blocks whose tokens are put side by side, each after the final norm",
        "blocks",
        above=0,
        most=1000,
    )


@dataclasses.dataclass(frozen=True)
class Settings:
    """Which vectors of an image an evaluation looks at."""

    tokens: str = field(
        "image",
        'the vector of an image: "image" (what the method means by it), class token ("cls"),'
        ' mean of the patch tokens ("mean"), both side by side ("cls_mean"), or mean of the'
        ' sparse tokens ("sparse")',
        choices=KINDS,
    )
    layers: int = layers_field()


def check(name: str, section: Mapping, model: Mapping) -> None:
    """Refuses tokens and layers that no network of a config's section `model` has. Raises
    InputError."""
    kind, layers = section.get("tokens", DENSE), section.get("layers", 1)
    if not isinstance(layers, int):  # blocks by their numbers, see `segment`
        layers = max((i + 1 if i >= 0 else -i for i in layers), default=1)
    elif layers > 1 and kind == "image":
        raise InputError(f"{name}.layers is {layers}, {_ALONE}")
    depth = model.get("depth") or zoo.model_shape(model)[1]
    if layers > depth:
        raise InputError(
            f"{name}.layers is {section['layers']}, but the network has {depth} blocks"
        )
    if kind in ("cls", "cls_mean") and not model.get("cls", True):
        raise InputError(f'{name}.tokens is "{kind}", but model.cls is False: use "mean"')


def reader(network: Any, kind: str = "image", layers: int = 1) -> Callable[[Any], jax.Array]:
    """The function from images [B, H, W, 3] to vectors, float32.

    Args:
      network: a `methods.encoder.Encoder`, or any function with a result that has `.image` [B, d]
        and `.patches` [B, h, w, d]: raw pixels have no other tokens, so theirs are taken.
      kind: one of KINDS for one vector [B, d] per image, "patches" for [B, h, w, d], or
        "sparse_tokens" for [B, r, d].
      layers: the last blocks whose vectors are put side by side.

    Raises:
      InputError: the network lacks such tokens, or has fewer blocks.
    """
    read = readers(network, {kind: kind}, layers)
    return lambda images: read(images)[kind]


def readers(
    network: Any, kinds: Mapping[str, str], layers: int = 1
) -> Callable[[Any], dict[str, jax.Array]]:
    """The same for {name: kind}, all from one pass through the network."""
    config = getattr(network, "config", None)
    if config is None:
        return _each(network, kinds, _plain)
    if layers == 1:
        extras = {"extras": True} if set(kinds.values()) & {"sparse", SPARSE_TOKENS} else {}
        return _each(functools.partial(network, **extras), kinds, _last)
    if "image" in kinds.values():
        raise InputError(f"layers is {layers}, {_ALONE}")
    depth = config.model.depth
    if layers > depth:
        raise InputError(f"layers is {layers} but {network} has {depth} blocks")
    blocks = tuple(range(depth - layers, depth))

    def side_by_side(found, kind):
        grid = found.patches.shape[1:3]
        return jnp.concatenate([_of_block(found.layers[i], kind, grid) for i in blocks], axis=-1)

    return _each(functools.partial(network, layers=blocks), kinds, side_by_side)


def _each(network, kinds, choose):
    """The function from images to {name: choose(result, kind)}."""

    def read(images):
        found = network(images)
        return {name: choose(found, kind) for name, kind in kinds.items()}

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
    if kind in ("sparse", SPARSE_TOKENS) and sparse is None:
        raise InputError('tokens is "sparse" but the network has no sparse tokens; use "image"')
    if kind == "cls":
        return cls
    if kind == SPARSE_TOKENS:
        return sparse
    if kind == "sparse":
        return sparse.mean(axis=1)
    mean = patches.mean(axis=(1, 2))
    return mean if kind == "mean" else jnp.concatenate([cls, mean], axis=-1)
