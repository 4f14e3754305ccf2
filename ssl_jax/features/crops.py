"""Random crops of an evaluation's training images, on which heads are trained."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data.subset import Subset
from ssl_jax.features.network import Network, on_all_devices
from ssl_jax.features.windows import unit
from ssl_jax.views import boxes, crops
from ssl_jax.views.loader import Loader
from ssl_jax.views.recipe import GroupRecipe, ViewRecipe

_GROUP = "crop"


def check(name: str, scale: Sequence[float]) -> None:
    """Raises InputError if the crop_scale of evaluation `name` is neither a range nor ()."""
    scale = tuple(scale)
    if len(scale) not in (0, 2) or tuple(sorted(scale)) != scale:
        raise InputError(f"{name}.crop_scale is {scale}; use (least, largest), or () for none")


def drawn(image: np.ndarray, size: int, scale: Sequence[float], seed: Sequence[int]) -> np.ndarray:
    """A RandomResizedCrop of an image, flipped with probability 1/2: float32 [size, size, C] in
    [0, 1]. scale: see `batches`. seed: determines crop and flip."""
    rng = np.random.default_rng(list(seed))
    box = boxes.random_resized_crop(rng, *image.shape[:2], scale=(scale[0], scale[1]))
    return unit(crops.crop_host(image, box, size, bool(rng.random() < 0.5)))


def batches(
    source: Any,
    indices: Sequence[int] | np.ndarray,
    *,
    size: int,
    scale: tuple[float, float],
    batch_size: int,
    epochs: int,
    seed: int,
    bilinear: bool = False,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of RandomResizedCrop and flip of records, shuffled in each epoch.

    Args:
      indices: numbers of the records.
      size: side of a crop, in pixels. scale: (least, largest) share of the image's area.
      batch_size: limited to the number of records; the last partial batch of an epoch is dropped.
      bilinear: whether crops are resampled bilinearly instead of bicubically.

    Yields:
      images [b, size, size, 3] float32 in [0, 1], and their places in `indices`, [b] int64.
    """
    group = GroupRecipe(count=1, size=size, scale=scale, patch=1, bilinear=bilinear)
    part, batch_size = Subset(source, indices), min(batch_size, len(indices))
    loader = Loader(
        part,
        ViewRecipe(((_GROUP, group),)),
        batch_size=batch_size,
        seed=seed,
        total_records=len(part) // batch_size * batch_size * epochs,
    )
    try:
        for batch in loader:
            yield unit(batch[_GROUP].images[:, 0]), batch["index"].astype(np.int64)
    finally:
        loader.close()


def stream(
    network: Network, source: Any, records: np.ndarray, *, tokens: str, layers: int, **how: Any
) -> Callable[[np.ndarray], Iterator[tuple[jax.Array, np.ndarray]]]:
    """A function from places in `records`, [k], to batches of crops of these records: (features
    [b, d], indices [b] into the k places).

    tokens, layers: see `Network.read`. how: arguments of `batches`.
    """
    spread = on_all_devices(network)

    def features_of(rows):
        for images, which in batches(source, records[rows], **how):
            yield spread.read(images, {tokens: tokens}, layers)[tokens], which

    return features_of
