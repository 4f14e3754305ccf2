"""How tokens and their maps change when an image is shifted or cropped (STELLAR figure 2).

The paper does not define its curves. Here they are the cosine of tokens, matched one to one with
the least total distance, and the relative Frobenius change |L' - L| / |L| of the maps, whose
columns are matched in the same way; each is the mean over images and over both axes of a shift.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from scipy import optimize, spatial

from ssl_jax.data.lookup import pixels
from ssl_jax.scores import normalize


class Parts(NamedTuple):
    """Tokens ("what") and maps ("where") of B images."""

    tokens: np.ndarray  # [B, r, d]
    maps: np.ndarray  # [B, h, w, k]: one map per token (k = r), or other channels


class Shifted(NamedTuple):
    """Means over images and both axes, one entry per shift."""

    what: np.ndarray  # cosine of matched tokens
    where: np.ndarray  # relative Frobenius change of the maps
    follows: np.ndarray  # change from maps moved with the image; NaN unless moved by whole patches
    other: float  # cosine of matched tokens of different images


def matching(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Matches the tokens of sets [N, r, d] one to one with the least total Euclidean distance: for
    each token of `first` the index of its partner in `second`, [N, r] int. Like `ops.align_sets`
    with "hungarian", without compiling."""
    pairs = (spatial.distance.cdist(a, b) for a, b in zip(first, second, strict=True))
    return np.stack([optimize.linear_sum_assignment(cost)[1] for cost in pairs])


def matched(index: np.ndarray, array: np.ndarray, axis: int = 1) -> np.ndarray:
    """Reorders `axis` (r tokens) of `array` by the `index` of `matching`."""
    shape = [len(index)] + [1] * (array.ndim - 1)
    shape[axis] = index.shape[1]
    return np.take_along_axis(array, index.reshape(shape), axis=axis)


def cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Mean cosine [N] of matched tokens of two sets [N, r, d]."""
    pairs = first, matched(matching(first, second), second)
    a, b = map(normalize.on_host, pairs)
    return (a * b).sum(axis=-1).mean(axis=-1)


def invariance(first: np.ndarray, second: np.ndarray) -> float:
    """Compares the cosine of matched tokens [N, r, d] of two views of an image with that of the
    previous image's tokens: 1 = the views are equal, 0 = no closer than different images."""
    foreign = float(cosine(first, np.roll(second, 1, axis=0)).mean())
    return (float(cosine(first, second).mean()) - foreign) / max(1 - foreign, 1e-6)


