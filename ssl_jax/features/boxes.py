"""Features of the patches of boxes (FLSL tables 5, 6, 9, 11-14).

The largest box of an image is divided into cells, 3 x 3 in the paper; the features of the patches
at their centres represent the image.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import InputError
from ssl_jax.data import decode
from ssl_jax.features import derived, windows
from ssl_jax.features.feed import View
from ssl_jax.runtime import distributed

_BELOW = 1e-3  # pixels


class Sight(NamedTuple):
    """How an image is resized and cropped for the network, and how its boxes are mapped."""

    patch: int  # of the network, in pixels
    resize: int = 0  # length of the shorter side, in pixels; 0 keeps the stored size
    crop: int = 0  # side of the central square, in pixels; 0 = the whole image, in whole patches
    boxes: str = "exact"  # or "script", see `follow`
    cells: int = 3  # number of cells along each side of a box


class Selected(NamedTuple):
    """Features at P points of one box in each of N images."""

    features: np.ndarray  # [N, P, d] float32
    labels: np.ndarray  # [N] int32
    # [N] int64, numbers of the records
    index: np.ndarray  # type: ignore[assignment]  # hides tuple.index
    points: np.ndarray  # [N, P, 2] float32, (y, x) in 0..1 of the image after resizing and cropping


def follow(
    boxes: ArrayLike,
    size: tuple[int, int],
    how: str = "exact",
    *,
    resize: int = 256,
    crop: int = 224,
) -> np.ndarray:
    """Maps boxes to an image whose shorter side is resized to `resize` and which is then cropped to
    the central square of `crop` pixels. Boxes are clipped at the border of the crop.

    boxes: [n, 4] (y, x, height, width) in pixels of the original image of `size` (height, width).
    how: "exact", or "script", as if the image were squeezed to a square (FLSL's script).
    Returns the mapped boxes, float64 [n, 4]; a box outside the crop has no area.
    """
    (y, x, side), shift = decode.central_square(*size), (resize - crop) // 2
    if how == "script":
        return _mapped(boxes, (resize / size[0], resize / size[1]), (shift, shift), (crop, crop))
    scale = resize / side
    return _mapped(boxes, (scale, scale), (shift + y * scale, shift + x * scale), (crop, crop))


def _mapped(boxes, scale, shift, window):
    """Multiplies boxes by `scale`, subtracts `shift` (each (y, x)) and clips them to 0..window.

    A corner beyond the window is moved just inside it, as in FLSL's script, so that the centre of a
    box around the whole image belongs to the patch above and to the left of it."""
    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    corner = boxes[:, :2] * scale - shift
    opposite = corner + boxes[:, 2:] * scale
    last = np.asarray(window) - _BELOW
    corner, opposite = (np.where(x > window, last, np.maximum(x, 0)) for x in (corner, opposite))
    return np.concatenate([corner, opposite - corner], axis=1)


def centres(box: ArrayLike, cells: int = 3) -> np.ndarray:
    """Centres (y, x) of the cells x cells grid over a box (y, x, height, width): float64
    [cells**2, 2], row by row."""
    y, x, height, width = np.asarray(box, np.float64)
    part = (np.arange(cells) + 0.5) / cells
    rows, columns = np.meshgrid(y + part * height, x + part * width, indexing="ij")
    return np.stack([rows.ravel(), columns.ravel()], axis=1)


def patches_at(points: ArrayLike, patch: int, grid: tuple[int, int]) -> np.ndarray:
    """Index of the patch that contains each point (y, x): int64 [n] into the h * w patches. Points
    on or beyond the last border belong to the last patch."""
    places = np.floor(np.asarray(points) / patch).astype(np.int64)
    rows, columns = np.clip(places, 0, np.asarray(grid) - 1).T
    return rows * grid[1] + columns


def seen(record: dict, sight: Sight, name: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Resizes and crops the image of a record and maps its boxes: (boxes [n, 4], image).

    Raises InputError for boxes of another shape, or an image smaller than the crop."""
    image, stored = record["image"], np.asarray(record.get("boxes", ()), np.float64)
    if stored.size % 4 or not np.isfinite(stored).all() or (stored.reshape(-1, 4)[:, 2:] < 0).any():
        raise InputError(
            f"{name} has the boxes {stored.tolist()}; expected [n, 4]: y, x, height, width"
        )
    size = image.shape[:2]
    if sight.resize:
        image = decode.resize_square(image, sight.resize)
    part = windows.window(image.shape, sight.crop, sight.patch, name)
    if sight.resize:
        mapped = follow(stored, size, sight.boxes, resize=sight.resize, crop=part.height)
    else:
        mapped = _mapped(stored, (1, 1), (part.top, part.left), part.size)
    return mapped, windows.cut(image, part)


def _label(record, box, name):
    """The label of a record or, where it has none, the label of the given box."""
    if record.get("label") is not None:
        return int(record["label"])
    of_boxes = record.get("box_labels", record.get("labels"))
    if of_boxes is None:
        raise InputError(
            f"{name} has boxes but neither a label nor labels of its boxes; the box-aligned k-NN"
            " needs one of them"
        )
    if len(of_boxes) <= box:
        raise InputError(f"{name} has {len(of_boxes)} box labels, but its mask shows a box {box}")
    return int(of_boxes[box])


def select(
    network: Any,
    source: Any,
    indices: ArrayLike,
    sight: Sight,
    batch_size: int,
    shared: bool = True,
) -> Selected:
    """Features of the box with the largest area after resizing and cropping, for each image that
    has a box. Records that cannot be read are left out.

    source: records of the stored size, see `Prepared.unresized`. shared: see `features.extract`.

    Raises InputError if no record has a box, or if neither a record nor its boxes have a label.
    """
    records = distributed.share(np.asarray(indices, np.int64), shared)

    def cut(row, record):
        name = source.name(int(records[row]))
        boxes, image = seen(record, sight, name)
        areas = boxes[:, 2] * boxes[:, 3]
        if len(areas) and areas.max():
            largest = int(areas.argmax())
            points = centres(boxes[largest], sight.cells)
            grid = image.shape[0] // sight.patch, image.shape[1] // sight.patch
            places = patches_at(points, sight.patch, grid)
            label = _label(record, largest, name)
            yield View((row, label, points / image.shape[:2], places), windows.unit(image))

    rows = {}
    stream = derived.encoded(network, source, records, cut, batch_size=batch_size)
    for (row, label, points, places), patches in stream:
        rows[row] = patches.reshape(-1, patches.shape[-1])[places], label, records[row], points
    types = np.float32, np.int32, np.int64, np.float32
    in_order = [rows[row] for row in sorted(rows)]
    columns = [np.array([x[i] for x in in_order], kind) for i, kind in enumerate(types)]
    selected = Selected(*derived.gather_rows(columns, shared))
    if not len(selected.index):
        raise InputError(
            f"no image of {source} has a visible box; use a set with boxes, or leave the"
            " box-aligned k-NN out of evals.tasks"
        )
    return selected
