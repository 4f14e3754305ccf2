"""The rows of global batches: their records and views.

One integer describes the position: the next GLOBAL record r. With S = steps_per_epoch * batch_size
records in an epoch,

    epoch(r) = r // S,    record(r) = permutation(seed, epoch(r))[r % S]

so the last len(source) % batch_size records of each epoch's permutation are left out, different
ones every epoch. Every draw is keyed by (seed, epoch, record index): neither workers, processes nor
restarts change a sample.

A recipe with repeats R (repeated augmentation, Hoffer et al. 2020) takes the next D = ceil(B / R)
records of the permutation for a batch of B. Row i is record i % D of them, and its "epoch", which
keys its draws, is the pass epoch(r) * R + i // D over the data.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import base, lookup
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.values import check_range
from ssl_jax.views import boxes
from ssl_jax.views import recipe as recipes

_ORDER = 0x0DE7  # keeps the streams of the data order apart from all others made of (seed, epoch)


class Batches:
    """Random access to the local rows of global batches, each in len(rows) units: element
    b * len(rows) + i has rows[i] of batch b. Picklable, safe in threads.
    """

    def __init__(
        self,
        source: base.Source,
        recipe: recipes.ViewRecipe,
        seed: int,
        batch_size: int,
        rows: Sequence[range],
        on_device: bool,
        area_crops: bool,
        share: float,
        length: int,
    ):
        """on_device: whether the device cuts the crops; area_crops: see `recipe.crop_host`.
        share: of the records that may be unreadable. length: number of global batches."""
        self._source, self._recipe, self._seed = source, recipe, seed
        self._batch_size, self._rows = batch_size, rows
        self._on_device, self._area_crops = on_device, area_crops
        self._share, self._length = share, length
        self._bad: dict[int, str] = {}  # record -> reason, of unreadable ones met by this process
        self.image_size = source.size
        if on_device and self.image_size is None:
            self.image_size = self._readable(0)[0]["image"].shape[:2]

    def __len__(self):
        return self._length * len(self._rows)

    def __getitem__(self, number):
        b, unit = divmod(number, len(self._rows))
        passes, indices = self._order(b, self._rows[unit])
        records = [self._readable(i) for i in indices]
        images = [record["image"] for record, _ in records if "image" in record]
        if images:
            self._check_images(images, indices)
        sizes = [image.shape[:2] for image in images] or [self.image_size] * len(records)
        streams = [
            dict(seed=self._seed, epoch=p, index=i) for p, i in zip(passes, indices, strict=True)
        ]
        draw = functools.partial(recipes.draw, self._recipe)
        drawn = [draw(**s, source_size=size) for s, size in zip(streams, sizes, strict=True)]
        crops = None
        if not self._on_device:
            crops = [
                recipes.crop_host(self._recipe, image, row, area=self._area_crops, **stream)
                for image, row, stream in zip(images, drawn, streams, strict=True)
            ]
        batch = {
            **{name: _group(name, drawn, crops) for name in drawn[0]},
            "source_size": np.array(sizes, np.float32),
            "index": np.array(indices, np.int32),
            "epoch": np.array(passes, np.int32),
            "replaced": np.array([replaced for _, replaced in records]),
        }
        if self._recipe.patch_labels:
            masks = self._masks([record for record, _ in records], indices)
            for name, group in self._recipe.groups:
                pairs = zip(masks, drawn, strict=True)
                labels = [
                    boxes.patch_labels(mask, row[name].boxes, row[name].flips, group.grid)
                    for mask, row in pairs
                ]
                batch[name] = batch[name]._replace(labels=np.stack(labels))
        if self._recipe.classes:
            batch["label"] = self._labels([record for record, _ in records], indices)
        if self._on_device and images:
            batch["source"] = np.stack(images)
        elif self._on_device:
            batch["row"] = np.array([record["row"] for record, _ in records], np.int32)
        return batch

    def _order(self, b, rows):
        """(passes over the data, record indices) of some rows of global batch b."""
        epoch, step = divmod(b, len(self._source) // self._batch_size)
        repeats = self._recipe.repeats
        distinct = math.ceil(self._batch_size / repeats)  # records of a batch
        order = permutation(len(self._source), self._seed, epoch)
        row = np.arange(rows.start, rows.stop)
        passes = epoch * repeats + row // distinct
        return passes.tolist(), order[step * distinct + row % distinct].tolist()

    def _labels(self, records, indices):
        """int32 [b]. Each record must have a label among the classes."""
        labels = [record.get("label") for record in records]
        for i, label in zip(indices, labels, strict=True):
            if label is None or not 0 <= label < self._recipe.classes:
                raise InputError(
                    f"{self._source.name(i)} (or its replacement) has the label {label}; labels"
                    f" must be from 0 to {self._recipe.classes - 1}"
                )
        return np.array(labels, np.int32)

    def _masks(self, records, indices):
        """Those of the records, uint8 [H, W] each. Raises InputError for a record without one."""
        for i, record in zip(indices, records, strict=True):
            mask, size = record.get("mask"), record["image"].shape[:2]
            if mask is None or mask.dtype != np.uint8 or mask.shape != size:
                raise InputError(
                    f"{self._source.name(i)} (or its replacement) has no mask of"
                    f" {lookup.pixels(size)} pixels in uint8, which this method learns from; give"
                    " it one, or list the images that have one in data.list"
                )
        return [record["mask"] for record in records]

    def _readable(self, index):
        """(record, replaced): record `index` or, if that fails, the next one that works (after the
        last the first).
        """
        for offset in range(len(self._source)):
            i = (index + offset) % len(self._source)
            if i in self._bad:
                continue
            try:
                return self._source[i], offset > 0
            except Unreadable as error:
                self._bad[i] = error.reason
                check_share(self._source, self._bad, self._share)
        raise InputError(f"no record of {self._source} can be read")

    def _check_images(self, images, indices):
        """Images must be uint8 for crops on the host (or float32, all of a source that says so), of
        one size for crops on the device, and in range."""
        dtype = np.float32 if self._source.floats else np.uint8
        if not self._on_device and any(image.dtype != dtype for image in images):
            raise InputError(
                f"data.crop_on=host needs uint8 images; use data.crop_on=device for {self._source}"
            )
        for i, image in zip(indices, images, strict=True):
            check_range(image, self._source.name(i))
            if self._on_device and image.shape[:2] != self.image_size:
                actual, expected = map(lookup.pixels, (image.shape, self.image_size))
                raise InputError(
                    f"data.crop_on=device needs images of one size, but {self._source.name(i)} (or"
                    f" its replacement) has {actual} pixels, not {expected}; set data.size or"
                    " data.crop_on=host"
                )


@functools.lru_cache(maxsize=4)
def permutation(length: int, seed: int, epoch: int) -> np.ndarray:
    """Order of the records in an epoch: int64 [length], a pure function of its arguments.

    The ranks of a raw Philox stream, which NumPy promises never to change (it does not promise that
    for its shuffles).
    """
    bits = np.random.Philox(np.random.SeedSequence([_ORDER, seed, epoch]))
    order = np.argsort(bits.random_raw(length), kind="stable")
    order.flags.writeable = False
    return order


def check_share(source: base.Source, bad: dict, share: float, count: int = 0) -> None:
    """Refuses a source with more than that share of unreadable records, `bad` (index -> reason, or
    None to find it again); count: number of records read, 0 = all. Raises InputError."""
    count = count or len(source)
    if len(bad) <= share * count:
        return
    raise InputError(
        f"data.max_unreadable={share:g}: {len(bad)} of {count} records cannot be read:"
        f" {base.named_unreadable(source, bad)}; repair or move them, or raise"
        " data.max_unreadable"
    )


def _group(name, drawn, crops):
    """The Group of one name, stacked over the rows; `crops` is None when the device crops."""
    images = None if crops is None else np.stack([row[name] for row in crops])
    columns = zip(*(row[name] for row in drawn), strict=True)
    return recipes.Group(
        images, *(None if column[0] is None else np.stack(column) for column in columns)
    )
