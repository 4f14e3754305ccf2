"""Images and masks of a source's records, and training batches of their crops."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.lookup import pixels
from ssl_jax.evals.segment import crops, geometry
from ssl_jax.evals.segment.settings import Settings
from ssl_jax.features.feed import ahead, feed
from ssl_jax.losses.segmentation import IGNORE

_AHEAD = 3  # batches that threads prepare ahead
_READ_AHEAD = 8  # records in a batch of `masks`
_ORDER, _CROP = 1, 2  # part of the seeds, so that the random streams differ


class Records:
    """A sequence of (image uint8 [H, W, 3], mask uint8 [H, W]) of some records of a source.

    crop: side of the square centre crop of both, in pixels; 0 = none.
    ignored: class whose pixels count as unlabelled, so that higher classes are lowered by one; -1 =
      none.
    classes: number of classes without the ignored one; 0 = unknown, labels are not checked.

    An item raises InputError if the record has no mask, or a label that is not a class.
    """

    def __init__(
        self,
        source: Any,
        indices: np.ndarray,
        *,
        crop: int = 0,
        ignored: int = -1,
        classes: int = 0,
    ):
        self.source, self.indices = source, np.asarray(indices, np.int64)
        self._crop, self._ignored, self._classes = crop, ignored, classes

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        """(image, mask). Raises data.decode.Unreadable for a broken record."""
        return self.pair(position, self.source[int(self.indices[position])])

    def pair(self, position: int, record: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """(image, mask) of the record read at that position."""
        index = int(self.indices[position])
        mask = record.get("mask")
        if mask is None:
            raise InputError(
                f"{self.source.name(index)} has no mask; segmentation needs one for each image"
            )
        image, mask = _bytes(np.asarray(record["image"])), np.asarray(mask, np.uint8)
        if image.shape[:2] != mask.shape:
            raise InputError(
                f"{self.source.name(index)}: the image has {pixels(image.shape)} pixels, its mask"
                f" {pixels(mask.shape)}; they must be equal"
            )
        if self._crop:
            image, mask = (geometry.centre(array, self._crop) for array in (image, mask))
        mask = without_class(mask, self._ignored)
        if self._classes:
            wrong = (mask >= self._classes) & (mask != IGNORE)
            if wrong.any():
                raise InputError(
                    f"{self.source.name(index)}: label {mask[wrong][0]} of its mask is neither"
                    f" below {self._classes}, the number of classes, nor {IGNORE} (ignore)"
                )
        return image, mask

    def readable(self, position: int) -> tuple[np.ndarray, np.ndarray]:
        """The record, or the next one that can be read. Raises InputError if none can."""
        for step in range(len(self)):
            try:
                return self[(position + step) % len(self)]
            except Unreadable:
                continue
        raise InputError(f"no readable image in {self.source}")

    def masks(self) -> Iterator[np.ndarray]:
        """Masks of all readable records, read by several threads."""

        def mask_of(position, record):
            yield self.pair(position, record)[1]

        for batch in feed(self.source, self.indices, mask_of, _READ_AHEAD):
            yield from batch.views

    def part(self, positions: np.ndarray) -> "Records":
        """The records at `positions`."""
        return Records(
            self.source,
            self.indices[positions],
            crop=self._crop,
            ignored=self._ignored,
            classes=self._classes,
        )


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
        return crops.draw(rng, *records.readable(position), settings)

    places = ([(step, row) for row in rows] for step in range(settings.steps))
    for drawn in ahead(one, places, _AHEAD):
        images, masks = zip(*drawn)
        yield {"image": np.stack(images), "mask": np.stack(masks)}


def _bytes(image: np.ndarray) -> np.ndarray:
    """Converts pixels to uint8; those of arrays in memory may be floats in [0, 1]."""
    if image.dtype == np.uint8:
        return image
    return (np.clip(image, 0, 1) * 255 + 0.5).astype(np.uint8)
