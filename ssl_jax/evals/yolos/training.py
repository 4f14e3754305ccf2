"""Training of a detector: an encoder with detection tokens and DETR's loss."""

import collections
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from ssl_jax import trees
from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.evals.yolos import views
from ssl_jax.evals.yolos.detector import Detector, make
from ssl_jax.features.ahead import ahead
from ssl_jax.losses import detection as losses
from ssl_jax.ops import numerics
from ssl_jax.runtime import distributed, sharding

_LEAST_LR = 1e-7  # at the end of the cosine
_AHEAD = 2  # batches prepared while the device works
_REPORTS = 10  # lines on the console


def optimizer(config: ConfigDict, params: Any, steps: int) -> optax.GradientTransformation:
    """AdamW behind a clipped gradient; `steps` an epoch."""

    def rate(step):
        share = jnp.minimum(step // steps / config.epochs, 1.0)
        return _LEAST_LR + (config.lr - _LEAST_LR) * 0.5 * (1 + jnp.cos(jnp.pi * share))

    def decays(path, leaf):
        names = path.split("/")
        tokens = {"cls", "position", "queries", "registers"}
        return names[0] != "encoder" or (trees.rank(path, leaf) > 1 and names[1] not in tokens)

    mask = trees.map_with_path(decays, params)
    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(rate, weight_decay=config.weight_decay, mask=mask),
    )


def loss_of(apply: Callable, config: ConfigDict) -> Callable:
    """(params, Batch) -> (loss, terms): DETR's loss with its matching, which is made on the device
    and has no gradient. Each device of the mesh in context sees its own images."""
    weights = {name: config[name] for name in ("class_weight", "l1_weight", "giou_weight")}

    def of_images(trees, batch):
        logits, boxes = apply(trees["params"], batch.image)
        return logits, boxes, match(logits, boxes, batch, weights)

    def loss(params, batch):
        batch = views.Batch(*batch)
        logits, boxes, matched = sharding.by_image(of_images)({"params": params}, batch)
        terms = losses.detr(
            logits,
            boxes,
            batch.labels,
            batch.boxes,
            batch.present,
            matched,
            no_object_weight=config.no_object_weight,
            **weights,
        )
        return terms["loss"], terms

    return loss


def match(logits: jax.Array, boxes: jax.Array, batch: views.Batch, weights: dict) -> Any:
    """The query [B, t] of each object in the cheapest assignment; t is at most the queries."""
    costs = losses.matching_costs(
        logits, boxes, batch.labels, batch.boxes, batch.present, **weights
    )

    def of_one(costs):
        rows, columns = optax.assignment.hungarian_algorithm(costs)
        return jnp.zeros(costs.shape[1], jnp.int32).at[columns].set(rows.astype(jnp.int32))

    # A network that has come to NaN must not keep the search from ending.
    return jax.vmap(of_one)(jnp.nan_to_num(jax.lax.stop_gradient(costs)))


def train(
    encoder: Any, source: Any, indices: np.ndarray, config: ConfigDict, seed: int
) -> Detector:
    """A detector trained on these records of `source`; draws follow from seed, epoch and record.

    Raises InputError for a source without boxes, or a loss that is not finite.
    """
    classes = classes_of(source)
    detector = make(encoder, config, classes, numerics.key(seed))
    size = min(config.batch, len(indices))
    steps = len(indices) // size
    transformation = optimizer(config, detector.params, steps)
    loss = loss_of(detector.apply, config)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, batch):
        (_, terms), gradient = jax.value_and_grad(loss, has_aux=True)(params, batch)
        updates, state = transformation.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, terms

    devices = jax.local_devices()
    devices = devices[: math.gcd(size, len(devices))]
    mesh = sharding.make_mesh(len(devices), devices=devices)
    with jax.set_mesh(mesh):
        place = sharding.replicated(mesh)
        params = jax.device_put(jax.tree.map(jnp.copy, detector.params), place)
        state = jax.device_put(transformation.init(params), place)
        sums: collections.Counter = collections.Counter()
        for done, batch in enumerate(_batches(source, indices, size, config, detector, seed), 1):
            params, state, terms = step(
                params, state, jax.device_put(tuple(batch), sharding.batch_sharding(mesh))
            )
            if done % steps == 0:
                epoch = done // steps
                terms = {name: float(value) for name, value in terms.items()}
                if not math.isfinite(terms["loss"]):
                    raise InputError(
                        f"yolos: the loss of epoch {epoch} is {terms['loss']}; lower its lr or clip"
                    )
                sums.update(terms)
                if epoch % max(1, config.epochs // _REPORTS) == 0 and distributed.is_first():
                    text = ", ".join(f"{name} {value:.3f}" for name, value in terms.items())
                    print(f"  yolos epoch {epoch}/{config.epochs}: {text}", flush=True)
    params = jax.device_put(params, jax.local_devices()[0])
    return detector._replace(params=params)


def classes_of(source: Any) -> int:
    """Number of classes of a source's boxes; 1 where they have none. Raises InputError for a source
    without boxes."""
    if not getattr(source, "has_boxes", False):
        raise InputError(
            f"yolos needs boxes, and {source} has none; point the evaluation's data at a set with"
            " boxes, or leave it out of evals.tasks"
        )
    return getattr(source, "num_box_classes", None) or 1


def _batches(source, indices, size: int, config, detector, seed: int) -> Iterator:
    """The batches of all epochs, each epoch in an order of its own without its last partial one;
    some are prepared ahead by threads."""

    def view(item):
        epoch, record = item
        rng = np.random.default_rng((seed, epoch, int(record)))
        return views.drawn(_readable(source, record), rng, config)

    def rows():
        for epoch in range(config.epochs):
            order = np.random.default_rng((seed, epoch)).permutation(indices)
            for start in range(0, len(order) - size + 1, size):
                yield [(epoch, record) for record in order[start : start + size]]

    multiple = math.lcm(config.canvas, detector.patch)
    for made in ahead(view, rows(), _AHEAD):
        yield views.batch(made, most=config.queries, multiple=multiple, fill=detector.fill)


def _readable(source, index) -> dict:
    """The record, or the next that can be read."""
    for i in range(len(source)):
        try:
            return source[(int(index) + i) % len(source)]
        except Unreadable:
            continue
    raise InputError(f"no record of {source} can be read")
