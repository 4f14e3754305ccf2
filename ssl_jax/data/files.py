"""Images in files, with what other files say of them: masks and boxes."""

import copy
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ssl_jax.data import classes
from ssl_jax.data.lookup import checked
from ssl_jax.data.stored import ReadsBoxes, Stored


class Files(Stored):
    """Image files, each with a label, a mask file and boxes as far as they are given."""

    def __init__(
        self,
        root: str | os.PathLike,
        paths: Sequence[str],
        *,
        kind: str = "files",
        labels: np.ndarray | None = None,
        class_names: Sequence[str] | None = None,
        masks: Sequence[str | None] | None = None,
        table: np.ndarray | None = None,
        mask_names: Sequence[str] | None = None,
        boxes: ReadsBoxes | None = None,
        box_names: Sequence[str] | None = None,
        sequences: Mapping[str, range] | None = None,
    ):
        """
        Args:
          root: folder. paths: of the images, below it.
          kind: what the set is called in messages.
          labels: int [N], -1 for an image without one. class_names: of the labels.
          masks: paths of the mask files; None for an image without one.
          table: see `classes.table`; None: values are classes.
          mask_names, box_names: of the classes. boxes: reads the boxes of an image.
          sequences: name -> range of records, all records in this order; they know their
            "sequence" and their "frame" in it.

        Raises:
          InputError: the first mask is none, has another size than its image, or values that are no
            class.
        """
        self._root, self._paths, self._kind = str(root), tuple(paths), kind
        self._labels, self.class_names = labels, class_names
        self.num_classes = len(class_names) if class_names else None
        self.unlabelled = () if labels is None else np.flatnonzero(labels < 0).tolist()
        self._masks, self.has_masks, self.mask_names = masks, masks is not None, mask_names
        self._table = classes.table() if table is None else table
        self._boxes, self.has_boxes, self.box_names = boxes, boxes is not None, box_names
        self.num_box_classes = len(box_names) if box_names else None
        self.sequences = sequences
        videos = (sequences or {}).items()
        self._frames = [(name, frame) for name, rows in videos for frame in range(len(rows))]
        self._told = [] if masks is None else [classes.told(self._table, *map(str, masks))]
        self._check_first_mask()

    def images_alone(self) -> "Files":
        """The same images and labels without masks and boxes."""
        other = copy.copy(self)
        other._masks = other._boxes = other.mask_names = other.box_names = None
        other.has_masks = other.has_boxes = False
        other.num_box_classes, other._told = None, []
        return other

    def __len__(self):
        return len(self._paths)

    def __getitem__(self, i: int) -> dict[str, Any]:
        record = super().__getitem__(i)
        if self._frames:
            record["sequence"], record["frame"] = self._frames[i]
        return record

    def _read(self, i, part):
        return self.name(i) if part == "image" else self._masks[i]

    def name(self, i: int) -> str:
        return os.path.join(self._root, self._paths[checked(i, len(self))])

    def list_names(self) -> Sequence[str]:
        """What `data.list` may name: the relative path of each image."""
        return self._paths

    def __repr__(self):
        known = [f"classes={self.num_classes}", *self._told, *["boxes=True"] * self.has_boxes]
        return f"{self._kind}({self._root!r}, images={len(self)}, {', '.join(known)})"
