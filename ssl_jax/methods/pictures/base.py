"""What a picture is, and the registry of the pictures of methods."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ssl_jax.methods.encoder import Encoder


class Panel(NamedTuple):
    """One cell of a picture: an image, and what is laid over it.

    image: [H, W, C] in [0, 1], see `report.grid`; None: what would be laid over it is shown alone.
    heat: [h, w] >= 0, drawn as a translucent map.
    labels: [h, w] int, drawn as translucent regions (below 0: none).
    marks: (y, x) in 0..1 of the image. title: short text above.
    frame: colour of a frame around it; "" = none.
    """

    image: Any = None
    heat: Any = None
    labels: Any = None
    marks: tuple = ()
    title: str = ""
    frame: str = ""


class Picture(NamedTuple):
    """A grid of panels with a title; a row may be shorter than the others.

    background: label that is drawn in light gray. legend: (colour or label, text) of each entry,
    beside the grid under `legend_title`. from_zero: maps go from 0 to their maximum, else from
    their minimum.
    """

    title: str
    rows: tuple[tuple[Panel, ...], ...]
    background: int | None = None
    legend: tuple[tuple[str | int, str], ...] = ()
    legend_title: str = ""
    from_zero: bool = False


class Animation(NamedTuple):
    """Panels of one size that are shown one after the other: their images with `labels`, where
    there are, laid over in colour. milliseconds: of each."""

    title: str
    frames: tuple[Panel, ...]
    milliseconds: int = 100


class Curve(NamedTuple):
    """A line of a chart: y [n] over x [n]; what is not finite is left out."""

    label: str
    x: Any
    y: Any
    dashed: bool = False


class Chart(NamedTuple):
    """Curves over one x, with the labels of the axes."""

    title: str
    curves: tuple[Curve, ...]
    x: str = ""
    y: str = ""


class Scatter(NamedTuple):
    """Points [n, 2 or 3], coloured by labels [n] int (None: all alike); legend: (label, text)."""

    title: str
    points: Any
    labels: Any = None
    legend: tuple[tuple[int, str], ...] = ()


class Classes(NamedTuple):
    """How classes fared: values [c] in 0..1, called `measure`, NaN for a class that is not there,
    and shares [c, c] of the examples of a class (row) by the class that they were taken for."""

    title: str
    values: np.ndarray
    shares: np.ndarray
    names: tuple[str, ...]
    measure: str


class _Own(NamedTuple):
    """Pictures of a method, see `register`."""

    draw: Callable
    images: int
    scenes: bool


_OWN: dict[str, _Own] = {}


def register(method: str, draw: Callable, *, images: int = 16, scenes: bool = True) -> None:
    """Adds the pictures of a method.

    draw(encoder, images) -> {name: Picture}: encoder is a `methods.encoder.Encoder`, images [N, H,
    W, 3] float in [0, 1]; the arrays in the pictures are NumPy's.
    images: N, how many it looks at. scenes: whether they show several objects, if an evaluation has
    such images; else they are those of an evaluation without masks, if there is one.
    """
    _OWN[method] = _Own(draw, images, scenes)


def wanted(method: str) -> tuple[int, bool] | None:
    """How many images the method's own pictures look at, and whether these are scenes; None where
    it has none of its own."""
    entry = _OWN.get(method)
    return (entry.images, entry.scenes) if entry else None


def draw(encoder: Encoder, images: np.ndarray) -> dict[str, Picture]:
    """The pictures of the encoder's method for some images; {} where it has none of its own."""
    name = encoder.config.method
    return _OWN[name].draw(encoder, images) if name in _OWN else {}


def class_name(names: Sequence[str] | None, label: int) -> str:
    """The name of a class, or its number where there is none."""
    return str(names[label]) if names is not None and label < len(names) else str(int(label))
