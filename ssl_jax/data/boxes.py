"""Boxes of objects from annotation files: XML by image (VOC, ILSVRC), COCO's JSON."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import InputError, reading, reason
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.orientation import SIDEWAYS


class Boxes(NamedTuple):
    """The objects of an image."""

    boxes: np.ndarray  # [n,4] float32: y, x, height, width in pixels
    labels: np.ndarray | None  # [n] int32, None where boxes have no classes
    crowd: np.ndarray  # [n] bool: a region of many objects, not one

    def record(self) -> dict[str, np.ndarray]:
        """As a record has them: "boxes" and "box_labels" of single objects, and where there are
        crowds "crowd_boxes" and "crowd_labels"."""

        def of(rows, *names):
            parts = zip(names, (self.boxes, self.labels))
            return {name: values[rows] for name, values in parts if values is not None}

        single = of(~self.crowd, "boxes", "box_labels")
        if not self.crowd.any():
            return single
        return single | of(self.crowd, "crowd_boxes", "crowd_labels")


PLACES = ("boxes", "crowd_boxes")  # of a record, which move with its image
# EXIF orientation -> which coordinates then count from the other end, and whether they swap ("s").
_TURNS = dict(zip(range(1, 9), ("", "x", "yx", "y", "s", "ys", "yxs", "xs")))


def from_corners(
    corners: ArrayLike,
    labels: ArrayLike | None,
    shape: tuple[int, int],
    turn: int = 1,
    stated: tuple[float, float] | None = None,
    crowd: ArrayLike | None = None,
) -> Boxes:
    """Boxes from their corners, clipped at the border of the image; boxes without area are left
    out.

    Coordinates refer to the stored pixels and are rotated with the image, unless the `stated` size
    is already in the orientation of the upright image.

    Args:
      corners: [n,4] or flat, (top, left, bottom, right) in an image of the size `stated`.
      labels: [n] int or None.
      shape: (H, W) of the image, upright. turn: its EXIF orientation.
      stated: (height, width) of the coordinates; None: that of the stored pixels. crowd: [n] bool;
        None: no crowds.

    Raises:
      ValueError: coordinates that are not finite.
    """
    stored = shape[::-1] if turn in SIDEWAYS else shape
    height, width = stated or stored
    if turn in SIDEWAYS and (height - width) * (shape[0] - shape[1]) > 0:
        stored, turn = shape, 1
    size = np.asarray(stored, np.float64)
    pairs = np.asarray(corners, np.float64).reshape(-1, 2, 2) * (size / (height, width))
    if not np.isfinite(pairs).all():
        raise ValueError("coordinates of boxes must be finite numbers")
    pairs = np.where(["y" in _TURNS[turn], "x" in _TURNS[turn]], size - pairs[:, ::-1], pairs)
    pairs = pairs[..., ::-1] if "s" in _TURNS[turn] else pairs
    pairs = np.clip(pairs, 0, np.asarray(shape, np.float64))
    extent = pairs[:, 1] - pairs[:, 0]
    inside = np.all(extent > 0, axis=1)
    boxes = np.concatenate([pairs[:, 0], extent], axis=1)[inside].astype(np.float32)
    none = np.zeros(len(extent), bool)
    many = none if crowd is None else np.asarray(crowd, bool).reshape(len(extent))
    kept = None if labels is None else np.asarray(labels, np.int32).reshape(-1)[inside]
    return Boxes(boxes, kept, many[inside])


class XmlBoxes:
    """An XML file for each image, as of VOC and ILSVRC; an image without one has no box.

    Files are read with the images. Coordinates are scaled where the file states another size than
    the image has, which occurs in ILSVRC.
    """

    def __init__(self, paths: Sequence[str | None], names: Sequence[str], first_pixel: int = 0):
        """
        Args:
          paths: of the files, None for images without one. names: of the classes.
          first_pixel: 0: coordinates are those of a box's corners. 1: rows and columns count from
            1, and the last ones belong to the box (VOC).
        """
        self._paths, self._first = paths, first_pixel
        self._number = {name: i for i, name in enumerate(names)}

    def read(self, i: int, shape: tuple[int, int], turn: int = 1) -> Boxes:
        """Boxes of image i of that shape (H, W) and EXIF orientation. Raises Unreadable for a
        broken file or a class without a number."""
        path = self._paths[i]
        if path is None:
            return from_corners((), (), shape)
        height, width, objects = parse_xml(path)
        corners, labels = [], []
        for name, (top, left, bottom, right) in objects:
            if name not in self._number:
                raise Unreadable(path, f'class "{name}" of a box is not in data.class_names')
            labels.append(self._number[name])
            corners.append((top - self._first, left - self._first, bottom, right))
        stated = (height, width) if height > 0 and width > 0 else None
        try:
            return from_corners(corners, labels, shape, turn, stated)
        except ValueError as error:
            raise Unreadable(path, str(error)) from error


def parse_xml(path: str) -> tuple[float, float, list[tuple[str, tuple[float, ...]]]]:
    """(height, width, [(class, (ymin, xmin, ymax, xmax))]) of an annotation file; height and width
    are 0 if it does not state them. Raises Unreadable."""
    try:
        root = ElementTree.fromstring(reading.read_bytes(path, _LARGEST))
        objects = [
            (
                (entry.findtext("name") or "").strip(),
                tuple(float(entry.findtext(f"bndbox/{side}", "")) for side in _SIDES),
            )
            for entry in root.iterfind("object")
        ]
        height, width = (float(root.findtext(f"size/{side}", "0")) for side in ("height", "width"))
    # LookupError: an encoding that nobody knows.
    except (OSError, ElementTree.ParseError, ValueError, LookupError) as error:
        raise Unreadable(path, f"not an annotation of objects: {reason(error)}") from error
    return height, width, objects


_SIDES = ("ymin", "xmin", "ymax", "xmax")
_LARGEST = 2**26  # bytes of an XML file


class TableBoxes:
    """Boxes of all images in memory."""

    def __init__(
        self,
        corners: Sequence[ArrayLike],
        labels: Sequence[ArrayLike],
        sizes: Sequence[tuple[int, int]] = (),
        crowds: Sequence[ArrayLike] = (),
    ):
        """
        Args:
          corners: for each image [n,4], (top, left, bottom, right) in pixels. labels: [n]. crowds:
            [n] bool; (): there are none.
          sizes: (height, width) that is stated for each image, zeros for none. Coordinates are
            scaled to an image of another size with the same proportions. Those of an image that is
            turned are of the stored pixels, unless the size says that they are upright already.
        """
        self._sizes = sizes
        counts = [len(entry) for entry in labels]  # type: ignore[arg-type]
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._corners = np.concatenate(
            [np.asarray(entry, np.float32).reshape(-1, 4) for entry in corners]
        )
        self._labels = np.concatenate([np.asarray(entry, np.int32) for entry in labels])
        crowds = crowds or [np.zeros(count, bool) for count in counts]
        self._crowds = np.concatenate([np.asarray(entry, bool) for entry in crowds])

    def read(self, i: int, shape: tuple[int, int], turn: int = 1) -> Boxes:
        """Boxes of image i of that shape (H, W) and EXIF orientation."""
        rows = slice(self._starts[i], self._starts[i + 1])
        stated = _same_proportions(self._sizes[i], shape, turn) if self._sizes else None
        objects = self._corners[rows], self._labels[rows]
        return from_corners(*objects, shape, turn, stated, self._crowds[rows])


def _same_proportions(stated, shape, turn):
    """The stated size (height, width), if the image (or that of its stored pixels) could have been
    resized from it; else None, as files state sizes carelessly."""
    ways = [shape, shape[::-1]] if turn in SIDEWAYS else [shape]
    for height, width in ways:
        scale = max(stated) / max(height, width)
        # A side can have been rounded by one pixel.
        error = max(abs(stated[0] - scale * height), abs(stated[1] - scale * width))
        if min(stated) > 0 and error <= max(1.0, scale):
            return stated
    return None


class Instances(NamedTuple):
    """The contents of COCO's JSON, in the order of its images' file names."""

    files: tuple[str, ...]
    ids: tuple[int, ...]  # of the images
    names: tuple[str, ...]  # of the classes, in the order of their ids: COCO's 1..90 become 0..79
    corners: list[np.ndarray]
    labels: list[np.ndarray]
    sizes: list[tuple[int, int]]  # (height, width) of the images; zeros where it says none
    crowds: list[np.ndarray]  # bool


def read_coco(path: str | Path) -> Instances:
    """The objects of a COCO JSON file. Raises InputError for any other file."""
    try:
        return _instances(reading.parse_json(reading.read_bytes(path)))
    except _Annotation as error:
        raise InputError(f"data.boxes: {path}: {error}; correct or remove it") from error
    except OSError as error:
        raise InputError(f"data.boxes: {path} cannot be read: {reason(error)}") from error
    # It may hold anything.
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"data.boxes: {path} is not a COCO file of instances (images, annotations, categories):"
            f" {type(error).__name__} {error}"
        ) from error


class _Annotation(ValueError):
    """An annotation that lacks something."""


def _checked(entry, place, number):
    """(place of its image, number of its class, corners) of an annotation."""
    refers = {"image_id": (place, "images"), "category_id": (number, "categories")}
    if lacks := [key for key in ("bbox", *refers) if key not in entry]:
        raise _Annotation(f"annotation {entry.get('id')} has no {lacks[0]}")
    for key, (there, where) in refers.items():
        if entry[key] not in there:
            what = f"{key} {entry[key]!r}, which is not among the {where}"
            raise _Annotation(f"annotation {entry.get('id')} has the {what}")
    try:
        x, y, width, height = map(_finite, entry["bbox"])
    except (TypeError, ValueError) as error:
        what = f"{entry['bbox']!r:.99}, not [x, y, width, height]"
        raise _Annotation(f"annotation {entry.get('id')} has the bbox {what}") from error
    corners = (y, x, y + height, x + width)
    return place[entry["image_id"]], number[entry["category_id"]], corners


def _instances(content: dict[str, Any]) -> Instances:
    categories = sorted(content["categories"], key=lambda entry: entry["id"])
    number = {entry["id"]: i for i, entry in enumerate(categories)}
    images = sorted(content["images"], key=lambda entry: entry["file_name"])
    place = {entry["id"]: i for i, entry in enumerate(images)}
    if len(place) < len(images) or len(number) < len(categories):
        raise ValueError("two images or two categories have the same id")
    files = tuple(entry["file_name"] for entry in images)
    if twice := [first for first, second in itertools.pairwise(files) if first == second]:
        raise ValueError(f"the image {twice[0]} is listed twice")
    names = tuple(entry["name"] for entry in categories)
    if not all(isinstance(name, str) for name in (*files, *names)):
        raise TypeError("names of files and categories must be strings")
    corners: list[list] = [[] for _ in images]
    labels: list[list] = [[] for _ in images]
    crowds: list[list] = [[] for _ in images]
    for entry in content["annotations"]:
        image, label, sides = _checked(entry, place, number)
        corners[image].append(sides)
        labels[image].append(label)
        crowds[image].append(bool(entry.get("iscrowd")))
    return Instances(
        files=files,
        ids=tuple(entry["id"] for entry in images),
        names=names,
        corners=[np.array(entry, np.float32).reshape(-1, 4) for entry in corners],
        labels=[np.array(entry, np.int32) for entry in labels],
        sizes=[(_side(entry.get("height")), _side(entry.get("width"))) for entry in images],
        crowds=[np.array(entry, bool) for entry in crowds],
    )


def _side(number):
    """A stated height or width; 0 for what is none."""
    fits = isinstance(number, int | float) and math.isfinite(number) and number > 0
    return number if fits else 0


def _finite(number):
    if not isinstance(number, int | float) or not math.isfinite(number):
        raise TypeError(f"a box must have numbers, not {number!r}")
    return number
