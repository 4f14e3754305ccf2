"""Arrays in memory as a source."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import InputError
from ssl_jax.data.base import Source
from ssl_jax.data.lookup import checked

_MOST_CLASSES = 100_000  # evaluations have memory for the votes of each


class ArraySource(Source):
    """Images in memory: uint8 [N,H,W,3], or float32 [N,H,W,3] in [0,1] (checked when a record is
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
        self._images = np.asarray(images)
        self._labels = None if labels is None else np.asarray(labels)
        self._masks = None if masks is None else np.asarray(masks)
        shape = self._images.shape
        if (
            len(shape) != 4
            or shape[-1] != 3
            or not shape[0]
            or self._images.dtype not in (np.uint8, np.float32)
        ):
            raise InputError(
                "images must be uint8 or float32 [N,H,W,3] with N > 0, got"
                f" {_described(self._images)}"
            )
        if self._labels is not None and (
            self._labels.shape != shape[:1] or self._labels.dtype.kind not in "iu"
        ):
            raise InputError(
                f"labels must be integers [{shape[0]}], got {_described(self._labels)}"
            )
        if self._labels is not None and self._labels.min() < 0:
            raise InputError(f"labels must not be negative, got {self._labels.min()}")
        if self._labels is not None and self._labels.max() >= _MOST_CLASSES:
            raise InputError(
                f"labels must be numbers of classes from 0, got ids up to {self._labels.max()};"
                " number them by np.unique(labels, return_inverse=True)[1]"
            )
        if self._masks is not None and (
            self._masks.shape != shape[:3] or self._masks.dtype != np.uint8
        ):
            raise InputError(
                f"masks must be uint8 {list(shape[:3])}, got {_described(self._masks)}"
            )
        self.size = (shape[1], shape[2])
        self.num_classes = None if self._labels is None else int(self._labels.max()) + 1
        self.has_masks = masks is not None
        self._take_boxes(boxes, box_labels)

    def _take_boxes(self, boxes, labels):
        """Checks and keeps them."""
        self._boxes = self._box_labels = None
        if boxes is None and labels is not None:
            raise InputError("box_labels need boxes")
        if boxes is None:
            return
        self._boxes = [np.asarray(entry, np.float32).reshape(-1, 4) for entry in boxes]
        self.has_boxes = True
        if len(self._boxes) != len(self):
            raise InputError(f"boxes must be one array for each of {len(self)} images")
        if labels is None:
            return
        self._box_labels = [np.asarray(entry, np.int32) for entry in labels]
        if [len(entry) for entry in self._box_labels] != [len(entry) for entry in self._boxes]:
            raise InputError("box_labels must be one integer for each box")
        every = np.concatenate([*self._box_labels, np.zeros(1, np.int32)])
        if every.min() < 0:
            raise InputError(f"box_labels must not be negative, got {every.min()}")
        self.num_box_classes = int(every.max()) + 1

    def __len__(self):
        return len(self._images)

    def __getitem__(self, i):
        i = checked(i, len(self))
        record = {"image": self._images[i]}
        if self._labels is not None:
            record["label"] = int(self._labels[i])
        if self._masks is not None:
            record["mask"] = self._masks[i]
        if self._boxes is not None:
            record["boxes"] = self._boxes[i]
        if self._box_labels is not None:
            record["box_labels"] = self._box_labels[i]
        return record

    def name(self, i: int) -> str:
        return f"array/{i}"

    def __repr__(self):
        return (
            f"ArraySource({_described(self._images)}, classes={self.num_classes},"
            f" masks={self.has_masks}, boxes={self.has_boxes})"
        )


def _described(array):
    """Dtype and shape as text: "uint8 [2, 3]"."""
    return f"{array.dtype} {list(array.shape)}"
