"""Videos with tracked objects."""

from collections.abc import Iterable, Sequence

import numpy as np

from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.methods.pictures.base import Animation, Panel, Picture

_COLUMNS = 6  # frames in a row
_FRAME = "#bbbbbb"

Video = tuple[str, Sequence[np.ndarray], np.ndarray, np.ndarray]
"""Name, images [H, W, 3] in [0, 1] of T frames, true and predicted masks [T, H, W] (0 =
background, 255 = ignore)."""


def draw(videos: Iterable[Video]) -> dict[str, Picture | Animation]:
    """{"tracking": frames of the videos with the tracked objects, "tracking_NAME": an animation of
    each video}."""
    videos = list(videos)
    drawn: dict[str, Picture | Animation] = {"tracking": picture(videos)}
    for name, images, _, predicted in videos:
        safe = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)
        frames = (Panel(x, labels=_objects(m)) for x, m in zip(images, predicted, strict=True))
        drawn[f"tracking_{safe}"] = Animation(name, tuple(frames))
    return drawn


def picture(videos: Sequence[Video]) -> Picture:
    """Two rows of evenly spaced frames per video: tracked objects, and the truth."""

    def row(name, images, masks, what):
        chosen = np.unique(np.linspace(0, len(images) - 1, _COLUMNS).round().astype(int))
        titles = [f"{name}: given" if t == 0 else f"{what}, frame {t}" for t in chosen]
        return tuple(
            Panel(images[t], labels=_objects(masks[t]), title=title, frame=_FRAME)
            for t, title in zip(chosen, titles)
        )

    rows = tuple(
        row(name, images, masks, what)
        for name, images, truth, predicted in videos
        for masks, what in ((predicted, "followed"), (truth, "truth"))
    )
    title = "Objects of the first frame, followed by the similarity of patch features"
    return Picture(title, rows)


def _objects(mask):
    """Objects numbered from 0; -1 = no object."""
    mask = np.asarray(mask, np.int64)
    return np.where(mask == IGNORE, -1, mask - 1)
