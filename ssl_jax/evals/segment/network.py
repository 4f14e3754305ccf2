"""The segmentation network: an encoder and a head on its patch tokens."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ssl_jax.config import InputError
from ssl_jax.evals.segment.settings import PYRAMIDS, Settings
from ssl_jax.features import network as features
from ssl_jax.methods.encoder import Encoder
from ssl_jax.models import segmentation
from ssl_jax.runtime import sharding


class Network(NamedTuple):
    """A segmentation network.

    backbone: weights of the encoder; {} for raw pixels. depth: number of its blocks.
    maps(backbone, images [B, H, W, 3] in [0, 1], keys [B] or None) -> arrays [B, h, w, d], one for
      each level that the head reads; keys are for stochastic depth. The batch is sharded over the
      mesh in context.
    head: see `models.segmentation`.
    """

    backbone: Any
    depth: int
    maps: Callable
    head: segmentation.Stateful


def make(network: features.Network, settings: Settings, classes: int, patch: int) -> Network:
    """Builds the network of an evaluation.

    network: the case's network; without an encoder, its patch map is used for all levels.

    Raises InputError for layers that the network does not have or that have smaller patches, and
    for a layer decay of a Swin transformer.
    """
    encoder, pyramid = network.encoder, settings.head in PYRAMIDS
    backbone = {} if encoder is None else {"backbone": encoder.backbone}

    def plain(weights, images, keys):
        return [network(images)]

    tokens = plain if encoder is None else _tokens(encoder, settings)

    def of_one(weights, inputs):
        images, keys = inputs
        grid = (images.shape[0], images.shape[1] // patch, images.shape[2] // patch, -1)
        maps = [x.patches.reshape(grid) for x in tokens(weights["params"], images, keys)]
        return maps * (len(segmentation.STRIDES) // len(maps)) if pyramid else maps

    def maps(backbone, images, keys=None):
        return sharding.by_image(of_one)({"params": backbone}, (images, keys))

    shapes = jax.eval_shape(
        lambda weights, images: of_one(weights, (images, None)),
        {"params": backbone},
        jax.ShapeDtypeStruct((1, patch, patch, 3), jnp.float32),
    )
    depth = 0 if encoder is None else encoder.shape.depth
    return Network(backbone, depth, maps, _head(settings, shapes, classes))


def _tokens(encoder: Encoder, settings: Settings) -> Callable:
    """The function (weights, images, keys) -> Tokens of each layer of the settings."""
    shape = encoder.shape
    layers = [i + shape.depth if i < 0 else i for i in settings.layers]
    for entry, layer in zip(settings.layers, layers):
        if not 0 <= layer < shape.depth:
            raise InputError(
                f"layers has {entry}, but the network has {shape.depth} blocks; name some of 0 to"
                f" {shape.depth - 1}, or count from the last one with -1, -2, ..."
            )
    last_stage = shape.depth - (shape.stages[-1] if shape.stages else shape.depth)
    if min(layers) < last_stage:
        raise InputError(
            f"layers has blocks before the last stage of {encoder}, a Swin transformer, whose"
            f" patches are smaller; name some of {last_stage} to {shape.depth - 1}"
        )
    mean, std = (jnp.asarray(values, jnp.float32) for values in (shape.mean, shape.std))

    def tokens(weights, images, keys):
        if settings.half:
            images = (images - 0.5) / 0.5 * std + mean
        output = encoder.apply(
            weights["backbone"],
            images,
            layers=sorted(set(layers)),
            norm_layers=settings.norm_layers == "all",
            keys=keys if settings.drop_path else None,
            drop_path=settings.drop_path,
        )
        normed_block = shape.depth - 1 if settings.norm_layers == "last" else None
        return [output if i == normed_block else output.layers[i] for i in layers]

    return tokens


def _head(settings: Settings, maps: list, classes: int) -> segmentation.Stateful:
    width, dropout = maps[0].shape[-1], settings.dropout
    levels: dict[str, Any] = dict(levels=len(maps), dropout=dropout)
    channels: dict[str, Any] = {"channels": settings.channels} if settings.channels else {}
    match settings.head:
        case "linear":
            batch_norm = settings.batch_norm
            return segmentation.linear(width, classes, batch_norm=batch_norm, **levels)
        case "mask_transformer":
            return segmentation.mask_transformer(width, classes, **channels, **levels)
        case "fpn":
            pyramid = settings.pyramid
            return segmentation.fpn(width, classes, dropout=dropout, resample=pyramid, **channels)
        case _:
            return segmentation.upernet(width, classes, dropout=dropout, **channels)
