"""Images and masks of a source's records, and training batches of their crops."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data.lookup import pixels
from ssl_jax.evals.segment.settings import Settings
from ssl_jax.evals.segment.windows import centre
from ssl_jax.features.feed import ahead, feed, readable
from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.views import masked

_AHEAD = 3  # batches that threads prepare ahead
_ORDER, _CROP = 1, 2  # part of the seeds, so that the random streams differ


@dataclasses.dataclass(frozen=True)
class Records:
    """Images uint8 [H, W, 3] and masks uint8 [H, W] of some records of a source.

    crop: side of the square centre crop of both, in pixels; 0 = none.
    ignored: class whose pixels count as unlabelled; higher classes are lowered by one; -1 = none.
    classes: number of classes without the ignored one; 0 = unknown, labels are not checked.
    """

    source: Any
    indices: np.ndarray
    crop: int = 0
    ignored: int = -1
    classes: int = 0

    def __len__(self) -> int:
        return len(self.indices)

    def pair(self, index: int, record: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """(image, mask) of record `index` of the source. Raises InputError if it has no mask, or a
        label that is not a class."""
        name, mask = self.source.name(int(index)), record.get("mask")
        if mask is None:
            raise InputError(f"{name} has no mask; segmentation needs one for each image")
        image, mask = _bytes(np.asarray(record["image"])), np.asarray(mask, np.uint8)
        if image.shape[:2] != mask.shape:
            raise InputError(
                f"{name}: the image has {pixels(image.shape)} pixels, its mask"
                f" {pixels(mask.shape)}; they must be equal"
            )
        if self.crop:
            image, mask = (centre(array, self.crop) for array in (image, mask))
        mask = without_class(mask, self.ignored)
        wrong = (mask >= self.classes) & (mask != IGNORE)
        if self.classes and wrong.any():
            raise InputError(
                f"{name}: label {mask[wrong][0]} of its mask is neither below {self.classes}, the"
                f" number of classes, nor {IGNORE} (ignore)"
            )
        return image, mask

    def masks(self) -> Iterator[np.ndarray]:
        """Masks of all readable records, read by several threads."""

        def mask_of(row, record):
            yield self.pair(self.indices[row], record)[1]

        for batch in feed(self.source, self.indices, mask_of, size=8):
            yield from batch.views

    def part(self, positions: np.ndarray) -> "Records":
        """The records at `positions`."""
        return dataclasses.replace(self, indices=self.indices[positions])


def without_class(mask: np.ndarray, ignored: int) -> np.ndarray:
    """Replaces class `ignored` by 255 and lowers higher classes by one; -1 = no change."""
    if ignored < 0:
        return mask
    moved = np.where((mask > ignored) & (mask != IGNORE), mask - 1, mask)
    return np.where(mask == ignored, IGNORE, moved).astype(np.uint8)


def batches(
    records: Records, settings: Settings, *, seed: int, rows: Sequence[int] | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Yields `settings.steps` training batches {"image": uint8 [b, side, side, 3], "mask": uint8
    [b, side, side]}.

    Records are shuffled in each epoch, and a batch may contain the end of one epoch and the start
    of the next. A crop depends only on seed, step, row and record, not on threads.

    rows: rows of each batch for this process; None = all.
    """
    rows = range(settings.batch) if rows is None else rows

    @functools.lru_cache(maxsize=2)
    def order(epoch):
        return np.random.default_rng([seed, _ORDER, epoch]).permutation(len(records))

    def one(place):
        step, row = place
        epoch, i = divmod(step * settings.batch + row, len(records))
        position = order(epoch)[i]
        rng = np.random.default_rng([seed, _CROP, step, row, int(records.indices[position])])
        read = readable(records.source, records.indices, position)
        return masked.draw(rng, *records.pair(*read), settings)

    places = ([(step, row) for row in rows] for step in range(settings.steps))
    for drawn in ahead(one, places, _AHEAD):
        images, masks = zip(*drawn)
        yield {"image": np.stack(images), "mask": np.stack(masks)}


def _bytes(image: np.ndarray) -> np.ndarray:
    """Converts pixels to uint8; those of arrays in memory may be floats in [0, 1]."""
    if image.dtype == np.uint8:
        return image
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)
