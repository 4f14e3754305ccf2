"""Batches of views from a source: order, sharding by process, workers, restart.

One integer describes the position: the next GLOBAL record r. With S = steps_per_epoch * batch_size
records in an epoch,

    epoch(r) = r // S,    record(r) = permutation(seed, epoch(r))[r % S]

so the last len(source) % batch_size records of each epoch's permutation are left out, different
ones every epoch. Process p of P takes the contiguous rows [p * B/P, (p + 1) * B/P) of each global
batch: the block that a batch sharded over a mesh in process order keeps on p. Every draw is keyed
by (seed, epoch, record index): neither workers, processes nor restarts change a sample.

A recipe with repeats R (repeated augmentation, Hoffer et al. 2020) takes the next D = ceil(B / R)
records of the permutation for a batch of B. Row i is record i % D of them, and its "epoch", which
keys its draws, is the pass epoch(r) * R + i // D over the data.

The unit of work is a batch, or in worker processes a few rows of one: each worker holds some units
that are finished, and batches of large images would take all memory. grain handles a unit as one
element, so it costs little per record.
"""

import atexit
import functools
import itertools
import math
from typing import Any

import jax
import numpy as np

from ssl_jax.config import InputError, key
from ssl_jax.data import base, lookup
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.values import check_range
from ssl_jax.views import recipe as recipes
from ssl_jax.views.workers import Ahead, end_in_worker

_ORDER = 0x0DE7  # keeps the streams of the data order apart from all others made of (seed, epoch)
_ENDLESS = 2**40  # batches
_UNIT = 16  # rows of a unit in a worker process, at most


def defaults() -> dict:
    """The keys of the section `data` that say how images are read, beside those of the source."""
    return dict(
        cache=key(
            "none",
            'where decoded images stay, uint8, for sets that fit: "none", the "memory" of each'
            ' loader process, or each "device", which then cuts the crops; several steps run in one'
            " program there",
            choices=("none", "memory", "device"),
            free=True,
        ),
        decode_size=key(
            0,
            "JPEGs are decoded at the smallest of 1/2, 1/4 and 1/8 of their size whose shorter side"
            " still has this many pixels: faster, but crops see less detail (sets whose images"
            " share one size are not changed); 0 = as stored",
            "pixels",
            least=0,
            most=16384,
        ),
        max_unreadable=key(
            0.01,
            "share of records that may be unreadable before the run stops",
            least=0,
            most=1,
            free=True,
        ),
        crop_on=key(
            "host",
            'where crops are cut: "host", or "device" (small images, all of one size)',
            choices=("host", "device"),
        ),
        workers=key(
            0,
            "loader processes, each with a copy of the package in memory; 0 = in the main process."
            " Changes no sample",
            "processes",
            least=0,
            most=1024,
            free=True,
        ),
    )


