"""Another source with its records resized and cached."""

from typing import Any

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import base, boxes, decode
from ssl_jax.data.values import check_range


class Prepared(base.Wrapper):
    """Another source, resized to a square and/or kept in RAM once decoded.

    size: 0 leaves images as they are; otherwise the short side is resized to `size` (antialiased
    bicubic, or bilinear) and the central square is taken; masks are resampled by nearest neighbour,
    boxes clipped at the border (so one may end up without area).
    cache: every process (so every worker) that reads a record keeps it: N * H * W * C bytes in
      the end, four times that of float32.
    """

    def __init__(self, source: Any, *, size: int = 0, cache: bool = False, bilinear: bool = False):
        super().__init__(source)
        self._side, self._bilinear = int(size), bilinear
        self._cache: dict[int, dict] | None = {} if cache else None
        if size:
            self.size = (self._side, self._side)

    def __getitem__(self, i):
        if self._cache is None:
            return self._read(i)
        record = self._cache.get(i)
        if record is None:  # two threads may decode the same record: same result, no lock needed
            record = self._cache[i] = self._read(i)
            for value in record.values():
                if isinstance(value, np.ndarray):
                    value.flags.writeable = False
        return record

    @property
    def unresized(self) -> base.Source:
        """See `Source.unresized`."""
        inner = self._source.unresized
        return inner if self._side or inner is not self._source else self

    def _read(self, i):
        record = self._source[i]
        if not self._side or record["image"].shape[:2] == self.size:
            return record
        if record["image"].dtype != np.uint8 and not self.floats:
            raise InputError(
                f"data.size={self._side}: {self.name(i)} is {record['image'].dtype}, and only uint8"
                " images are resized; give it as uint8, or in that size"
            )
        check_range(record["image"], self.name(i))  # resizing clips
        return _square(record, self._side, self._bilinear)

    def __getstate__(self):
        # A worker process fills a cache of its own.
        return {**self.__dict__, "_cache": None if self._cache is None else {}}

    def __repr__(self):
        size = f", size={self._side}" if self._side else ""
        cache = ", cache=True" if self._cache is not None else ""
        bilinear = ", bilinear=True" if self._bilinear else ""
        return f"Prepared({self._source!r}{size}{cache}{bilinear})"


def _square(record, side, bilinear):
    """A record with image, mask and boxes resized to [side, side]."""
    height, width = record["image"].shape[:2]
    record = {**record, "image": decode.resize_square(record["image"], side, bilinear)}
    if "mask" in record:
        record["mask"] = decode.resize_square(record["mask"], side)
    for name in boxes.PLACES:
        if name not in record:
            continue
        y, x, square = decode.central_square(height, width)
        corner = (record[name][:, :2] - (y, x)) * (side / square)
        opposite = corner + record[name][:, 2:] * (side / square)
        corner, opposite = np.clip(corner, 0, side), np.clip(opposite, 0, side)
        record[name] = np.concatenate([corner, opposite - corner], axis=1).astype(np.float32)
    return record
