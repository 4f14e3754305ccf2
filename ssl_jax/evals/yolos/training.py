"""Trains a detector, an encoder with detection tokens, with DETR's loss."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ssl_jax import trees
from ssl_jax.evals.case import Records
from ssl_jax.evals.yolos.detector import Detector, make
from ssl_jax.evals.yolos.settings import Settings
from ssl_jax.features.feed import ahead, readable
from ssl_jax.losses import detection as losses
from ssl_jax.ops import numerics
from ssl_jax.runtime import fit, sharding
from ssl_jax.runtime.decay import TOKENS, is_matrix
from ssl_jax.views import boxed

_LEAST_LR = 1e-7  # at the end of the cosine
_AHEAD = 2  # batches that threads prepare ahead


def optimizer(settings: Settings, params: Any, steps: int) -> optax.GradientTransformation:
    """AdamW with gradient clipping. steps: per epoch."""

    def rate(step):
        share = jnp.minimum(step // steps / settings.epochs, 1.0)
        return _LEAST_LR + (settings.lr - _LEAST_LR) * 0.5 * (1 + jnp.cos(jnp.pi * share))

    def decays(path, leaf):
        return not path.startswith("encoder/") or is_matrix(path, leaf, TOKENS)

    mask = trees.map_with_path(decays, params)
    return optax.chain(
        optax.clip_by_global_norm(settings.clip),
        optax.adamw(rate, weight_decay=settings.weight_decay, mask=mask),
    )


def loss_of(apply: Callable, settings: Settings) -> fit.Loss:
    """The function (params, None, Batch) -> (terms, None) of DETR's loss. The matching is computed
    on the device, without a gradient. The batch is sharded over the mesh in context."""
    names = ("class_weight", "l1_weight", "giou_weight")
    weights = {name: getattr(settings, name) for name in names}

    def of_images(networks, batch):
        logits, boxes = apply(networks["params"], batch.image)
        return logits, boxes, match(logits, boxes, batch, weights)

    def loss(params, carry, batch):
        logits, boxes, matched = sharding.by_image(of_images)({"params": params}, batch)
        return losses.detr(
            logits,
            boxes,
            batch.labels,
            batch.boxes,
            batch.present,
            matched,
            no_object_weight=settings.no_object_weight,
            **weights,
        ), carry

    return loss


def match(logits: jax.Array, boxes: jax.Array, batch: boxed.Batch, weights: dict) -> Any:
    """The query [B, t] assigned to each of t objects at the least total cost, t <= queries."""
    costs = losses.matching_costs(
        logits, boxes, batch.labels, batch.boxes, batch.present, **weights
    )

    def of_one(costs):
        rows, columns = optax.assignment.hungarian_algorithm(costs)
        return jnp.zeros(costs.shape[1], jnp.int32).at[columns].set(rows.astype(jnp.int32))

    # With NaN the search would not end.
    return jax.vmap(of_one)(jnp.nan_to_num(jax.lax.stop_gradient(costs)))


def train(encoder: Any, records: Records, classes: int, settings: Settings, seed: int) -> Detector:
    """Trains a detector on records; random draws depend on seed, epoch and record.

    Raises InputError for a loss that is not finite.
    """
    detector = make(encoder, settings, classes, numerics.key(seed))
    size = min(settings.batch, len(records.indices))
    steps = len(records.indices) // size
    transformation = optimizer(settings, detector.params, steps)
    fitted = fit.fit(
        loss_of(detector.apply, settings),
        lambda step: transformation,
        _batches(records, size, settings, detector, seed),
        sharding.mesh_for(size),
        steps * settings.epochs,
        params=detector.params,
        name="yolos",
    )
    return detector._replace(params=jax.device_put(fitted.params, jax.local_devices()[0]))


def _batches(
    records: Records, size: int, settings: Settings, detector: Detector, seed: int
) -> Iterator[boxed.Batch]:
    """The batches of all epochs, shuffled in each epoch, whose last partial batch is dropped.
    Threads prepare them ahead."""

    source, all_records = records.source, range(len(records.source))

    def view(item):
        epoch, record = item
        rng = np.random.default_rng((seed, epoch, int(record)))
        return boxed.drawn(readable(source, all_records, record)[1], rng, settings)

    def rows():
        for epoch in range(settings.epochs):
            order = np.random.default_rng((seed, epoch)).permutation(records.indices)
            for start in range(0, len(order) - size + 1, size):
                yield [(epoch, record) for record in order[start : start + size]]

    multiple = math.lcm(settings.canvas, detector.patch)
    for drawn in ahead(view, rows(), _AHEAD):
        yield boxed.batch(drawn, most=settings.queries, multiple=multiple, fill=detector.fill)
