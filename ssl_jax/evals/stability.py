"""What stays and what moves when an image is shifted or cropped (STELLAR figure 2).

For STELLAR "what" is its sparse tokens S and "where" its localization maps L: the tokens should
stay as they are and the maps move with the image. Any other network is measured by the same
functions with its image vector as the only token and its patch map as L.

The paper gives no definition of its curves. Here: cosine of matched tokens (one-to-one, of least
total distance), and the relative Frobenius change |L' - L| / |L| with the columns matched likewise;
each the mean over images, of a shift along both axes.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cv2
import numpy as np
from ml_collections import ConfigDict
from scipy import optimize, spatial

from ssl_jax.config import InputError, field
from ssl_jax.data.lookup import pixels
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures.base import Chart, Curve
from ssl_jax.evals.registry import Protocol, register_module
from ssl_jax.features.windows import filled

SHIFTS, CROPS, SCALE = (0, 2, 4, 8, 16), 4, (0.36, 1.0)

PROTOCOLS = {
    "stellar": Protocol(
        "STELLAR figure 2",
        {
            "data": {"size": 256},
            "crop": 224,
            "shifts": (0, 2, 4, 8, 12, 16, 20, 24, 28, 32),
            "crops": CROPS,
            "scale": SCALE,
            "test_examples": 1000,
        },
    )
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of this type of evaluation."""

    shifts: tuple[int, ...] = field(
        SHIFTS,
        "how far images are moved, within what data.size has more than crop (0: within as much"
        " as the largest shift takes)",
        "pixels",
        least=0,
    )
    crops: int = field(CROPS, "random crops of each image that are compared, in pairs", least=2)
    scale: tuple[float, ...] = field(
        SCALE,
        "of those crops, least and largest share of the area",
        above=0,
        most=1,
        length=2,
        ordered=True,
    )


class Parts(NamedTuple):
    """What and where of B images."""

    tokens: np.ndarray  # [B, r, d]
    maps: np.ndarray  # [B, h, w, k]: k = r, a map per token, or channels that belong to no token


class Shifted(NamedTuple):
    """Means over images and both axes, one entry per shift."""

    what: np.ndarray  # cosine of matched tokens
    where: np.ndarray  # relative Frobenius change of the maps
    follows: np.ndarray  # the same where the map moved with the image; NaN between whole patches
    other: float  # cosine of matched tokens of different images


def parts(encoder: Callable, images: np.ndarray) -> Parts:
    """Of a network with localization maps S and L, of any other its image vector and patches."""
    try:
        found = encoder(images, extras=True)
    except TypeError:  # a function that has no extras, such as raw pixels
        found = encoder(images)
    extras = getattr(found, "extras", None) or {}
    if "localization" in extras:
        return Parts(np.asarray(extras["tokens"]), np.asarray(extras["localization"]))
    return Parts(np.asarray(found.image)[:, None], np.asarray(found.patches))


def matching(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """[N, r] int: for each token of the first sets [N, r, d] its partner in the second, one to one,
    of least total Euclidean distance (as `ops.align_sets` with "hungarian", without compiling)."""
    pairs = (spatial.distance.cdist(one, other) for one, other in zip(first, second, strict=True))
    return np.stack([optimize.linear_sum_assignment(cost)[1] for cost in pairs])


def matched(index: np.ndarray, array: np.ndarray, axis: int = 1) -> np.ndarray:
    """`array` with its `axis` (r tokens) in the order of `matching`."""
    shape = [len(index)] + [1] * (array.ndim - 1)
    shape[axis] = index.shape[1]
    return np.take_along_axis(array, index.reshape(shape), axis=axis)


def cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """[N] mean cosine of matched tokens of two sets [N, r, d]."""
    pairs = first, matched(matching(first, second), second)
    one, other = (x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12) for x in pairs)
    return (one * other).sum(axis=-1).mean(axis=-1)


def kept(first: np.ndarray, second: np.ndarray) -> float:
    """How much closer tokens [N, r, d] are to those of the other view of their picture than to
    those of the picture before it, by the cosine of matched tokens: 1 = the same, 0 = no closer."""
    foreign = float(cosine(first, np.roll(second, 1, axis=0)).mean())
    return (float(cosine(first, second).mean()) - foreign) / max(1 - foreign, 1e-6)


