"""Mean, standard deviation and range of each channel of a data set."""

from typing import Any, NamedTuple

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.features.feed import ahead
from ssl_jax.features.monitored import Monitored, subset
from ssl_jax.runtime import progress

_BATCH = 16  # images read at once


class Statistics(NamedTuple):
    """Statistics of the pixels of some images; mean, squares, low and high are float64 [C].

    pixels, images: their numbers. squares: sum of squared distances from the mean. low, high:
    smallest and largest value. types: NumPy's names of the images' types.
    """

    pixels: int
    mean: np.ndarray
    squares: np.ndarray
    low: np.ndarray
    high: np.ndarray
    types: frozenset[str]
    images: int = 1

    @property
    def std(self) -> np.ndarray:
        """Standard deviation of the pixels."""
        return np.sqrt(self.squares / self.pixels)


def statistics(source: Any, count: int = 0, seed: int = 0) -> Statistics:
    """Statistics of `count` randomly drawn images of a source; 0 = all. Values are as the source
    returns them, every pixel has the same weight, and few images are in memory at a time.

    Raises InputError if no image is readable, or more are unreadable than training allows.
    """
    monitored, total = Monitored(source, count), None

    def read(i):
        try:
            return _of_image(monitored[int(i)]["image"])
        except Unreadable:
            return None

    records = subset(len(monitored), count, seed)
    batches = (records[i : i + _BATCH] for i in range(0, len(records), _BATCH))
    with progress.counter(len(records), "images") as add:
        for results in ahead(read, batches, 1):
            for of_image in (result for result in results if result is not None):
                total = of_image if total is None else _joined(total, of_image)
            add(len(results))
    if total is None:
        raise InputError(f"no readable image in {source}")
    return total


def _of_image(image: np.ndarray) -> Statistics:
    pixels = image.reshape(-1, image.shape[-1]).astype(np.float64)
    mean, low, high = pixels.mean(axis=0), pixels.min(axis=0), pixels.max(axis=0)
    squares = np.square(pixels - mean).sum(axis=0)
    return Statistics(len(pixels), mean, squares, low, high, frozenset([image.dtype.name]))


def _joined(a: Statistics, b: Statistics) -> Statistics:
    """Merges two, without the cancellation of sums of squares (Chan et al. 1979, eq. 2.1)."""
    pixels, apart = a.pixels + b.pixels, b.mean - a.mean
    return Statistics(
        pixels,
        a.mean + apart * (b.pixels / pixels),
        a.squares + b.squares + np.square(apart) * (a.pixels * b.pixels / pixels),
        np.minimum(a.low, b.low),
        np.maximum(a.high, b.high),
        a.types | b.types,
        a.images + b.images,
    )
