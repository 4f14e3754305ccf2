"""Random crops of an evaluation's training images, for heads that are trained on them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ssl_jax.data.loader import Loader
from ssl_jax.views.recipe import GroupRecipe, ViewRecipe

_GROUP = "crop"


class Part:
    """Some records of a source, in the given order."""

    def __init__(self, source: Any, indices: Sequence[int] | np.ndarray):
        self._source, self._indices = source, np.asarray(indices, np.int64)
        self.size, self.num_classes = source.size, source.num_classes
        self.has_masks = getattr(source, "has_masks", False)

    def __len__(self):
        return len(self._indices)

    def __getitem__(self, i):
        return self._source[int(self._indices[i])]

    def name(self, i: int) -> str:
        return self._source.name(int(self._indices[i]))

    def __repr__(self):
        return f"Part({self._source!r}, images={len(self)})"


def batches(
    source: Any,
    indices: Sequence[int] | np.ndarray,
    *,
    size: int,
    scale: tuple[float, float],
    batch_size: int,
    epochs: int,
    seed: int,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """RandomResizedCrop and flip of the given records, epoch after epoch in random order.

    Args:
      size: side of a crop, in pixels. scale: (least, largest) share of the image's area.
      batch_size: limited to the number of records; the last partial batch of an epoch is dropped.

    Yields:
      images [b, size, size, 3] float32 in [0, 1], and [b] int64, which of `indices` they are.
    """
    group = GroupRecipe(count=1, size=size, scale=scale, patch=1)
    part, batch_size = Part(source, indices), min(batch_size, len(indices))
    loader = Loader(
        part,
        ViewRecipe(((_GROUP, group),)),
        batch_size=batch_size,
        seed=seed,
        total_records=len(part) // batch_size * batch_size * epochs,
    )
    try:
        for batch in loader:
            images = batch[_GROUP].images[:, 0].astype(np.float32) / np.float32(255)
            yield images, batch["index"].astype(np.int64)
    finally:
        loader.close()
