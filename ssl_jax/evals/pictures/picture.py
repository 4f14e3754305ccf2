"""Pictures as data, and which method has which.

A picture is data; `evals.panels` draws it. Methods outside the package call `register`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple


class Panel(NamedTuple):
    """One cell of a picture: an image, and what is laid over it.

    image: [H, W, 3] in [0, 1].
    heat: [h, w] >= 0, drawn as a translucent map from its minimum to its maximum.
    labels: [h, w] int, drawn as translucent regions (below 0: none).
    marks: (y, x) in 0..1 of the image. title: short text above.
    """

    image: Any
    heat: Any = None
    labels: Any = None
    marks: tuple = ()
    title: str = ""


class Picture(NamedTuple):
    """A grid of panels with a title; a row may be shorter than the others."""

    title: str
    rows: tuple[tuple[Panel, ...], ...]


_DRAW: dict[str, Callable] = {}


def register(method: str, draw: Callable) -> None:
    """Adds the pictures of a method.

    draw(encoder, images) -> {name: Picture}: encoder is a `methods.encoder.Encoder`, images [N, H,
    W, 3] float in [0, 1]; the arrays in the pictures are NumPy's.
    """
    _DRAW[method] = draw


def draw(encoder, images) -> dict[str, Picture]:
    """The pictures of the encoder's method for some images; {} where it has none of its own."""
    name = encoder.config.method
    return _DRAW[name](encoder, images) if name in _DRAW else {}
