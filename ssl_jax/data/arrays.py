"""Arrays in memory as a source."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import InputError
from ssl_jax.data.base import Source
from ssl_jax.data.lookup import checked

_MOST_CLASSES = 100_000  # evaluations have memory for the votes of each


class ArraySource(Source):
    """Images in memory: uint8 [N,H,W,C], or float32 [N,H,W,C] in [0,1] (checked when a record is
    used; NaN may be tested with it).
    """

    def __init__(
        self,
        images: ArrayLike,
        labels: ArrayLike | None = None,
        masks: ArrayLike | None = None,
        boxes: Sequence[ArrayLike] | None = None,
        box_labels: Sequence[ArrayLike] | None = None,
    ):
        """labels: int [N]. masks: uint8 [N,H,W]. boxes: N arrays [n,4] (y, x, height, width in
        pixels). box_labels: N int arrays [n]. Raises InputError for any other shape or dtype, or no
        image at all.
        """
        self._images = images = np.asarray(images)
        shape = images.shape
        fits = len(shape) == 4 and shape[0] and shape[-1]
        if not fits or images.dtype not in (np.uint8, np.float32):
            raise InputError(
                f"images must be uint8 or float32 [N,H,W,C] with N, C > 0, got {_described(images)}"
            )
        self.size, self.channels = (shape[1], shape[2]), shape[3]
        self._columns: dict[str, Any] = {}
        if labels is not None:
            self._columns["label"] = values = _shaped("labels", labels, shape[:1], np.integer)
            self.num_classes = _count("labels", values)
            if self.num_classes > _MOST_CLASSES:
                raise InputError(
                    f"labels must be numbers of classes from 0, got ids up to {values.max()};"
                    " number them by np.unique(labels, return_inverse=True)[1]"
                )
        if masks is not None:
            self._columns["mask"] = _shaped("masks", masks, shape[:3], np.uint8)
            self.has_masks = True
        self._take_boxes(boxes, box_labels)

    def _take_boxes(self, boxes, labels):
        """Checks and keeps them."""
        if boxes is None and labels is not None:
            raise InputError("box_labels need boxes")
        if boxes is None:
            return
        self.has_boxes = True
        boxes = [np.asarray(entry, np.float32).reshape(-1, 4) for entry in boxes]
        if len(boxes) != len(self):
            raise InputError(f"boxes must be one array for each of {len(self)} images")
        self._columns["boxes"] = boxes
        if labels is not None:
            labels = [np.asarray(entry, np.int32) for entry in labels]
            if list(map(len, labels)) != list(map(len, boxes)):
                raise InputError("box_labels must be one integer for each box")
            self.num_box_classes = _count("box_labels", np.concatenate([*labels, [0]]))
            self._columns["box_labels"] = labels

    def __len__(self):
        return len(self._images)

    def __getitem__(self, i):
        i = checked(i, len(self))
        record = {name: column[i] for name, column in self._columns.items()}
        if "label" in record:
            record["label"] = int(record["label"])
        return {"image": self._images[i], **record}

    def name(self, i: int) -> str:
        return f"array/{i}"

    def fingerprint(self, indices: Sequence[int] | np.ndarray) -> str:
        """A digest of these records."""
        digest = hashlib.sha256()
        for i in map(int, indices):
            for value in (self._images, *self._columns.values()):
                digest.update(np.ascontiguousarray(value[i]).tobytes())
        return digest.hexdigest()[:20]

    def __repr__(self):
        return (
            f"ArraySource({_described(self._images)}, classes={self.num_classes},"
            f" masks={self.has_masks}, boxes={self.has_boxes})"
        )


def _shaped(name, values, shape, dtype):
    """The values as an array. Raises InputError for another shape or type."""
    array = np.asarray(values)
    if array.shape != shape or not np.issubdtype(array.dtype, dtype):
        what = "integers" if dtype is np.integer else "uint8"
        raise InputError(f"{name} must be {what} {list(shape)}, got {_described(array)}")
    return array


def _count(name, values):
    """The number of classes of labels."""
    if values.min() < 0:
        raise InputError(f"{name} must not be negative, got {values.min()}")
    return int(values.max()) + 1


def _described(array):
    """Dtype and shape as text: "uint8 [2, 3]"."""
    return f"{array.dtype} {list(array.shape)}"
