"""Features of a data set from a frozen network, and the baselines that every score is compared
with.

A `features_fn` takes images [B, H, W, 3] float32 in [0, 1] and returns a `methods.Features`-like
object with `.image` [B, d] and `.patches` [B, h, w, d]. Everything in `ssl_jax.evals` works on such
a function, so a trained network, an untrained one and raw pixels are scored by the same code.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.ops import patchify
from ssl_jax.train import distributed

RAW_GRID = 16  # side to which the raw-pixel baseline averages an image


class Pixels(NamedTuple):
    """What the raw-pixel baseline has of `methods.Features`."""

    image: jax.Array  # [B, d]
    patches: jax.Array  # [B, h, w, d]


class Extracted(NamedTuple):
    """Features and truth of N images, on the host. What was not asked for or does not exist is
    None.
    """

    image: np.ndarray | None  # [N, d] float32
    patches: np.ndarray | None  # [N, h, w, d] float32
    labels: np.ndarray | None  # [N] int32
    masks: np.ndarray | None  # [N, H, W] uint8, 255 = ignore; cropped like the images
    # [N] int64, record of the source each row came from
    index: np.ndarray  # type: ignore[assignment]  # hides tuple.index
    num_classes: int | None  # of the labels
    skipped: tuple[str, ...]  # names of the records that could not be read


def extract(
    features_fn: Callable[[np.ndarray], Any],
    source: Any,
    *,
    batch_size: int,
    indices: Sequence[int] | np.ndarray | None = None,
    image: bool = True,
    patches: bool = False,
    crop: int = 0,
    multiple: int = 1,
    shared: bool = True,
) -> Extracted:
    """Runs a jitted `features_fn` over records of `source`.

    Several processes share the records out, and all get all rows. Every call has ONE batch shape
    (the last batch is padded), so the function is traced once. The
    source resizes (its `size`: short side, then centre crop); `crop` and `multiple` only cut
    borders off, from image and mask alike: the protocol "resize to 256, centre crop 224" is a
    source of size 256 with crop=224.

    Args:
      features_fn: see the module's docstring.
      source: `len(s)`, `s[i] -> {"image": uint8 or float [H, W, 3], "label"?, "mask"?}`,
        `s.name(i)`, `s.size`, `s.num_classes`.
      batch_size: images per call.
      indices: which records, in which order; None: all of them.
      image, patches: which features to keep.
      crop: side of the square kept from the centre, in pixels; 0: everything.
      multiple: height and width are cut to a multiple of this (the patch size), around the centre.
      shared: whether all processes call this, each for its share; False: this one by itself.

    Returns:
      Extracted, one row per readable record; unreadable ones are left out and named in `skipped`.

    Raises:
      InputError: images differ in size, nothing is readable, the crop is larger than the image, a
        feature is not finite, or only some of the records have a label (or a mask).
    """
    if source.size is None:
        raise InputError(
            f"the images of {source!r} differ in size; set data.size of the evaluation"
        )
    window = _window(source.size, crop, multiple)
    indices = np.arange(len(source)) if indices is None else np.asarray(indices, np.int64)
    asked = len(indices)
    indices = distributed.share(indices) if shared else indices
    collected, kept, skipped, pending = _Rows(len(indices)), [], [], None
    truth: list[tuple] = []  # (label, mask) of each row
    for start in range(0, len(indices), batch_size):
        records = []
        for i in indices[start : start + batch_size]:
            try:
                records.append(source[int(i)])
                kept.append(int(i))
            except Unreadable:
                skipped.append(source.name(int(i)))
        if not records:
            continue
        truth.extend(
            (r.get("label"), _cut(r["mask"], window) if r.get("mask") is not None else None)
            for r in records
        )
        batch = features_fn(
            _pad(np.stack([_unit(_cut(r["image"], window)) for r in records]), batch_size)
        )
        # The device works on this batch while the host decodes the next one.
        if pending is not None:
            collected.add(*pending)
        pending = (
            {
                "image": batch.image if image else None,
                "patches": batch.patches if patches else None,
            },
            len(records),
        )
    if pending is not None:
        collected.add(*pending)
    rows = collected.arrays | {"index": np.asarray(kept, np.int64)}
    for name, dtype, column in (("label", np.int32, 0), ("mask", np.uint8, 1)):
        values = _column(name, [known[column] for known in truth], dtype, source)
        rows |= {} if values is None else {f"{name}s": values}
    if shared:
        rows, skipped = _joined(rows, skipped)
    if not len(rows["index"]):
        raise InputError(
            f"no readable image in {source!r} ({len(skipped)} unreadable, {asked} asked for)"
        )
    for name in ("image", "patches"):
        if name in rows:
            _check_finite(name, rows[name], rows["index"], source)
    return Extracted(
        image=rows.get("image"),
        patches=rows.get("patches"),
        labels=rows.get("labels"),
        masks=rows.get("masks"),
        index=rows["index"],
        num_classes=source.num_classes,
        skipped=tuple(skipped),
    )


def _joined(rows: dict, skipped: list[str]) -> tuple[dict, list[str]]:
    """Rows and names of all processes. Which rows there are is told first: a process without
    readable records has no shapes, and all must take the same way."""
    shapes = {name: (x.shape[1:], str(x.dtype)) for name, x in rows.items()}
    every = distributed.told({"shapes": shapes, "count": len(rows["index"]), "skipped": skipped})
    known: dict = {}
    for one in every:
        known |= one["shapes"]
    some = [one["shapes"].keys() for one in every if one["count"]]
    if any(names != known.keys() for names in some):
        partly = known.keys() - set.intersection(*map(set, some))
        raise InputError(
            f"only some records have {', '.join(sorted(partly))}; give all of them, or none"
        )
    joined = {}
    for name, (shape, dtype) in sorted(known.items()):
        mine = rows.get(name, np.empty((0, *shape), dtype))
        joined[name] = distributed.joined(mine)
    return joined, [name for one in every for name in one["skipped"]]


def images_of(
    source: Any, indices: Iterable[int], *, crop: int = 0, multiple: int = 1
) -> np.ndarray:
    """Images [n, H, W, 3] float32 in [0, 1] of the given records, cut as `extract` cuts them, for
    figures.
    """
    window = _window(source.size, crop, multiple)
    return np.stack([_unit(_cut(source[int(i)]["image"], window)) for i in indices])


def subset(length: int, count: int, seed: int) -> np.ndarray:
    """`count` of `length` records, drawn without replacement, ascending; all if count is 0 or not
    smaller.
    """
    if count <= 0 or count >= length:
        return np.arange(length)
    rng = np.random.Generator(np.random.Philox(key=seed))
    return np.sort(rng.choice(length, count, replace=False))


class _Rows:
    """Fills arrays of `capacity` rows batch by batch: no second copy of the features is
    ever made.
    """

    def __init__(self, capacity: int):
        self._capacity, self._filled = capacity, 0
        self._arrays: dict[str, np.ndarray] = {}

    def add(self, batch: dict, count: int) -> None:
        for name, values in batch.items():
            if values is None:
                continue
            values = np.asarray(values)[:count]
            if name not in self._arrays:
                self._arrays[name] = np.empty((self._capacity, *values.shape[1:]), np.float32)
            self._arrays[name][self._filled : self._filled + count] = values
        self._filled += count

    @property
    def arrays(self) -> dict:
        return {name: values[: self._filled] for name, values in self._arrays.items()}


def _window(size, crop, multiple):
    """(top, left, height, width) of the kept part of an image of `size` (height, width)."""
    if crop and crop > min(size):
        raise InputError(
            f"the evaluation crop is {crop} pixels but the images are {size[0]}x{size[1]}; "
            "use a larger `size` or a smaller crop"
        )
    height, width = ((crop or side) // multiple * multiple for side in size)
    if not height or not width:
        raise InputError(
            f"images of {size[0]}x{size[1]} pixels are smaller than one patch of {multiple} pixels"
        )
    return (size[0] - height) // 2, (size[1] - width) // 2, height, width


def _cut(array, window):
    top, left, height, width = window
    return np.asarray(array)[top : top + height, left : left + width]


def _unit(image):
    """Pixels as float32 in [0, 1]."""
    return (
        image.astype(np.float32) / np.float32(255)
        if image.dtype == np.uint8
        else image.astype(np.float32)
    )


def _pad(batch, size):
    """Repeats the last row until there are `size`; examples are encoded one by one, so padding
    changes no feature.
    """
    return (
        np.concatenate([batch, np.repeat(batch[-1:], size - len(batch), axis=0)])
        if len(batch) < size
        else batch
    )


def _column(name, values, dtype, source):
    """Stacks a value that all records or none of them carry."""
    missing = sum(v is None for v in values)
    if missing == len(values):
        return None
    if missing:
        raise InputError(
            f"{missing} of {len(values)} records of {source!r} have no {name}; give all of them"
            " one, or none"
        )
    return np.stack([np.asarray(v, dtype) for v in values])


def _check_finite(name, values, kept, source):
    bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if bad.any():
        first = kept[int(np.argmax(bad))]
        raise InputError(
            f"{name} features of {int(bad.sum())} of {len(bad)} images are not finite (first:"
            f" {source.name(first)})"
        )


@functools.cache
def raw_pixels(patch: int, grid: int = RAW_GRID) -> Callable[[ArrayLike], Pixels]:
    """features_fn of the raw-pixel baseline, for the same evaluation as a network with patches of
    `patch` pixels.

    `.image` [B, 3 * grid**2]: colours averaged over a grid x grid partition of the image, minus
    their mean over the image per channel, so that brightness and tint of the whole picture do not
    decide the cosine.
    `.patches` [B, H/patch, W/patch, 3 * patch**2]: the pixels of the patch minus mid grey. No
      position is added.
    """

    @jax.jit
    def apply(images):
        images = jnp.asarray(images, jnp.float32)
        b, height, width, _ = images.shape
        rows, columns = area_weights(height, grid), area_weights(width, grid)
        small = jnp.einsum("yh,bhwc,xw->byxc", rows, images, columns, precision="highest")
        small -= small.mean(axis=(1, 2), keepdims=True)
        h, w = height // patch, width // patch
        patches = patchify(images, patch).reshape(b, h, w, -1)
        return Pixels(image=small.reshape(b, -1), patches=patches - 0.5)

    return apply


def area_weights(size: int, cells: int) -> np.ndarray:
    """[cells, size] float32: row i averages the pixels in cell i of `cells` equal cells, shared
    pixels by share.
    """
    edges = np.linspace(0, size, cells + 1)
    pixels = np.arange(size)
    overlap = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return (np.maximum(overlap, 0) * cells / size).astype(np.float32)
