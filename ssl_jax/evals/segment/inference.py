"""Classes of every pixel of test images: whole, by a sliding window, or of their central square."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from PIL import Image

from ssl_jax.data.decode import Unreadable
from ssl_jax.evals.segment import crops
from ssl_jax.evals.segment.network import Network
from ssl_jax.evals.segment.records import Records
from ssl_jax.evals.segment.settings import PYRAMIDS
from ssl_jax.evals.segment.training import Trained, grid_labels
from ssl_jax.features.ahead import ahead
from ssl_jax.models import segmentation
from ssl_jax.runtime import distributed, sharding
from ssl_jax.scores import metrics

_BUCKET = 64  # pixels: canvases and results are this much too large at most, to compile fewer sizes


class Windows(NamedTuple):
    """A test image, cut: pixels uint8 [n, h, w, 3] and their corners (y, x) in an image of `size`,
    of which the mask's pixels are a resampling."""

    pixels: np.ndarray
    corners: list[tuple[int, int]]
    size: tuple[int, int]


class Scored(NamedTuple):
    """One test image: record, and truth and predictions at the places that are scored."""

    position: int
    image: np.ndarray  # uint8 [H, W, 3]: as scored
    truth: np.ndarray  # uint8 [h, w], 255 = ignore
    predicted: np.ndarray  # uint8 [networks, h, w]


def starts(length: int, window: int, stride: int) -> list[int]:
    """Where windows begin along a side: every `stride`, the last one moved back to the border; as
    mmsegmentation's slide_inference."""
    count = max(length - window + stride - 1, 0) // stride + 1
    return [max(min(i * stride + window, length) - window, 0) for i in range(count)]


