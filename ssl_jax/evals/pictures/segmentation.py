"""Images next to their true and predicted classes."""

from collections.abc import Mapping, Sequence

import numpy as np

from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.methods.pictures.base import Panel, Picture, class_name

_FRAME = "#bbbbbb"
_LEGEND = 24  # with more classes, the legend has only those that appear


def picture(
    images: Sequence[np.ndarray] | np.ndarray,
    maps: Mapping[str, Sequence[np.ndarray] | np.ndarray],
    *,
    title: str,
    names: Sequence[str] | None = None,
    count: int = 0,
) -> Picture:
    """One row per image: the image and its maps of classes.

    Args:
      images: n images [H, W, 3] in [0, 1], of any size.
      maps: {title: n or more maps [h, w] int, 255 = ignore}; the last map holds predictions, which
        are compared with the one before.
      names: of all classes; None = show numbers. "background" is drawn in light gray.
      count: number of classes; 0 = as named, or as in the maps.
    """
    rows = [{name: of_all[i] for name, of_all in maps.items()} for i in range(len(images))]

    def panels(image, row):
        *_, truth, predicted = row.values()
        valid = truth != IGNORE
        right = 100 * (truth == predicted)[valid].mean() if valid.any() else float("nan")
        titles = (*list(row)[:-1], f"{list(row)[-1]}, {right:.0f} % right")
        shown = (np.where(x == IGNORE, -1, x.astype(np.int64)) for x in row.values())
        regions = (Panel(labels=x, title=text, frame=_FRAME) for x, text in zip(shown, titles))
        return Panel(image, title="image", frame=_FRAME), *regions

    used = {int(c) for row in rows for labels in row.values() for c in np.unique(labels)}
    names = list(names or ())
    count = count or max([len(names), *(1 + c for c in used - {IGNORE})])
    entries = [c for c in range(count) if count <= _LEGEND or c in used]
    unlabelled = [(-1, "not labelled")] if IGNORE in used else []
    return Picture(
        title,
        tuple(map(panels, images, rows)),
        background=names.index("background") if "background" in names else None,
        legend=(*((c, class_name(names, c)) for c in entries), *unlabelled),
        legend_title="class",
    )
