"""Segments test images: whole, by a sliding window, or their central square."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ssl_jax.evals.segment import windows
from ssl_jax.evals.segment.network import Network
from ssl_jax.evals.segment.records import Records
from ssl_jax.evals.segment.settings import Settings
from ssl_jax.features.feed import feed
from ssl_jax.features.windows import filled
from ssl_jax.runtime import distributed, sharding
from ssl_jax.runtime.fit import Fitted
from ssl_jax.scores import metrics
from ssl_jax.scores.windows import grid_labels, join


class Scored(NamedTuple):
    """One test image, with truth and predictions on the scored grid of pixels or patches."""

    position: int  # in `Records`
    image: np.ndarray  # uint8 [H, W, 3], after resizing and cropping
    truth: np.ndarray  # uint8 [h, w], 255 = ignore
    predicted: np.ndarray  # uint8 [networks, h, w]


def score(
    network: Network,
    trained: Sequence[Fitted],
    records: Records,
    settings: Settings,
    *,
    patch: int,
    mesh: Mesh,
) -> Iterator[Scored]:
    """Segments records with each of the trained networks; unreadable records are left out.

    settings: with `side` set. mesh: of this process's devices.
    """
    weights = [(fitted.params, fitted.carry) for fitted in trained]
    shared = {} if "backbone" in trained[0].params else network.backbone
    weights, shared = jax.device_put((weights, shared), sharding.replicated(mesh))
    logits_of = _logits(network, mesh)

    def cut(position, record):
        pair = records.pair(records.indices[position], record)
        yield position, *windows.cut(*pair, settings, patch)

    for batch in feed(records.source, records.indices, cut, settings.batch):
        items = batch.views
        logits = _encoded(logits_of, weights, shared, [item[1] for item in items], mesh)
        for (position, cuts, image, mask), of_image in zip(items, logits):
            if settings.level == "patch":
                predicted = np.asarray(jnp.argmax(of_image[0], axis=-1), np.uint8)
                mask = grid_labels(mask, predicted.shape[1:])
            else:
                window = cuts.pixels.shape[1:3]
                predicted = join(of_image, cuts.corners, window, cuts.size, mask.shape)
            yield Scored(position, image, mask, predicted)


def counts(
    scored: Iterator[Scored], networks: int, classes: int, *, shared: bool = True
) -> np.ndarray:
    """Confusion matrices [networks, classes, classes] int64 of the scored images. shared: add those
    of all processes."""
    total = np.zeros((networks, classes, classes), np.int64)
    for image in scored:
        for i, predicted in enumerate(image.predicted):
            total[i] += metrics.confusion(image.truth, predicted, num_classes=classes)
    if shared and jax.process_count() > 1:
        total = distributed.gather_array(total.reshape(1, -1)).sum(axis=0).reshape(total.shape)
    return total


def _logits(network: Network, mesh: Mesh):
    """The compiled function (weights, shared, images uint8 [n, H, W, 3]) -> logits [n, networks, h,
    w, classes]. shared: the backbone's weights if all networks have the same."""

    def logits(weights, shared, images):
        images = images.astype(jnp.float32) / 255
        maps = network.maps(shared, images) if shared or not network.backbone else None
        outs = []
        for params, stats in weights:
            backbone = {name: tree for name, tree in params.items() if name != "head"}
            levels = network.maps(backbone, images) if maps is None else maps
            outs.append(network.head.apply(params["head"], stats, levels)[0].logits)
        return jnp.stack(outs, axis=1)

    whole, rows = sharding.replicated(mesh), sharding.batch_sharding(mesh)
    return jax.jit(
        sharding.on_mesh(logits, mesh), in_shardings=(whole, whole, rows), out_shardings=rows
    )


def _encoded(logits_of, weights, shared, images: list[windows.Windows], mesh) -> list[jax.Array]:
    """Logits [windows, networks, h, w, classes] of each image; windows of one size are batched."""
    by_size: dict[tuple, list[int]] = {}
    for i, image in enumerate(images):
        by_size.setdefault(image.pixels.shape[1:3], []).append(i)
    result: dict[int, jax.Array] = {}
    for members in by_size.values():
        pixels = np.concatenate([images[i].pixels for i in members])
        count = mesh.size  # times a power of two, so that few sizes are compiled
        while count < len(pixels):
            count *= 2
        batch = jax.device_put(filled(pixels, count), sharding.batch_sharding(mesh))
        logits, start = logits_of(weights, shared, batch), 0
        # Logits go to one device, where images are joined one by one.
        logits = jax.device_put(logits, mesh.devices.flat[0])
        for i in members:
            stop = start + len(images[i].pixels)
            result[i], start = logits[start:stop], stop
    return [result[i] for i in range(len(images))]
