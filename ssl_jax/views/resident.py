"""A set of small images, decoded into one array on each device, so that a batch holds only a few
numbers per record."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import base, lookup
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.values import check_range
from ssl_jax.views.workers import Ahead

_UNIT = 256  # records decoded at a time


class Resident(base.Wrapper):
    """The records of another source without their pixels, which are rows of `images`.

    images: uint8 or float32 [N, H, W, C], on all devices of a mesh. Records that cannot be
    read stay so.
    """

    def __init__(
        self, source: base.Source, images: jax.Array, labels: np.ndarray, bad: dict[int, str]
    ):
        super().__init__(source)
        self.images, self._labels, self._bad = images, labels, bad
        self.size = images.shape[1], images.shape[2]

    def __getitem__(self, i: int) -> dict[str, Any]:
        if i in self._bad:
            raise Unreadable(self.name(i), self._bad[i])
        label = self._labels[i]
        return {"row": i} | ({} if label < 0 else {"label": int(label)})

    def __repr__(self) -> str:
        return f"Resident({self._source!r})"

    def __getstate__(self):
        return {**self.__dict__, "images": None}  # worker processes only draw


def needed(source: base.Source) -> int:
    """Bytes that the images of a source take on each device. Raises InputError for images of
    different sizes."""
    if source.size is None:
        raise InputError(
            f"data.cache=device needs images of one size, which {source} does not promise; set"
            " data.size"
        )
    return len(source) * source.image_bytes(source.size)


def load(source: Any, place: jax.sharding.Sharding, workers: int = 0) -> Resident:
    """Decodes all images of a source, `workers` as of the loader, and puts them where `place` says:
    on each device. Raises InputError for images that are not of the source's type or size."""
    source = base.adopt(source)
    units = _Units(source)
    ahead = Ahead(units, 0, workers)
    images = _empty(source, len(source))
    labels, bad = np.empty(len(source), np.int64), {}
    try:
        for unit in range(len(units)):
            (part,) = ahead.take(1)
            rows = slice(unit * _UNIT, unit * _UNIT + len(part["label"]))
            images[rows], labels[rows] = part["image"], part["label"]
            for i in np.flatnonzero(part["bad"]).tolist():
                bad[rows.start + i] = base.why_unreadable(source, rows.start + i)
    finally:
        ahead.close()
    on_devices = jax.make_array_from_callback(images.shape, place, images.__getitem__)
    return Resident(source, on_devices, labels, bad)


class _Units(Sequence):
    """Images, labels (-1: none) and what cannot be read, of `_UNIT` records each."""

    def __init__(self, source):
        self._source = source

    def __len__(self):
        return math.ceil(len(self._source) / _UNIT)

    def __getitem__(self, unit):
        rows = range(unit * _UNIT, min((unit + 1) * _UNIT, len(self._source)))
        image = _empty(self._source, len(rows))
        label, bad = np.full(len(rows), -1, np.int64), np.zeros(len(rows), bool)
        for place, i in enumerate(rows):
            try:
                record = self._source[i]
            except Unreadable:
                bad[place] = True
                continue
            image[place] = _checked(record["image"], self._source, i)
            given = record.get("label")
            label[place] = -1 if given is None else given
        return dict(image=image, label=label, bad=bad)


def _empty(source, count):
    """Zeros for so many images."""
    dtype = np.float32 if source.floats else np.uint8
    return np.zeros((count, *source.size, source.channels), dtype)


def _checked(image, source, i):
    if image.dtype != (np.float32 if source.floats else np.uint8):
        raise InputError(
            f"data.cache=device keeps uint8 images; {source.name(i)} is {image.dtype}:"
            " data.cache=memory keeps others"
        )
    check_range(image, source.name(i))
    if image.shape[:2] != source.size:
        actual, expected = map(lookup.pixels, (image.shape, source.size))
        raise InputError(
            f"data.cache=device needs images of one size, but {source.name(i)} has {actual}"
            f" pixels, not {expected}; set data.size"
        )
    return image
