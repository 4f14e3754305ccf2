"""Label propagation through a video by the similarity of patch features (Jabri et al. 2020; in the
form of DINO's evaluation on DAVIS 2017).
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
from ssl_jax.scores import normalize

_TILE = 8  # side of the squares of target patches that are looked at together, patches
_TILES = 8  # of them at a time


class Propagation(NamedTuple):
    """How labels are propagated; the defaults are DINO's."""

    previous: int = 7  # frames that labels come from, besides the first; at least 1
    radius: int = 12  # patches that a source may lie away, up or down and left or right
    top: int = 5  # sources that a patch takes its label from
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
    """Soft labels of a frame: of the patches of all sources within `radius` of a target patch, the
    `top` most similar ones count, weighted by exp(cosine / temperature).

    The frame is worked on in squares of 8 x 8 patches, each with its surroundings in the sources:
    at stride 8, a frame of 480 x 832 pixels and eight sources take 20 MB instead of 1.2 GB.

    Args:
      target: [h, w, d] float32 of length 1 (or 0). sources: [s, h, w, d] likewise.
      labels: [s, h, w, c] float32, soft labels of the sources.
      valid: [s] bool, sources that exist.

    Returns:
      [h, w, c] float32. Of equal similarities the earlier source counts, then the upper left patch.
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
    side = _TILE + 2 * radius  # of the surroundings of a square
    offset = np.arange(side) - radius - np.arange(_TILE)[:, None]  # [tile, side]
    near = np.abs(offset) <= radius

    def square(number):
        y, x = number // columns * _TILE, number % columns * _TILE
        patches = jax.lax.dynamic_slice(target, (y, x, 0), (_TILE, _TILE, dim))
        beside = jax.lax.dynamic_slice(sources, (0, y, x, 0), (count, side, side, dim))
        their_labels = jax.lax.dynamic_slice(labels, (0, y, x, 0), (count, side, side, classes))
        similarity = jnp.einsum("yxd,sabd->yxsab", patches, beside, precision="highest")
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

    They are enlarged bilinearly to `size` (H, W), each channel is stretched to 0..1 (but for one
    that is 0 everywhere), and the largest wins.
    """
    large = jax.image.resize(soft, (*size, soft.shape[-1]), "bilinear")
    low, high = large.min(axis=(0, 1)), large.max(axis=(0, 1))
    stretched = (large - low) / jnp.where(high > low, high - low, 1)
    return jnp.where(high > 0, stretched, large).argmax(axis=-1).astype(jnp.uint8)


def one_hot(mask: ArrayLike, grid: tuple[int, int]) -> np.ndarray:
    """Labels [h, w, c] float32 of the patches of a first frame, by the nearest pixel of its mask.

    mask: [H, W] uint8, 0..c - 1; 255 belongs to nothing.
    """
    mask = np.asarray(mask, np.uint8)
    classes = 1 + int(np.where(mask == IGNORE, 0, mask).max())
    small = _resized(mask, grid)
    return (small[..., None] == np.arange(classes)).astype(np.float32)


def _resized(mask, size):
    """A mask by nearest pixel."""
    return np.asarray(Image.fromarray(mask).resize(size[::-1], Image.Resampling.NEAREST))


def track(
    features: Iterable[np.ndarray],
    mask: np.ndarray,
    *,
    frame: tuple[int, int],
    settings: Propagation = Propagation(),  # noqa: B008, immutable
) -> Iterator[np.ndarray]:
    """The mask of every frame of a video from that of the first.

    Args:
      features: patch features [h, w, d] of each frame.
      mask: [H, W] uint8 of the first one, 0 = background, 255 = belongs to nothing.
      frame: (height, width) that the network saw, to which labels are enlarged.

    Yields:
      [H, W] uint8 for every frame, the first one's own included; the last step is nearest pixel.
    """
    frames = iter(features)
    first = normalize.on_device(next(frames))
    labels = jnp.asarray(one_hot(mask, first.shape[:2]))
    yield mask
    memory = [(first, labels)]
    for patches in frames:
        target = normalize.on_device(patches)
        missing = 1 + settings.previous - len(memory)
        sources, given = (jnp.stack([*xs, *[xs[0]] * missing]) for xs in zip(*memory))
        soft = propagate(
            target,
            sources,
            given,
            jnp.arange(len(sources)) < len(memory),
            radius=settings.radius,
            top=settings.top,
            temperature=settings.temperature,
        )
        memory = [memory[0], *[*memory[1:], (target, soft)][-settings.previous :]]
        yield _resized(np.asarray(hardened(soft, frame)), mask.shape)


def follow(
    frames: Iterable[tuple[tuple[np.ndarray, tuple[int, int]], np.ndarray]], settings: Propagation
) -> tuple[np.ndarray, np.ndarray]:
    """True and predicted masks [T, H, W] uint8 of a video, by `track`.

    frames: ((mask [H, W] uint8, (height, width) that the network saw), patch features [h, w, d]) of
    each, one after the other.
    """
    stream = iter(frames)
    (given, size), patches = next(stream)
    truth = [given]

    def features():
        yield patches
        for (mask, _), later in stream:
            truth.append(mask)
            yield later

    predicted = list(track(features(), given, frame=size, settings=settings))
    return np.stack(truth), np.stack(predicted)
