"""Features of the frames of a video."""

from collections.abc import Iterator, Mapping
from typing import Any

import cv2
import numpy as np

from ssl_jax.config import InputError
from ssl_jax.features import derived, windows
from ssl_jax.features.feed import View


def first(videos: Mapping[str, range], count: int = 0) -> dict[str, range]:
    """The first videos of {name: records} that have at most `count` frames in total, but at least
    one video; 0 = all.

    Raises InputError for a video of fewer than three frames.
    """
    result: dict[str, range] = {}
    for name, records in videos.items():
        total = sum(map(len, result.values())) + len(records)
        if count and result and total > count:
            break
        if len(records) < 3:
            raise InputError(
                f"the video {name} has {len(records)} frames; it needs 3: the first is given"
                " and the last not scored"
            )
        result[name] = records
    return result


def resized(size: tuple[int, int], *, short: int, multiple: int, patch: int) -> tuple[int, int]:
    """(height, width) to which frames of `size` are resized for the network.

    The shorter side becomes `short`, the longer one keeps the aspect ratio and is rounded down to a
    multiple of `multiple`; then both are rounded down to multiples of the patch. short=0: only the
    last step.
    """
    height, width = size
    if short and height > width:
        height, width = short * height // width // multiple * multiple, short
    elif short:
        height, width = short, short * width // height // multiple * multiple
    return windows.floored((height, width), patch)


def encoded(
    network: Any,
    source: Any,
    records: range,
    *,
    name: str,
    short: int,
    multiple: int,
    patch: int,
    batch_size: int,
) -> Iterator[tuple[tuple[np.ndarray, tuple[int, int]], np.ndarray]]:
    """Yields ((mask [H, W] uint8, (height, width) after resizing), patches [h, w, d]) of each frame
    of the video `name`. cv2 resizes the frames bilinearly to the size given by `resized`.

    Raises InputError for a frame that cannot be read or has no mask.
    """

    def cut(row, record):
        image, mask = record["image"], record.get("mask")
        if mask is None:
            lacking = source.name(records[row])
            raise InputError(f"{lacking} has no mask; davis needs one for each frame")
        size = resized(image.shape[:2], short=short, multiple=multiple, patch=patch)
        yield View((mask, size), windows.unit(cv2.resize(image, size[::-1])))

    needed = derived.Needed(source, f"cannot follow the video {name}")
    size = min(batch_size, len(records))
    return derived.encoded(network, needed, records, cut, batch_size=size)