def change(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Relative Frobenius change |second - first| / |first| of arrays [N, ...]: [N] float64."""
    first, second = (np.asarray(x, np.float64).reshape(len(x), -1) for x in (first, second))
    size = np.maximum(np.linalg.norm(first, axis=1), 1e-12)
    return np.linalg.norm(second - first, axis=1) / size


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of maps [N, h, w, r] over all cells of an image, averaged over images; maps that
    vary more have more weight."""
    first, second = (x - x.mean(axis=(1, 2), keepdims=True) for x in (first, second))
    norms = np.sqrt(np.square(first).sum((1, 2, 3)) * np.square(second).sum((1, 2, 3)))
    return float(np.mean((first * second).sum((1, 2, 3)) / np.maximum(norms, 1e-12)))


def random_crop(
    rng: np.random.Generator, image: np.ndarray, size: tuple[int, int], scale: Sequence[float]
) -> np.ndarray:
    """A random crop of an image [H, W, 3] with the image's aspect ratio and a share of its area
    drawn from `scale`, resized to `size` (height, width)."""
    full = np.array(image.shape[:2])
    part = np.maximum(1, np.round(full * np.sqrt(rng.uniform(scale[0], scale[1]))).astype(int))
    y, x = (int(rng.integers(0, n + 1)) for n in full - part)
    area = part[0] > size[0]
    return cv2.resize(
        image[y : y + part[0], x : x + part[1]],
        size[::-1],
        interpolation=cv2.INTER_AREA if area else cv2.INTER_LINEAR,
    )


def shifted(
    function: Callable[[np.ndarray], Parts],
    images: np.ndarray,
    shifts: Sequence[int],
    window: tuple[int, int],
    patch: int,
) -> Shifted:
    """How Parts change when a window moves over images, along one axis at a time and centred along
    the other.

    Args:
      function: images [n, h, w, 3] -> Parts.
      images: [N, H, W, 3]. shifts, window (h, w): in pixels.
      patch: side of a cell of the maps, in pixels.

    Raises:
      ValueError: a shift moves the window out of the images.
    """
    free = [full - side for full, side in zip(images.shape[1:3], window)]
    if max(shifts) > min(free):
        raise ValueError(
            f"a shift of {max(shifts)} pixels leaves images of {pixels(images.shape[1:])} pixels"
            f" with a window of {pixels(window)}"
        )

    def seen(axis, shift):
        y, x = (shift if axis == a else free[a] // 2 for a in (0, 1))
        return function(images[:, y : y + window[0], x : x + window[1]])

    rows, others = [], []
    for axis in (0, 1):
        first = seen(axis, 0)
        others.append(cosine(first.tokens, np.roll(first.tokens, 1, axis=0)).mean())
        rows.append([_compared(first, seen(axis, s), axis, s, patch) for s in shifts])
    what, where, follows = np.mean(rows, axis=0).T
    return Shifted(what, where, follows, float(np.mean(others)))


def _compared(first: Parts, after: Parts, axis: int, shift: int, patch: int):
    """(what, where, follows) of one shift, each a mean over images; see `Shifted`."""
    index = matching(first.tokens, after.tokens)
    owned = first.maps.shape[-1] == first.tokens.shape[1] > 1
    maps = matched(index, after.maps, axis=3) if owned else after.maps
    follows = np.nan
    cells, rest = divmod(shift, patch)
    length = first.maps.shape[1 + axis]
    if not rest and cells < length:
        expected = first.maps.take(range(cells, length), 1 + axis)
        follows = change(expected, maps.take(range(length - cells), 1 + axis)).mean()
    what = cosine(first.tokens, after.tokens).mean()
    return what, change(first.maps, maps).mean(), follows


def cropped(
    function: Callable[[np.ndarray], Parts],
    images: np.ndarray,
    *,
    crops: int,
    scale: Sequence[float],
    size: tuple[int, int],
    seed: int,
) -> tuple[float, float]:
    """Cosines of matched tokens of two random crops of an image, and of crops of different images;
    means over all pairs of `crops` crops and over at least 2 images."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    sets = [
        function(np.stack([random_crop(rng, image, size, scale) for image in images])).tokens
        for _ in range(crops)
    ]
    pairs = [(sets[i], sets[j]) for i in range(crops) for j in range(i)]
    same = np.mean([cosine(a, b).mean() for a, b in pairs])
    other = np.mean([cosine(a, np.roll(b, 1, axis=0)).mean() for a, b in pairs])
    return float(same), float(other)


def measured(
    function: Callable[[np.ndarray], Parts],
    batches: Iterable[np.ndarray],
    *,
    shifts: Sequence[int],
    crops: int,
    scale: Sequence[float],
    window: int,
    patch: int,
    seed: int,
) -> tuple[Shifted, tuple[float, float]]:
    """Means over images of `shifted` and of `cropped`.

    Args:
      batches: images [n, H, W, 3], n >= 2. Later batches of one image are left out.
      window: side of the moving window, in pixels; 0 = the image minus the largest shift.
      others: see `shifted` and `cropped`.

    Raises:
      ValueError: the first batch has one image, or images are smaller than a patch plus the largest
        shift.
    """
    moved: list[Shifted] = []
    pairs: list[tuple[float, float]] = []
    weights: list[int] = []
    for number, images in enumerate(batches):
        if len(images) < 2:
            if weights:
                continue  # a single image cannot be compared with another
            raise ValueError("only one image; at least 2 are needed")
        part = _window(images.shape[1:3], window, max(shifts), patch)
        moved.append(shifted(function, images, shifts, part, patch))
        key = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
        pairs.append(cropped(function, images, crops=crops, scale=scale, size=part, seed=key))
        weights.append(len(images))
    means: Any = (np.average(np.stack(x), axis=0, weights=weights) for x in zip(*moved))
    same, other = np.average(pairs, axis=0, weights=weights).tolist()
    return Shifted(*means), (same, other)


def _window(size, window, shift, patch):
    """(height, width) of the moving window in images of `size`, in whole patches."""
    height, width = (max(window or side - shift, 0) // patch * patch for side in size)
    if not height or not width:
        raise ValueError(
            f"images of {pixels(size)} pixels are smaller than the largest shift, {shift}, plus one"
            f" patch of {patch}"
        )
    return height, width


def means(shifts: Sequence[int], moved: Shifted, pairs: tuple[float, float]) -> dict[str, float]:
    """Results of `measured` by the suffix of their name.

    "" and "_where" are means over shifts above 0, "_follows" over those by whole patches; "_other",
    "_crops" and "_crops_other" are the cosines; "_what_8" and "_where_8" belong to a shift of 8.
    Values that are not finite are left out."""
    moving = np.array(shifts) > 0
    by_patches = moving & np.isfinite(moved.follows)
    values = {
        "": moved.what[moving].mean() if moving.any() else np.nan,
        "_where": moved.where[moving].mean() if moving.any() else np.nan,
        "_other": moved.other,
        "_crops": pairs[0],
        "_crops_other": pairs[1],
        "_follows": moved.follows[by_patches].mean() if by_patches.any() else np.nan,
    }
    for shift, what, where in zip(shifts, moved.what, moved.where):
        values |= {f"_what_{shift}": what, f"_where_{shift}": where}
    return {name: float(x) for name, x in values.items() if np.isfinite(x)}
