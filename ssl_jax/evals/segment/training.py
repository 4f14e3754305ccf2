"""Trains heads on a frozen network for several learning rates at once, or one with the network."""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ssl_jax.evals.segment import optimizer
from ssl_jax.evals.segment.network import Network
from ssl_jax.evals.segment.settings import Settings
from ssl_jax.losses.segmentation import dice, pixel_cross_entropy
from ssl_jax.models import segmentation
from ssl_jax.ops import numerics
from ssl_jax.runtime import fit as fit_lib
from ssl_jax.scores.windows import grid_labels


def loss_of(settings: Settings, out: segmentation.Logits, masks: jax.Array) -> jax.Array:
    """The loss of a batch: cross-entropy, Dice and auxiliary head, weighted by the settings.

    masks: [B, H, W] int, 255 = ignore.
    """

    def one(logits):
        if settings.level == "patch":
            labels = grid_labels(masks, logits.shape[1:3])
        else:
            logits, labels = segmentation.upsample(logits, masks.shape[1:3]), masks
        total = pixel_cross_entropy(logits, labels, average=settings.average)
        return total + settings.dice * dice(logits, labels) if settings.dice else total

    loss = one(out.logits)
    if out.auxiliary is not None and settings.auxiliary:
        loss = loss + settings.auxiliary * one(out.auxiliary)
    return loss


def fit(
    network: Network,
    settings: Settings,
    batches: Iterable[dict[str, np.ndarray]],
    *,
    lrs: Sequence[float],
    seed: int,
    mesh: Mesh,
) -> list[fit_lib.Fitted]:
    """Trains one head per learning rate on the same batches, with the same initialisation.

    With a frozen network each batch is encoded once for all heads. Otherwise there must be one
    learning rate, and the network is trained with its head.

    batches: {"image": uint8 [b, H, W, 3], "mask": uint8 [b, H, W]}, the rows of this process.

    Returns a Fitted per learning rate, with params {"head": ...}, and "backbone" if it was trained,
    and the statistics of BatchNorm as carry.
    """
    frozen = settings.frozen
    if not frozen and len(lrs) != 1:
        raise ValueError(f"a network is trained with one learning rate at a time, got {lrs}")
    key = numerics.key(seed)
    head, stats = network.head.init(jax.random.fold_in(key, 0))
    params = {"head": head} if frozen else {"head": head, **network.backbone}
    key_steps, rates = jax.random.fold_in(key, 1), np.asarray(lrs, np.float32)

    def prepare(backbone, batch, index):
        images = batch["image"].astype(jnp.float32) / 255
        masks = batch["mask"].astype(jnp.int32)
        drawn = jax.random.split(jax.random.fold_in(key_steps, index), 2 * len(images))
        keys = drawn[: len(images)], drawn[len(images) :]
        if frozen:
            images = jax.lax.stop_gradient(network.maps(backbone, images, keys[0]))
        return images, masks, keys

    def loss(params, stats, inputs):
        maps, masks, keys = inputs
        if not frozen:
            backbone = {name: tree for name, tree in params.items() if name != "head"}
            maps = network.maps(backbone, maps, keys[0])
        out, stats = network.head.apply(params["head"], stats, maps, train=True, keys=keys[1])
        return {"loss": loss_of(settings, out, masks)}, stats

    fitted = fit_lib.fit(
        loss,
        optimizer.make(settings, params),
        batches,
        mesh,
        settings.steps,
        params=params,
        carry=stats,
        constants=network.backbone if frozen else {},
        points=(rates if frozen else rates[0],),
        prepare=prepare,
        name="segment",
        finite=False,
    )
    return fitted.each() if frozen else [fitted]