def change(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """[N] relative Frobenius change |second - first| / |first| of arrays [N, ...], float64."""
    first, second = (np.asarray(x, np.float64).reshape(len(x), -1) for x in (first, second))
    size = np.maximum(np.linalg.norm(first, axis=1), 1e-12)
    return np.linalg.norm(second - first, axis=1) / size


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Of maps [N, h, w, r]: the mean over pictures of the correlation over cells; maps that vary
    more weigh more."""
    first, second = (x - x.mean(axis=(1, 2), keepdims=True) for x in (first, second))
    norms = np.sqrt(np.square(first).sum((1, 2, 3)) * np.square(second).sum((1, 2, 3)))
    return float(np.mean((first * second).sum((1, 2, 3)) / np.maximum(norms, 1e-12)))


def random_crop(
    rng: np.random.Generator, image: np.ndarray, size: tuple[int, int], scale: Sequence[float]
) -> np.ndarray:
    """A random part of an image [H, W, 3] of its own shape and a share of its area drawn from
    `scale`, resized to (height, width)."""
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
    """How parts change when a window moves over images.

    Args:
      function: images [n, h, w, 3] -> Parts.
      images: [N, H, W, 3]; shifts: pixels; the window (h, w) moves to the right, then down, from a
        place in the middle of the other axis.
      patch: pixels a cell of the maps stands for.

    Raises:
      InputError: a shift leads out of the images.
    """
    free = [full - side for full, side in zip(images.shape[1:3], window)]
    if max(shifts) > min(free):
        raise InputError(
            f"a shift of {max(shifts)} pixels leaves images of {pixels(images.shape[1:])} pixels"
            f" with a window of {pixels(window)}; raise data.size, or lower crop or shifts"
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
    """(what, where, follows) of one shift, means over images."""
    index = matching(first.tokens, after.tokens)
    owned = first.maps.shape[-1] == first.tokens.shape[1] > 1
    maps = matched(index, after.maps, axis=3) if owned else after.maps
    follows = np.nan
    cells, rest = divmod(shift, patch)
    length = first.maps.shape[1 + axis]
    if not rest and cells < length:
        gone = first.maps.take(range(cells, length), 1 + axis)
        follows = change(gone, maps.take(range(length - cells), 1 + axis)).mean()
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
    """Cosine of matched tokens of two random crops of an image, and of crops of different images;
    means over all pairs of `crops` crops. At least 2 images."""
    rng = np.random.Generator(np.random.Philox(key=seed))
    sets = [
        function(np.stack([random_crop(rng, image, size, scale) for image in images])).tokens
        for _ in range(crops)
    ]
    pairs = [(sets[i], sets[j]) for i in range(crops) for j in range(i)]
    same = np.mean([cosine(a, b).mean() for a, b in pairs])
    other = np.mean([cosine(a, np.roll(b, 1, axis=0)).mean() for a, b in pairs])
    return float(same), float(other)


def _window(case: Case, size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) of the part of images of `size` that a network sees."""
    c = case.config
    room = [c.crop or n - max(c.shifts) for n in size]
    window = tuple(max(n, 0) // case.patch * case.patch for n in room)
    if min(window) == 0:
        raise InputError(
            f"images of {pixels(size)} pixels with shifts of up to {max(c.shifts)} leave"
            f" less than a patch of {case.patch}; raise data.size or lower shifts"
        )
    return window[0], window[1]


def _padded(case: Case) -> Callable[[np.ndarray], Parts]:
    """`parts` of any number of images up to a batch, with one shape for the network."""

    def function(images):
        found = parts(case.encoder, filled(images, case.batch_size))
        return Parts(*(x[: len(images)] for x in found))

    return function


def _measured(case: Case) -> tuple[Shifted, tuple[float, float]]:
    """Means over all test images, of batches weighted by their size."""
    moved: list[Shifted] = []
    crops: list[tuple[float, float]] = []
    weights: list[int] = []
    for number, images in enumerate(case.batches(whole=True)):  # with the margin
        if len(images) < 2:
            if weights:
                continue  # a single image has no other to be compared with
            raise InputError("stability compares images: it needs at least 2")
        c, window, function = case.config, _window(case, images.shape[1:3]), _padded(case)
        moved.append(shifted(function, images, c.shifts, window, case.patch))
        seed = np.random.SeedSequence((case.seed, number)).generate_state(1)[0]
        how = dict(crops=c.crops, scale=c.scale, size=window, seed=int(seed))
        crops.append(cropped(function, images, **how))
        weights.append(len(images))
    means: Any = (np.average(np.stack(x), axis=0, weights=weights) for x in zip(*moved))
    return Shifted(*means), tuple(np.average(crops, axis=0, weights=weights).tolist())


def score(case: Case, settings: Settings) -> dict[str, float]:
    """In percent: `stability`, the cosine of matched tokens (of image vectors where there are none)
    under shifts, mean over all above 0; `stability_where`, the relative Frobenius change of the
    maps likewise; `stability_follows`, the same where the map moved along, over whole patches;
    `stability_crops`, the cosine of tokens of two random crops; `stability_other` and
    `stability_crops_other`, those cosines of different images. And by pixels: `stability_what_8`,
    `stability_where_8`.

    A network that says the same of all images is stable too: compare with `_other`.
    """
    moved, (same, different) = case.once("stability", _measured)
    shifts = np.array(case.config.shifts)
    some = shifts > 0
    values = {
        "": moved.what[some].mean() if some.any() else np.nan,
        "_where": moved.where[some].mean() if some.any() else np.nan,
        "_other": moved.other,
        "_crops": same,
        "_crops_other": different,
    }
    whole = some & np.isfinite(moved.follows)
    if whole.any():
        values["_follows"] = moved.follows[whole].mean()
    for shift, what, where in zip(shifts, moved.what, moved.where):
        values |= {f"_what_{shift}": what, f"_where_{shift}": where}
    return {f"stability{name}": 100 * float(x) for name, x in values.items() if np.isfinite(x)}


def figures(case: Case, settings: Settings) -> dict[str, Chart]:
    """{"shifts": both curves against the shift}."""
    moved, _ = case.once("stability", _measured)
    shifts = np.array(case.config.shifts)
    whole = np.isfinite(moved.follows)
    curves = (
        Curve("what: cosine of matched tokens", shifts, moved.what),
        Curve(
            "the same of different images", shifts, np.full(len(shifts), moved.other), dashed=True
        ),
        Curve("where: change of the maps", shifts, moved.where),
        Curve("change of maps moved along", shifts[whole], moved.follows[whole], dashed=True),
    )
    title = "What and where when the image is shifted"
    return {"shifts": Chart(title, curves, x="shift, pixels", y="cosine, relative change")}


def check(name: str, settings: Settings, data: ConfigDict) -> None:
    """Refuses shifts that move nothing. Raises InputError."""
    if max(settings.shifts) == 0:
        raise InputError(f"{name}.shifts is {settings.shifts}; give at least one above 0")


register_module(__name__, heading="stability", one_size=True)
