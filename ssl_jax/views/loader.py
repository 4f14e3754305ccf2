"""Batches of views from a source: sharding by process, workers, restart; `batches` determines their
records.

Process p of P takes the contiguous rows [p * B/P, (p + 1) * B/P) of each global batch: its shard of
a batch that is sharded over a mesh in process order.

The unit of work is a batch, or in worker processes a few rows of one: each worker holds some
finished units, and whole batches of large images would use up the memory. grain treats a unit as
one element, so its cost per record is small.
"""

import atexit
import itertools
import math
from typing import Any

import jax
import numpy as np

from ssl_jax.config import InputError, key
from ssl_jax.data import base
from ssl_jax.views import recipe as recipes
from ssl_jax.views.batches import Batches, check_share
from ssl_jax.views.resident import Resident
from ssl_jax.views.workers import Ahead, end_in_worker

_ENDLESS = 2**40  # batches
_UNIT = 16  # rows of a unit in a worker process, at most


def defaults() -> dict:
    """The keys of the section `data` that say how images are read, beside those of the source."""
    return dict(
        cache=key(
            "none",
            'where decoded uint8 images are cached, if all fit: "none", the "memory" of each'
            ' loader process, or each "device", which then cuts the crops and runs several steps'
            " in one program",
            choices=("none", "memory", "device"),
            free=True,
        ),
        decode_size=key(
            0,
            "JPEGs are decoded at the smallest of 1/2, 1/4 and 1/8 of their size whose shorter"
            " side has at least this many pixels: faster, but crops have less detail (no effect if"
            " all images have one size); 0 = full size",
            "pixels",
            least=0,
            most=16384,
        ),
        max_unreadable=key(
            0.01,
            "share of unreadable records above which the run stops",
            least=0,
            most=1,
            free=True,
        ),
        crop_on=key(
            "host",
            'where crops are cut: on the "host", or on the "device" (small images of one size)',
            choices=("host", "device"),
        ),
        area_crops=key(
            False,
            "resample crops on the host with OpenCV's area filter, in half the time of Pillow's"
            " antialiased bicubic but with other pixel values",
        ),
        workers=key(
            0,
            "number of loader processes, each with its own copy of the package in memory; 0 = load"
            " in the main process. Samples do not depend on it",
            "processes",
            least=0,
            most=1024,
            free=True,
        ),
    )


KEYS = defaults()  # their ranges hold for loaders made by hand too


class Loader:
    """Iterator of batches (dicts of NumPy arrays: the local rows of a global batch), in order,
    without end by default.

    A batch has one views.recipe.Group per group name and
      "source_size" [b,2] float32 (height, width), "index" [b] int32 (record), "epoch" [b] int32
        (with repeats the pass over the data);
      "replaced" [b] bool: the record was unreadable and the next readable one of the source stands
        replaces it, while "index" stays that of the unreadable one;
      "source" [b,H,W,3] uint8 or float32, the images themselves, only with crop_on="device"; or, of
        a source whose images are on the devices (`resident.Resident`), their "row" [b] int32;
      "label" [b] int32, of the image in the batch, only if the recipe uses labels.

    A few batches are prepared ahead: by two threads (workers=0), or by `workers` spawned processes.
    Processes need an `if __name__ == "__main__"` guard in the caller's script, and each fills its
    own cache; one that the system kills is replaced, and no batch changes. Call `close()` at the
    end.
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
        area_crops: bool = False,
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
          crop_on: "host", or "device" for images of one size. area_crops: see `crops_host`.
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
        check_masks(source, recipe)
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
        divided = workers and not isinstance(source, Resident)  # whose records are a few numbers
        self._units = math.ceil(local / _UNIT) if divided else 1  # of a batch
        cuts = [process_index * local + local * i // self._units for i in range(self._units + 1)]
        rows = [range(*pair) for pair in itertools.pairwise(cuts)]
        batches = Batches(
            *(source, recipe, seed, batch_size, rows),
            *(crop_on == "device", area_crops, max_unreadable, length),
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


def check_masks(source: base.Source, recipe: recipes.ViewRecipe) -> None:
    """Refuses a source without the masks that a recipe asks for. Raises InputError."""
    if recipe.patch_labels and not source.has_masks:
        raise InputError(
            f"{source} has no masks, which this method needs as it is set; use a set with masks"
            " (data.kind=coco_stuff, or a folder with data.masks)"
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
    values = dict(workers=workers, crop_on=crop_on, max_unreadable=share)
    for name, value in values.items():
        KEYS[name].check(f"data.{name}", value)
    if start_record % batch_size:
        raise InputError(
            f"start_record={start_record} must be a multiple of optim.batch_size={batch_size}"
        )
