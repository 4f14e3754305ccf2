"""Records of an object that is not of this package, such as a data set of torchvision."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.data import decode


def record(value: Any, channels: int) -> dict[str, Any]:
    """A record as in `data.source`, whose label may still be anything.

    Args:
      value: a dict with "image", a pair (image, label), or an image: a PIL image, or an array uint8
        or float32 [H, W, channels], or [H, W] for one and three channels.
    Raises:
      ValueError, TypeError, KeyError: another value.
    """
    if isinstance(value, Mapping):
        return {**value, "image": _pixels(value["image"], channels)}
    if isinstance(value, tuple | list) and len(value) == 2:
        return {"image": _pixels(value[0], channels), "label": value[1]}
    return {"image": _pixels(value, channels)}


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
    fits = pixels.ndim == 3 and pixels.shape[-1] == channels
    if not fits or pixels.dtype not in (np.uint8, np.float32):
        raise ValueError(
            f"an image must be uint8 [H,W,{channels}], or float32 in [0, 1], not {pixels.dtype}"
            f" {list(pixels.shape)}"
        )
    return pixels


def label(value: Any, classes: int | None, name: str) -> int | None:
    """The label of the record of that name as int, -1 for none; None if the number of classes is
    unknown and it is no number. Raises InputError for what is no number of a class."""
    number = np.asarray(-1 if value is None and classes is not None else value)
    whole = number.ndim == 0 and number.dtype.kind in "iufb" and float(number).is_integer()
    if classes is None:
        return int(number) if whole else None
    if not whole or number >= classes:
        raise InputError(
            f"{name} has the label {value!r}; it must be a whole number from 0 to {classes - 1}, or"
            " None"
        )
    return max(-1, int(number))


def unlabelled(targets: Any, count: int) -> Sequence[int]:
    """Indices of the records without a label, where an object of `count` records lists its labels
    as `targets`."""
    if not hasattr(targets, "__len__") or len(targets) != count:
        return ()
    return [i for i, target in enumerate(targets) if _is_none(target)]


def _is_none(target):
    """Whether this says that an image has no label; False for what is no number."""
    if target is None:
        return True
    value = np.asarray(target)
    return bool(value.ndim == 0 and value.dtype.kind in "if" and not value >= 0)


def described(error: Exception) -> str:
    """What an error of somebody else's code says, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
