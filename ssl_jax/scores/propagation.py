"""Label propagation through a video by the similarity of patch features (Jabri et al. 2020), as in
DINO's evaluation on DAVIS 2017.
"""

import functools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.scores import checked, normalize

_TILE = 8  # side of a tile of target patches, in patches
_TILES = 8  # tiles computed at once


class Propagation(NamedTuple):
    """Settings of the propagation; the defaults are DINO's."""

    previous: int = 7  # number of previous source frames besides the first frame; at least 1
    radius: int = 12  # largest distance of a source along each axis, in patches
    top: int = 5  # source patches that vote for a target patch
    temperature: float = 0.1


@functools.partial(jax.jit, static_argnames=("radius", "top", "temperature"))
def propagate(
    target: jax.Array,
    sources: jax.Array,
    labels: jax.Array,
    valid: jax.Array,
    *,
    radius: int,
    top: int,
    temperature: float,
) -> jax.Array:
    """Soft labels of a frame: the mean label of the `top` most similar source patches within
    `radius` of each target patch, weighted by exp(cosine / temperature).

    The frame is processed in tiles of 8 x 8 patches with their surroundings in the sources: with
    patches of 8, a frame of 480 x 832 pixels and eight sources take 20 MB instead of 1.2 GB.

    Args:
      target: [h, w, d] float32 of length 1 (or 0). sources: [s, h, w, d] likewise.
      labels: [s, h, w, c] float32, soft labels of the sources.
      valid: [s] bool, False for sources that are padding.

    Returns:
      [h, w, c] float32. Ties go to the earlier source, then to the upper left patch.
    """
    height, width, dim = target.shape
    count, classes = len(sources), labels.shape[-1]
    radius = min(radius, max(height, width))
    rows, columns = (-(-side // _TILE) for side in (height, width))
    extra = (0, rows * _TILE - height), (0, columns * _TILE - width)
    around = tuple((radius, radius + missing) for _, missing in extra)
    target = jnp.pad(target, (*extra, (0, 0)))
    sources = jnp.pad(sources, ((0, 0), *around, (0, 0)))
    labels = jnp.pad(labels, ((0, 0), *around, (0, 0)))
    side = _TILE + 2 * radius  # of a tile with its surroundings
    offset = np.arange(side) - radius - np.arange(_TILE)[:, None]  # [tile, side]
    near = np.abs(offset) <= radius

    def square(number):
        y, x = number // columns * _TILE, number % columns * _TILE
        patches = jax.lax.dynamic_slice(target, (y, x, 0), (_TILE, _TILE, dim))
        nearby = jax.lax.dynamic_slice(sources, (0, y, x, 0), (count, side, side, dim))
        their_labels = jax.lax.dynamic_slice(labels, (0, y, x, 0), (count, side, side, classes))
        similarity = jnp.einsum("yxd,sabd->yxsab", patches, nearby, precision="highest")
        place = jnp.arange(side) - radius
        in_rows = near & (y + place >= 0) & (y + place < height)
        in_columns = near & (x + place >= 0) & (x + place < width)
        usable = (
            in_rows[:, None, None, :, None]
            & in_columns[None, :, None, None, :]
            & valid[:, None, None]
        )
        similarity = jnp.where(usable, similarity, -jnp.inf).reshape(_TILE**2, -1)
        values, index = jax.lax.top_k(similarity, min(top, similarity.shape[1]))
        weights = jax.nn.softmax(values / temperature, axis=1)
        chosen = their_labels.reshape(-1, classes)[index]
        return jnp.einsum("nk,nkc->nc", weights, chosen, precision="highest")

    squares = jax.lax.map(square, jnp.arange(rows * columns), batch_size=_TILES)
    grid = squares.reshape(rows, columns, _TILE, _TILE, classes).swapaxes(1, 2)
    return grid.reshape(rows * _TILE, columns * _TILE, classes)[:height, :width]


@functools.partial(jax.jit, static_argnames="size")
def hardened(soft: jax.Array, size: tuple[int, int]) -> jax.Array:
    """Class of each pixel, [H, W] uint8, from soft labels [h, w, c] of patches.

    The labels are enlarged bilinearly to `size` (H, W), each channel that is not 0 everywhere is
    stretched to 0..1, and the largest wins.
    """
    large = jax.image.resize(soft, (*size, soft.shape[-1]), "bilinear")
    low, high = large.min(axis=(0, 1)), large.max(axis=(0, 1))
    stretched = (large - low) / jnp.where(high > low, high - low, 1)
    return jnp.where(high > 0, stretched, large).argmax(axis=-1).astype(jnp.uint8)


def one_hot(mask: ArrayLike, grid: tuple[int, int]) -> np.ndarray:
    """Labels [h, w, 1 + n] float32 of the patches of a frame, from the nearest pixel of its mask:
    of the background and of each of the n `objects`.

    mask: [H, W] uint8, the object of each pixel; 0 = background, 255 = no class.
    """
    mask = np.asarray(mask, np.uint8)
    return (_resized(mask, grid)[..., None] == np.append(0, objects(mask))).astype(np.float32)


def objects(masks: ArrayLike) -> np.ndarray:
    """The numbers of the objects in masks, [n] int ascending, without 0 and 255. They need not be
    1..n."""
    return np.setdiff1d(masks, (0, IGNORE))


def _resized(mask, size):
    """Resizes a mask by nearest neighbour."""
    return np.asarray(Image.fromarray(mask).resize(size[::-1], Image.Resampling.NEAREST))


def track(
    features: Iterable[np.ndarray],
    mask: np.ndarray,
    *,
    frame: tuple[int, int],
    settings: Propagation = Propagation(),  # noqa: B008, immutable
) -> Iterator[np.ndarray]:
    """Predicts the mask of each frame of a video from the mask of the first frame.

    Args:
      features: finite patch features [h, w, d] of each frame.
      mask: [H, W] uint8, mask of the first frame; 0 = background, 255 = no class.
      frame: (height, width) of the network's input, to which labels are enlarged bilinearly before
        they are resized to [H, W] by nearest neighbour.

    Yields:
      [H, W] uint8 for each frame; for the first one, `mask`.
    """
    frames = (normalize.on_device(checked.finite(x, "patches")) for x in features)
    first = next(frames)
    labels = jnp.asarray(one_hot(mask, first.shape[:2]))
    numbers = np.append(0, objects(mask)).astype(np.uint8)
    yield mask
    memory = [(first, labels)]
    for target in frames:
        missing = 1 + settings.previous - len(memory)
        sources, source_labels = (jnp.stack([*xs, *[xs[0]] * missing]) for xs in zip(*memory))
        soft = propagate(
            target,
            sources,
            source_labels,
            jnp.arange(len(sources)) < len(memory),
            radius=settings.radius,
            top=settings.top,
            temperature=settings.temperature,
        )
        memory = [memory[0], *[*memory[1:], (target, soft)][-settings.previous :]]
        yield _resized(numbers[np.asarray(hardened(soft, frame))], mask.shape)


def follow(
    frames: Iterable[tuple[tuple[np.ndarray, tuple[int, int]], np.ndarray]], settings: Propagation
) -> tuple[np.ndarray, np.ndarray]:
    """True and predicted masks [T, H, W] uint8 of a video, by `track`.

    frames: ((mask [H, W] uint8, (height, width) of the network's input), patch features [h, w, d])
    of each frame, in order.
    """
    stream = iter(frames)
    (first_mask, size), patches = next(stream)
    truth = [first_mask]

    def features():
        yield patches
        for (mask, _), later in stream:
            truth.append(mask)
            yield later

    predicted = list(track(features(), first_mask, frame=size, settings=settings))
    return np.stack(truth), np.stack(predicted)