class Loader:
    """Iterator of batches (dicts of NumPy arrays: the local rows of a global batch), in order,
    without end by default.

    A batch has one views.recipe.Group per group name and
      "source_size" [b,2] float32 (height, width), "index" [b] int32 (record), "epoch" [b] int32
        (with repeats the pass over the data);
      "replaced" [b] bool: the record was unreadable and the next readable one of the source stands
        in for it, while "index" stays that of the unreadable one;
      "source" [b,H,W,3] uint8 or float32, the images themselves, only with crop_on="device"; or, of
        a source whose images the devices have (`resident.Resident`), their "row" [b] int32;
      "label" [b] int32, only where the recipe asks for labels, of the image that is shown.

    A few batches are prepared ahead: by two threads (workers=0), or by `workers` spawned processes.
    These need an `if __name__ == "__main__"` guard in the caller's script, and each fills its own
    cache; one that the system kills is replaced, and no batch changes. Call `close()` at the end.
    """

    def __init__(
        self,
        source: Any,
        recipe: recipes.ViewRecipe,
        *,
        batch_size: int,
        seed: int,
        workers: int = 0,
        crop_on: str = "host",
        process_index: int = 0,
        process_count: int = 1,
        start_record: int = 0,
        total_records: int | None = None,
        max_unreadable: float = 0.01,
    ):
        """
        Args:
          source: see data.source. recipe: views.recipe.ViewRecipe.
          batch_size: over all processes. seed: >= 0.
          workers: processes; 0 = threads of this process.
          crop_on: "host", or "device" for images of one size.
          start_record: `state()["record"]` of an earlier loader.
          total_records: stop before this record (whole batches only); None = never.
          max_unreadable: share of len(source) in [0,1]; more distinct unreadable records than that
            raise InputError (each process counts those it met since it started).

        Raises:
          InputError: here for values that do not fit each other, from the iterator for images or
          labels that do not fit.
        """
        end_in_worker()
        source = base.adopt(source)
        check_labels(source, recipe)
        _check(
            source, batch_size, seed, workers, crop_on, process_count, start_record, max_unreadable
        )
        self.steps_per_epoch = len(source) // batch_size
        self._source, self._share = source, max_unreadable
        self._batch_size, self._record = batch_size, start_record
        self._replaced: dict[int, None] = {}  # record index -> None, over all workers
        self._closed = False
        length = _ENDLESS if total_records is None else total_records // batch_size
        local = batch_size // process_count
        self._units = math.ceil(local / _UNIT) if workers else 1  # of a batch
        cuts = [process_index * local + local * i // self._units for i in range(self._units + 1)]
        rows = [range(*pair) for pair in itertools.pairwise(cuts)]
        batches = _Batches(
            source, recipe, seed, batch_size, rows, crop_on == "device", max_unreadable, length
        )
        self.source_size = batches.image_size
        self._ahead = Ahead(batches, start_record // batch_size * self._units, workers)
        if workers:
            # Before multiprocessing's own clean-up, which would wait for the workers.
            atexit.register(self.close)

    def __iter__(self):
        return self

    def __next__(self) -> dict:
        """The next batch. StopIteration at total_records; InputError from here or a worker. Both
        close the loader.
        """
        if self._closed:
            raise StopIteration
        try:
            units = self._ahead.take(self._units)
            batch = units[0]
            if len(units) > 1:
                batch = jax.tree.map(lambda *x: np.concatenate(x), *units)
            self._count(batch)
        except Exception:  # who is interrupted closes it: that may wait for a reader that hangs
            self.close()
            raise
        self._record += self._batch_size
        return batch

    def state(self) -> dict:
        """{"record": next global record}: the `start_record` of a new loader with any workers and
        processes.
        """
        return {"record": self._record}

    def close(self) -> None:
        """Stops threads and processes. Further batches raise StopIteration."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        self._ahead.close()

    def _count(self, batch):
        """Adds up over all workers what each of them replaced."""
        new = [int(i) for i in batch["index"][batch["replaced"]] if int(i) not in self._replaced]
        if new:
            self._replaced |= dict.fromkeys(new)
            check_share(self._source, self._replaced, self._share)


class _Batches:
    """Random access to the local rows of global batches, each in len(rows) units: element
    b * len(rows) + i has rows[i] of batch b. Picklable, safe in threads.
    """

    def __init__(self, source, recipe, seed, batch_size, rows, on_device, share, length):
        self._source, self._recipe, self._seed = source, recipe, seed
        self._batch_size, self._rows = batch_size, rows
        self._on_device, self._share, self._length = on_device, share, length
        self._bad = {}  # record index -> reason, of the unreadable records met by this process
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
                recipes.crop_host(self._recipe, image, row, **stream)
                for image, row, stream in zip(images, drawn, streams, strict=True)
            ]
        batch = {
            **{name: _group(name, drawn, crops) for name in drawn[0]},
            "source_size": np.array(sizes, np.float32),
            "index": np.array(indices, np.int32),
            "epoch": np.array(passes, np.int32),
            "replaced": np.array([replaced for _, replaced in records]),
        }
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
        """Images must be uint8 for crops on the host, of one size and in range for crops on the
        device."""
        if not self._on_device:
            if any(image.dtype != np.uint8 for image in images):
                raise InputError(
                    "data.crop_on=host needs uint8 images; use data.crop_on=device for"
                    f" {self._source}"
                )
            return
        for i, image in zip(indices, images, strict=True):
            check_range(image, self._source.name(i))
            if image.shape[:2] != self.image_size:
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


def check_labels(source: base.Source, recipe: recipes.ViewRecipe) -> None:
    """Refuses a source without the labels that a recipe asks for. Raises InputError."""
    if not recipe.classes:
        return
    unlabelled = source.unlabelled
    if len(unlabelled):
        raise InputError(
            f"{len(unlabelled)} of {len(source)} images of {source} have no label, first"
            f" {source.name(unlabelled[0])}; move them away, or list the others in data.list"
        )
    if source.num_classes == recipe.classes:
        return
    if source.num_classes is None:
        raise InputError(
            f"{source} has no labels, which this method needs; use a set with labels (a"
            " TFDS set, or a folder with a subfolder per class)"
        )
    raise InputError(
        f"{source} has {source.num_classes} classes, but the method is set to {recipe.classes};"
        " set the method's `classes` to those of the data"
    )


def _check(source, batch_size, seed, workers, crop_on, process_count, start_record, share):
    """InputError for arguments that do not fit each other."""
    if batch_size < 1 or batch_size % process_count:
        raise InputError(
            f"optim.batch_size={batch_size} must be a positive multiple of the {process_count}"
            " processes"
        )
    if batch_size > len(source):
        raise InputError(
            f"optim.batch_size={batch_size} is more than the {len(source)} records of {source}"
        )
    if seed < 0:
        raise InputError(f"seed must not be negative, got {seed}")
    if workers < 0:
        raise InputError(
            f"data.workers must be 0 (threads) or a number of processes, got {workers}"
        )
    if crop_on not in ("host", "device"):
        raise InputError(f"data.crop_on must be host or device, got {crop_on!r}")
    if start_record % batch_size:
        raise InputError(
            f"start_record={start_record} must be a multiple of optim.batch_size={batch_size}"
        )
    if not 0 <= share <= 1:
        raise InputError(f"data.max_unreadable is a share of the records, from 0 to 1, got {share}")


def check_share(source: base.Source, bad: dict, share: float, count: int = 0) -> None:
    """Refuses a source of which `bad` (index -> reason, or None to ask again) has more than that
    share; count: of its records that are read, 0 = all. Raises InputError."""
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
