"""Another source, its images reduced to sides that patches divide."""

from typing import Any

import numpy as np

from ssl_jax.data import base, boxes, decode


class Reduced(base.Wrapper):
    """Images brought down to the next height and width that are multiples of `multiple` (at least
    one), and masks and boxes with them: antialiased bicubic, nearest label; CrIBo's dense
    retrieval, appendix on evaluation."""

    def __init__(self, source: Any, multiple: int):
        super().__init__(source)
        self._multiple = multiple
        if self.size is not None:
            self.size = self._fitted(self.size)

    def __getitem__(self, i):
        record = self._source[i]
        old = record["image"].shape[:2]
        new = self._fitted(old)
        if new == old:
            return record
        record = {**record, "image": decode.resize(record["image"], new)}
        if "mask" in record:
            record["mask"] = decode.resize(record["mask"], new)
        for name in boxes.PLACES:
            if name in record:
                record[name] = record[name] * np.tile(np.divide(new, old, dtype=np.float32), 2)
        return record

    def shape(self, i: int) -> tuple[int, int]:
        """(H, W) of image i."""
        return self.size or self._fitted(self._source.shape(i))

    def _fitted(self, size):
        height, width = (max(1, side // self._multiple) * self._multiple for side in size)
        return height, width

    def __repr__(self):
        return f"Reduced({self._source!r}, {self._multiple})"
