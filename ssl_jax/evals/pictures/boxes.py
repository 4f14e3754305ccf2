"""Images with true and predicted boxes."""

import colorsys
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from ssl_jax.methods.pictures.base import Panel, Picture, class_name
from ssl_jax.scores.detection import Boxes

_SIDE = 480  # longer side of a drawn image in pixels, large compared with the lines
_LINE = 3


def picture(
    images: Sequence[np.ndarray],
    true: Sequence[Boxes],
    predicted: Sequence[Boxes],
    *,
    least_score: float = 0.5,
    class_names: Sequence[str] | None = None,
) -> Picture:
    """One row per image: its true boxes, and the predicted ones with a score of at least
    `least_score`. Each class has a colour.

    images: [H, W, 3], uint8 or in [0, 1].
    """
    shown = [image.scores is None or image.scores >= least_score for image in predicted]
    confident = [
        Boxes(image.boxes[rows], image.labels[rows]) for image, rows in zip(predicted, shown)
    ]
    classes = sorted({int(c) for image in (*true, *confident) for c in image.labels})
    rows = tuple(
        (
            Panel(image=_drawn(image, t), title=f"{len(t.boxes)} true"),
            Panel(image=_drawn(image, p), title=f"{len(p.boxes)} predicted"),
        )
        for image, t, p in zip(images, true, confident, strict=True)
    )
    return Picture(
        title=f"True boxes, and predicted ones with a score of at least {least_score:g}",
        rows=rows,
        legend=tuple((_color(c), class_name(class_names, c)) for c in classes),
        legend_title="class",
    )


def _drawn(image: Any, boxes: Boxes) -> np.ndarray:
    """Enlarges the image and draws its boxes: float [H, W, 3] in [0, 1]."""
    image = np.asarray(image)
    if image.dtype != np.uint8:
        image = np.round(np.clip(image, 0, 1) * 255).astype(np.uint8)
    height, width = image.shape[:2]
    scale = _SIDE / max(height, width)
    large = Image.fromarray(image).resize((round(width * scale), round(height * scale)))
    canvas = ImageDraw.Draw(large)
    for (y, x, h, w), label in zip(np.asarray(boxes.boxes) * scale, boxes.labels):
        low, high = (x, y), (max(x, x + w - 1), max(y, y + h - 1))
        canvas.rectangle((*low, *high), outline=_color(int(label)), width=_LINE)
    return np.asarray(large, np.float32) / 255


def _color(label: int) -> str:
    """A bright colour; hues of consecutive labels differ by the golden angle."""
    color = colorsys.hsv_to_rgb((0.14 + label * 0.618034) % 1, 0.9, 1.0)
    return "#" + "".join(f"{round(255 * part):02x}" for part in color)
