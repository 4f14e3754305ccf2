"""From records to arrays of features: decoded ahead, encoded in batches of one shape, put into
rows."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import base
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.lookup import pixels
from ssl_jax.data.values import check_range
from ssl_jax.features import store
from ssl_jax.features.feed import Batch, View, encoded, feed, planned
from ssl_jax.features.network import Network
from ssl_jax.features.store import Grids
from ssl_jax.features.windows import cut, unit, window
from ssl_jax.runtime import progress


class Work:
    """The records of one process on their way to arrays of features and truth.

    network, source, crop, multiple: see `features.extract`. indices: of the records.
    allocate(name, shape, dtype): makes the arrays. masks: whether they are kept.
    """

    def __init__(
        self,
        network: Network,
        source: Any,
        indices: np.ndarray,
        *,
        crop: int,
        multiple: int,
        allocate: store.Allocate,
        masks: bool = True,
    ):
        self._network, self._source, self._indices = network, source, indices
        self._crop, self._multiple, self._allocate = crop, multiple, allocate
        self._masks = masks
        self._windows = self._planned()  # [N, 2]: height and width of the kept part
        self._arrays: dict[str, Any] = {}

    def _planned(self):
        """Height and width of what is kept of each record."""
        crop, multiple, count = self._crop, self._multiple, len(self._indices)
        size = self._source.size
        if size is not None:
            return np.tile(window(size, crop, multiple).size, (count, 1))
        if crop:
            return np.tile(window((crop, crop), crop, multiple).size, (count, 1))
        windows = np.zeros((count, 2), np.int64)
        for row, i in enumerate(self._indices):
            # An unreadable record keeps 0 x 0: it is met again, and named, when it is read.
            with contextlib.suppress(Unreadable):
                shape = base.shape(self._source, int(i))
                windows[row] = window(shape, 0, multiple, self._source.name(int(i))).size
        return windows

    def run(self, names: dict[str, str], layers: int, batch_size: int) -> tuple[dict, list[str]]:
        """({"index", "labels", "masks" and features as arrays or Grids}, names of what is
        unreadable).

        names: {name of the features: kind of token}; layers: see `Network.read`. batch_size:
        images of a call.
        """
        done = np.zeros(len(self._indices), bool)
        labels: dict[int, int | None] = {}
        masked = 0
        skipped: list[int] = []

        def batches(add) -> Iterator[Batch]:
            plan = planned(self._windows, batch_size)
            for batch in feed(self._source, self._indices, self._cut, batch_size, plan=plan):
                add(len(batch.views) + len(batch.skipped))
                skipped.extend(batch.skipped)
                yield batch

        def read(images):
            return self._network.read(images, names, layers)

        with progress.counter(len(self._indices), "images") as add:
            for views, features in encoded(read, batches(add)):
                rows = []
                for (row, label, mask), _ in views:
                    rows.append(row)
                    labels[row] = label
                    if mask is not None:
                        masked += 1
                        self._put("masks", [row], mask[None])
                done[rows] = True
                for name, values in features.items():
                    self._put(name, rows, values)
        result = {name: self._ordered(array, done) for name, array in self._arrays.items()}
        result["index"] = self._indices[done]
        labelled = [labels[int(row)] for row in np.flatnonzero(done)]
        _all_or_none("mask", len(labelled) - masked, len(labelled), self._source)
        if _all_or_none("label", labelled.count(None), len(labelled), self._source):
            result["labels"] = np.asarray(labelled, np.int32)
        return result, [self._source.name(i) for i in skipped]

    def _cut(self, row, record):
        """What the network sees of a record, with (row, label, mask); see `feed`."""
        name = self._source.name(int(self._indices[row]))
        label, mask = record.get("label"), record.get("mask") if self._masks else None
        if label is not None and (label != int(label) or not -1 <= label < 2**31):
            raise InputError(f"{name} has the label {label}, which is not a class")
        check_range(record["image"], name)
        shape = record["image"].shape[:2]
        part = window(shape, self._crop, self._multiple, name)
        if part.size != tuple(self._windows[row]):
            raise InputError(
                f"{name} has {pixels(shape)} pixels, not the size that"
                f" {self._source} states; set data.size of the evaluation"
            )
        mask = mask if mask is None else cut(mask, part)
        yield View((row, label, mask), unit(cut(record["image"], part)))

    def _put(self, name, rows, values):
        """Puts values [n, ...] into the given rows of an array, which the first ones make."""
        if name not in self._arrays:
            self._arrays[name] = self._empty(name, values)
        array = self._arrays[name]
        if isinstance(array, Grids):
            for row, value in zip(rows, values):
                array[row][:] = value
        else:
            array[rows] = values

    def _empty(self, name, values):
        """Room for the values of all records, from those of some: as many for each record, or one
        per pixel (masks) or patch."""
        count = len(self._indices)
        if (values.ndim < 4 and name != "masks") or (self._windows == self._windows[0]).all():
            return self._allocate(name, (count, *values.shape[1:]), values.dtype)
        side = 1 if name == "masks" else self._multiple
        grids = self._windows // side
        size = int(grids.prod(axis=1).sum())
        return Grids(self._allocate(name, (size, *values.shape[3:]), values.dtype), grids)

    def _ordered(self, array, done):
        """The array without the rows of unreadable records."""
        if done.all():
            return array
        if not isinstance(array, Grids):
            return _without_gaps(array, done)
        of_row = np.repeat(done, array.shapes.prod(axis=1))
        return Grids(_without_gaps(array.rows, of_row), array.shapes[done])


def _without_gaps(array, done):
    """The rows that are done, moved together in place: a copy may not fit into memory."""
    count = int(done.sum())
    for new, old in enumerate(np.flatnonzero(done)):
        if new != old:
            array[new] = array[old]
    return array[:count]


def _all_or_none(name, missing, count, source):
    """Whether all records have such a value; InputError if only some have."""
    if 0 < missing < count:
        raise InputError(
            f"{missing} of {count} records of {source} have no {name}; give all of them one, or"
            " none"
        )
    return count > 0 and not missing
