"""Inputs of a detector: images and boxes, flipped, cropped, resized and put on a canvas."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ssl_jax.config import field

_LEAST = 1e-3  # pixels; boxes of less height or width are left out


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of training views, see `drawn`."""

    sizes: tuple[int, ...] = field(
        (256, 288, 320),
        "lengths of the shorter side, of which one is drawn for each training image",
        "pixels",
        above=0,
    )
    longest: int = field(512, "largest length of the longer side of an image", "pixels", above=0)
    flip: float = field(0.5, "share of training images that are mirrored", least=0, most=1)
    crop_prob: float = field(0.5, "share of training images that are cropped", least=0, most=1)
    crop_from: tuple[int, ...] = field(
        (256, 320, 384),
        "lengths of the shorter side before the crop, of which one is drawn",
        "pixels",
        above=0,
    )
    crop_sides: tuple[int, ...] = field(
        (192, 320), "(least, largest) side of the crop", "pixels", above=0, length=2, ordered=True
    )


class View(NamedTuple):
    """An image and its boxes. image: float32 [h, w, 3] in [0, 1]. boxes: float32 [n, 4] (row and
    column of the upper left corner, height, width) in pixels. labels: int32 [n]."""

    image: np.ndarray
    boxes: np.ndarray
    labels: np.ndarray


class Batch(NamedTuple):
    """A batch of views, in NumPy or, in the training step, JAX arrays. image: float32 [B, H, W, 3].
    boxes: float32 [B, t, 4] (centre row, centre column, height, width) as shares of H and W.
    labels: int32 [B, t]. present: bool [B, t], False for padding."""

    image: Any
    boxes: Any
    labels: Any
    present: Any


def fitted(height: int, width: int, short: int, longest: int) -> tuple[int, int]:
    """(height, width) resized to a shorter side of `short`, or less to keep the longer side at most
    `longest`."""
    scale = min(short / min(height, width), longest / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def plain(record: dict[str, Any], short: int, longest: int) -> View:
    """A resized record, for test images."""
    height, width = record["image"].shape[:2]
    window = (0.0, 0.0, float(height), float(width))
    return cut(record, window, fitted(height, width, short, longest))


def drawn(record: dict[str, Any], rng: np.random.Generator, settings: Settings) -> View:
    """A record flipped, cropped and resized as in DETR, for training."""
    height, width = record["image"].shape[:2]
    window = (0.0, 0.0, float(height), float(width))
    if rng.random() < settings.crop_prob:
        scale = int(rng.choice(settings.crop_from)) / min(height, width)
        low, high = settings.crop_sides
        sides = []
        for side in (height * scale, width * scale):
            least, most = min(low, side), min(high, side)
            sides.append((side, rng.uniform(least, most)))
        starts = [rng.uniform(0, side - length) for side, length in sides]
        window = tuple(x / scale for x in (*starts, *(length for _, length in sides)))
    short = int(rng.choice(settings.sizes))
    size = fitted(round(window[2]), round(window[3]), short, settings.longest)
    view = cut(record, window, size)
    return mirrored(view) if rng.random() < settings.flip else view


def cut(
    record: dict[str, Any], window: tuple[float, float, float, float], size: tuple[int, int]
) -> View:
    """Crops a record to the window (row, column, height, width) and resizes it to `size` (height,
    width) by antialiased linear interpolation. Boxes are clipped, and those outside left out."""
    y, x, height, width = window
    image = np.asarray(record["image"])
    if image.dtype != np.uint8:
        image = np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)
    part = Image.fromarray(image).resize(
        size[::-1],
        Image.Resampling.BILINEAR,
        box=(x, y, min(x + width, image.shape[1]), min(y + height, image.shape[0])),
    )
    boxes = np.asarray(record["boxes"], np.float64).reshape(-1, 4)
    labels = np.asarray(record.get("box_labels", np.zeros(len(boxes))), np.int32)
    scale = np.array([size[0] / height, size[1] / width])
    low = np.clip((boxes[:, :2] - (y, x)) * scale, 0, size)
    high = np.clip((boxes[:, :2] + boxes[:, 2:] - (y, x)) * scale, 0, size)
    boxes = np.concatenate([low, high - low], axis=1).astype(np.float32)
    inside = visible(boxes)
    boxes = boxes[inside]
    return View(np.asarray(part, np.float32) / np.float32(255), boxes, labels[inside])


def visible(boxes: np.ndarray) -> np.ndarray:
    """Which boxes [n, 4] (y, x, height, width) have an area, [n] bool; those outside a crop were
    clipped to none."""
    return np.all(boxes[:, 2:] > _LEAST, axis=1)


def mirrored(view: View) -> View:
    """Flips a view horizontally."""
    boxes = view.boxes.copy()
    boxes[:, 1] = np.maximum(view.image.shape[1] - boxes[:, 1] - boxes[:, 3], 0)
    return View(view.image[:, ::-1], boxes, view.labels)


def batch(views: Sequence[View], *, most: int, multiple: int, fill: Sequence[float]) -> Batch:
    """Puts each view in the upper left corner of a canvas filled with the colour `fill`. Canvases
    have the same sides, multiples of `multiple`. most: largest number of boxes per view."""
    height, width = (
        -(-max(view.image.shape[axis] for view in views) // multiple) * multiple for axis in (0, 1)
    )
    count = len(views)
    result = Batch(
        np.tile(np.asarray(fill, np.float32), (count, height, width, 1)),
        np.full((count, most, 4), 0.5, np.float32),
        np.zeros((count, most), np.int32),
        np.zeros((count, most), bool),
    )
    for i, view in enumerate(views):
        h, w = view.image.shape[:2]
        result.image[i, :h, :w] = view.image
        boxes, n = view.boxes[:most], min(most, len(view.boxes))
        centers = np.concatenate([boxes[:, :2] + boxes[:, 2:] / 2, boxes[:, 2:]], axis=1)
        result.boxes[i, :n] = centers / np.array([height, width, height, width])
        result.labels[i, :n], result.present[i, :n] = view.labels[:most], True
    return result
