"""Records of an object that is not of this package, such as a data set of torchvision."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ssl_jax.data import decode


def record(value: Any, channels: int) -> dict[str, Any]:
    """A record as in `data.source`, whose label may still be anything.

    Args:
      value: a dict with "image", a pair (image, label), or an image: a PIL image, or an array uint8
        or float [H, W, channels], or [H, W] for one and three channels.
    Raises:
      ValueError, TypeError, KeyError: another value.
    """
    if isinstance(value, Mapping):
        return {**value, "image": _pixels(value["image"], channels)}
    if _is_pair(value):
        image, label = value
        return {"image": _pixels(image, channels), "label": label}
    return {"image": _pixels(value, channels)}


def _is_pair(value):
    if isinstance(value, np.ndarray):
        return value.dtype == object
    is_image = hasattr(value, "__array__") or hasattr(value, "convert")
    if isinstance(value, tuple | list):
        return len(value) == 2
    return isinstance(value, Iterable) and not is_image and not isinstance(value, str | bytes)


def _pixels(image, channels):
    """An image of any kind as [H, W, C], uint8 or float32."""
    is_pillow = hasattr(image, "convert") and channels == 3
    if is_pillow:
        # Wide numbers of the range of bytes are clipped to bytes; others have their own range.
        wide = image.mode in ("I", "F") and 1 < image.getextrema()[1] <= 255
        image = image.convert("RGB") if wide else image
    pixels = decode.rgb(image) if is_pillow else np.asarray(image)
    if pixels.ndim == 2 and channels in (1, 3):
        pixels = np.repeat(pixels[..., None], channels, axis=2)
    if pixels.dtype.kind == "f":
        pixels = pixels.astype(np.float32, copy=False)
    fits = pixels.ndim == 3 and pixels.shape[-1] == channels
    if not fits or pixels.dtype not in (np.uint8, np.float32):
        raise ValueError(
            f"an image must be uint8 [H,W,{channels}], or float in [0, 1], not {pixels.dtype}"
            f" {list(pixels.shape)} (an attribute `channels` of the object sets another number)"
        )
    return pixels


def label(value: Any, has_classes: bool) -> int | None:
    """A label as int: -1 for a negative number and, in a set with classes, for None and NaN; None
    for what is no whole number."""
    number = _scalar(value)
    if value is None or (number is not None and np.isnan(number)):
        return -1 if has_classes else None
    whole = number is not None and float(number).is_integer()
    return max(-1, int(number)) if whole else None


def _scalar(value):
    """A number or a boolean as an array without axes; None for anything else."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # values of several shapes
        return None
    return array if array.ndim == 0 and array.dtype.kind in "iufb" else None


def unlabelled(targets: Any, count: int) -> Sequence[int]:
    """Indices of the records without a label, where an object of `count` records lists its labels
    as `targets`."""
    if not hasattr(targets, "__len__") or len(targets) != count:
        return ()
    return [i for i, target in enumerate(targets) if _is_none(target)]


def _is_none(target):
    """Whether this says that an image has no label; False for what is no number."""
    number = _scalar(target)
    return target is None or (number is not None and not number >= 0)
