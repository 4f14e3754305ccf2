"""What a picture is, and the registry of the pictures of methods."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ssl_jax.methods.encoder import Encoder

IGNORE = 255  # mask value of a pixel without a class


class Panel(NamedTuple):
    """One cell of a picture: an image, and what is laid over it.

    image: [H, W, 3] in [0, 1]; None: what would be laid over it is shown alone.
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


_DRAW: dict[str, Callable] = {}


def register(method: str, draw: Callable) -> None:
    """Adds the pictures of a method.

    draw(encoder, images) -> {name: Picture}: encoder is a `methods.encoder.Encoder`, images [N, H,
    W, 3] float in [0, 1]; the arrays in the pictures are NumPy's.
    """
    _DRAW[method] = draw


def draw(encoder: Encoder, images: np.ndarray) -> dict[str, Picture]:
    """The pictures of the encoder's method for some images; {} where it has none of its own."""
    name = encoder.config.method
    return _DRAW[name](encoder, images) if name in _DRAW else {}


def class_name(names: Sequence[str] | None, label: int) -> str:
    """The name of a class, or its number where there is none."""
    return str(names[label]) if names is not None and label < len(names) else str(int(label))
