"""Types of pictures, and the registry of the methods' pictures."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ssl_jax.methods.encoder import Encoder


class Panel(NamedTuple):
    """One cell of a picture: an image with overlays.

    image: [H, W, C] in [0, 1], see `report.grid`; None: the overlays only.
    heat: [h, w] >= 0, drawn as a translucent map.
    labels: [h, w] int, drawn as translucent regions (below 0: none).
    marks: positions (y, x) in 0..1 of the image. title: short text above.
    frame: colour of its frame; "" = none.
    """

    image: Any = None
    heat: Any = None
    labels: Any = None
    marks: tuple = ()
    title: str = ""
    frame: str = ""


class Picture(NamedTuple):
    """A grid of panels with a title; a row may be shorter than the others.

    background: label drawn in light gray. legend: (colour or label, text) of each entry, next to
    the grid under `legend_title`. from_zero: whether the colour scale of maps starts at 0 instead
    of their minimum.
    """

    title: str
    rows: tuple[tuple[Panel, ...], ...]
    background: int | None = None
    legend: tuple[tuple[str | int, str], ...] = ()
    legend_title: str = ""
    from_zero: bool = False


class Animation(NamedTuple):
    """Panels of one size as frames: their images, with `labels` (if any) as coloured overlays.
    milliseconds: duration of a frame."""

    title: str
    frames: tuple[Panel, ...]
    milliseconds: int = 100


class Curve(NamedTuple):
    """A line of a chart: y [n] over x [n], without non-finite points."""

    label: str
    x: Any
    y: Any
    dashed: bool = False


class Chart(NamedTuple):
    """Curves over one x, with axis labels."""

    title: str
    curves: tuple[Curve, ...]
    x: str = ""
    y: str = ""


class Scatter(NamedTuple):
    """Points [n, 2 or 3], coloured by labels [n] int (None: one colour); legend: (label, text)."""

    title: str
    points: Any
    labels: Any = None
    legend: tuple[tuple[int, str], ...] = ()


class Classes(NamedTuple):
    """Results per class: values [c] in 0..1 of the score `measure`, NaN for absent classes, and
    shares [c, c] of a true class's examples (row) by predicted class (column)."""

    title: str
    values: np.ndarray
    shares: np.ndarray
    names: tuple[str, ...]
    measure: str


class Memory(NamedTuple):
    """Training images in which a picture looks for neighbours: `size` of them, and images(indices)
    -> [n, H, W, 3] float in [0, 1]."""

    size: int
    images: Callable


class _Own(NamedTuple):
    """Pictures of a method, see `register`."""

    draw: Callable
    images: int
    scenes: bool
    memory: int


_OWN: dict[str, _Own] = {}


def register(
    method: str, draw: Callable, *, images: int = 16, scenes: bool = True, memory: int = 0
) -> None:
    """Adds the pictures of a method.

    draw(encoder, images) -> {name: Picture}: encoder is a `methods.encoder.Encoder`, images [N, H,
    W, 3] float in [0, 1]; the arrays in the pictures are NumPy's.
    images: N, the number of images. scenes: whether the images should show several objects (from an
    evaluation with masks, if there is one) or one (from an evaluation without masks, if any).
    memory: the most training images that draw(encoder, images, memory) gets as a `Memory`, or None
    where there are none; 0 = it has no such argument.
    """
    _OWN[method] = _Own(draw, images, scenes, memory)


def wanted(method: str) -> tuple[int, bool, int] | None:
    """Number of images for the method's own pictures, whether they should be scenes, and the most
    training images; None if it has no pictures."""
    entry = _OWN.get(method)
    return (entry.images, entry.scenes, entry.memory) if entry else None


def draw(encoder: Encoder, images: np.ndarray, memory: Memory | None = None) -> dict[str, Picture]:
    """The pictures of the encoder's method for some images; {} if it has none."""
    entry = _OWN.get(encoder.config.method)
    if entry is None:
        return {}
    return entry.draw(encoder, images, *((memory,) if entry.memory else ()))


def class_name(names: Sequence[str] | None, label: int) -> str:
    """The name of a class, or its number if it has no name."""
    return str(names[label]) if names is not None and label < len(names) else str(int(label))