def cut(
    image: np.ndarray, mask: np.ndarray, config: Any, side: int, patch: int
) -> tuple[Windows, np.ndarray, np.ndarray]:
    """Windows of a test image, and image and mask as they are scored.

    A whole image is brought to the next multiple of the patch, or of two patches where a pyramid
    halves the grid (mmsegmentation's AlignResize to 32 pixels).
    """
    if config.test == "center":
        image, mask = _central(image, mask, config.short, side)
        return Windows(image[None], [(0, 0)], (side, side)), image, mask
    size = crops.fitted(mask.shape[0], mask.shape[1], config.short, config.long)
    if config.test == "whole":
        unit = 2 * patch if config.head in PYRAMIDS else patch
        size = -(-size[0] // unit) * unit, -(-size[1] // unit) * unit
        return Windows(crops.resize(image, size)[None], [(0, 0)], size), image, mask
    pixels = crops.resize(image, size)
    padded, _ = crops.pad(pixels, np.zeros(size, np.uint8), (side, side))
    stride = config.stride or max(1, side * 2 // 3)
    corners = [(y, x) for y in starts(size[0], side, stride) for x in starts(size[1], side, stride)]
    cuts = np.stack([padded[y : y + side, x : x + side] for y, x in corners])
    return Windows(cuts, corners, size), image, mask


def _central(image, mask, short, side):
    """Shorter side to `short` (antialiased bicubic), then the central square."""
    height, width = crops.fitted(*mask.shape, short, 0)
    height, width = max(side, height), max(side, width)
    kinds = Image.Resampling.BICUBIC, Image.Resampling.NEAREST
    image, mask = (
        np.asarray(Image.fromarray(array).resize((width, height), kind))
        for array, kind in zip((image, mask), kinds)
    )
    return crops.centre(image, side), crops.centre(mask, side)


def score(
    network: Network,
    trained: Sequence[Trained],
    records: Records,
    config: Any,
    *,
    side: int,
    patch: int,
    mesh: Mesh,
) -> Iterator[Scored]:
    """Segments records with each of the trained networks; those that cannot be read are left out.

    side: of windows and of the centre crop. mesh: of this process's devices.
    """
    weights = [(one.params, one.stats) for one in trained]
    shared = {} if "backbone" in trained[0].params else network.backbone
    weights, shared = jax.device_put((weights, shared), sharding.replicated(mesh))
    logits_of = _logits(network, mesh)

    def read(position):
        try:
            return position, *cut(*records[position], config, side, patch)
        except Unreadable:
            return None

    count = len(records)
    batches = (range(i, min(i + config.batch, count)) for i in range(0, count, config.batch))
    for found in ahead(read, batches, 1):
        items = [item for item in found if item is not None]
        logits = _encoded(logits_of, weights, shared, [item[1] for item in items], mesh)
        for (position, windows, image, mask), of_image in zip(items, logits):
            if config.level == "patch":
                predicted = np.asarray(jnp.argmax(of_image[0], axis=-1), np.uint8)
                mask = grid_labels(mask, predicted.shape[1:])
            else:
                predicted = join(of_image, windows, mask.shape)
            yield Scored(position, image, mask, predicted)


def counts(
    scored: Iterator[Scored], networks: int, classes: int, *, shared: bool = True
) -> np.ndarray:
    """[networks, classes, classes] int64 confusion matrices of all pixels; of all processes if they
    work together (`shared`)."""
    total = np.zeros((networks, classes, classes), np.int64)
    for one in scored:
        for i, predicted in enumerate(one.predicted):
            total[i] += metrics.confusion(one.truth, predicted, num_classes=classes)
    if shared and jax.process_count() > 1:
        total = distributed.everywhere(total.reshape(1, -1)).sum(axis=0).reshape(total.shape)
    return total


def _logits(network: Network, mesh: Mesh):
    """(weights, shared, images uint8 [n, H, W, 3]) -> [n, networks, h, w, classes], compiled."""

    def logits(weights, shared, images):
        images = images.astype(jnp.float32) / 255
        maps = network.maps(shared, images) if shared or not network.backbone else None
        outs = []
        for params, stats in weights:
            backbone = {name: tree for name, tree in params.items() if name != "head"}
            seen = network.maps(backbone, images) if maps is None else maps
            outs.append(network.head.apply(params["head"], stats, seen)[0].logits)
        return jnp.stack(outs, axis=1)

    def on_mesh(*args):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return logits(*args)

    whole, rows = sharding.replicated(mesh), sharding.batch_sharding(mesh)
    return jax.jit(on_mesh, in_shardings=(whole, whole, rows), out_shardings=rows)


def _encoded(logits_of, weights, shared, images: list[Windows], mesh) -> list[jax.Array]:
    """Logits [windows, networks, h, w, classes] of each image; windows of one size go together."""
    by_size: dict[tuple, list[int]] = {}
    for i, windows in enumerate(images):
        by_size.setdefault(windows.pixels.shape[1:3], []).append(i)
    result: dict[int, jax.Array] = {}
    for members in by_size.values():
        pixels = np.concatenate([images[i].pixels for i in members])
        count = mesh.size  # powers of two times the devices: few sizes to compile
        while count < len(pixels):
            count *= 2
        filler = np.broadcast_to(pixels[-1:], (count - len(pixels), *pixels.shape[1:]))
        batch = jax.device_put(np.concatenate([pixels, filler]), sharding.batch_sharding(mesh))
        logits, start = logits_of(weights, shared, batch), 0
        # On one device from here on: images are put together one by one.
        logits = jax.device_put(logits, mesh.devices.flat[0])
        for i in members:
            stop = start + len(images[i].pixels)
            result[i], start = logits[start:stop], stop
    return [result[i] for i in range(len(images))]


def join(logits: jax.Array, windows: Windows, size: Sequence[int]) -> np.ndarray:
    """Classes uint8 [networks, H, W] from the logits [windows, networks, h, w, c] of an image.

    Each window's logits are upsampled to its pixels, averaged where windows overlap, resampled to
    `size` (H, W), all bilinearly, and the largest wins; as mmsegmentation's tests do it.
    """
    window = windows.pixels.shape[1:3]
    counts: np.ndarray
    if len(windows.corners) == 1 and window == windows.size:
        canvas = _enlarged(logits[0], window)
        counts = np.ones(window, np.float32)
    else:
        height, width = (_bucket(max(a, b)) for a, b in zip(windows.size, window))
        canvas = jnp.zeros((logits.shape[1], height, width, logits.shape[-1]), jnp.float32)
        counts = np.zeros((height, width), np.float32)
        for one, (y, x) in zip(logits, windows.corners):
            canvas = _added(canvas, one, y, x, window)
            counts[y : y + window[0], x : x + window[1]] += 1
    samples = [_samples(old, new, _bucket(new)) for old, new in zip(windows.size, size)]
    labels = _decided(canvas, np.maximum(counts, 1), *samples)
    return np.asarray(labels)[:, : size[0], : size[1]]


def _bucket(length: int) -> int:
    return -(-length // _BUCKET) * _BUCKET


def _samples(old: int, new: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of `new` bilinear samples of `old` pixels: the two neighbours and the second one's weight,
    filled up to `length`."""
    places = np.maximum((np.arange(length) + 0.5) * old / new - 0.5, 0)
    first = np.minimum(np.floor(places).astype(np.int32), old - 1)
    weight = np.where(first < old - 1, places - first, 0).astype(np.float32)
    return first, np.minimum(first + 1, old - 1).astype(np.int32), weight


@functools.partial(jax.jit, static_argnames="size")
def _enlarged(logits, size):
    return segmentation.upsample(logits, size)


@functools.partial(jax.jit, static_argnames="size", donate_argnums=0)
def _added(canvas, logits, y, x, size):
    """The canvas with a window's logits [networks, h, w, c] added at (y, x)."""
    large = segmentation.upsample(logits, size)
    there = jax.lax.dynamic_slice(canvas, (0, y, x, 0), large.shape)
    return jax.lax.dynamic_update_slice(canvas, there + large, (0, y, x, 0))


@jax.jit
def _decided(canvas, counts, rows, columns):
    """Averages, resamples and takes the largest: uint8 [networks, H, W]."""
    x = canvas / counts[..., None]
    for axis, (first, second, weight) in ((1, rows), (2, columns)):
        shape = [1, 1, 1, 1]
        shape[axis] = -1
        weight = weight.reshape(shape)
        x = jnp.take(x, first, axis=axis) * (1 - weight) + jnp.take(x, second, axis=axis) * weight
    return jnp.argmax(x, axis=-1).astype(jnp.uint8)
