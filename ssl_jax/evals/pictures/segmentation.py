"""Images next to their true and predicted classes."""

from collections.abc import Sequence

import numpy as np

from ssl_jax.evals.pictures import confusion
from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.methods.pictures.base import Classes, Panel, Picture, class_name
from ssl_jax.scores.segmentation import Retrieval

_FRAME = "#bbbbbb"
_LEGEND = 24  # with more classes, the legend has only those that appear


def picture(
    images: Sequence[np.ndarray] | np.ndarray,
    masks: Sequence[np.ndarray] | np.ndarray,
    truth: Sequence[np.ndarray] | np.ndarray,
    predicted: Sequence[np.ndarray] | np.ndarray,
    *,
    title: str,
    class_names: Sequence[str] | None = None,
) -> Picture:
    """One row per image: the image, its mask, the true class of each patch, the predicted class.

    Args:
      images: n images [H, W, 3] in [0, 1]. masks: n or more of [H, W] int, 255 = ignore. truth: n
        or more of [h, w] int, 255 = ignore. predicted: n or more of [h, w] int. Sizes may differ.
      class_names: names of all classes; None = show numbers. "background" is drawn in light gray.
    """
    masks, truth, predicted = (
        [part[i] for i in range(len(images))] for part in (masks, truth, predicted)
    )
    sides = [image.shape[:2] for image in images]
    if (shapes := [mask.shape for mask in masks]) != sides:
        raise ValueError(f"images of {sides} and masks of {shapes} do not fit")

    def classes(labels, title):
        labels = np.where(labels == IGNORE, -1, labels.astype(np.int64))
        return Panel(labels=labels, title=title, frame=_FRAME)

    def row(i):
        valid = truth[i] != IGNORE
        right = 100 * (truth[i] == predicted[i])[valid].mean() if valid.any() else float("nan")
        return (
            Panel(images[i], title="image", frame=_FRAME),
            classes(masks[i], "truth"),
            classes(truth[i], "truth per patch"),
            classes(predicted[i], f"retrieved, {right:.0f} % right"),
        )

    used = {int(c) for part in (*masks, *predicted) for c in np.unique(part)}
    names = list(class_names or ())
    count = max([len(names), *(1 + int(c) for c in used - {IGNORE})])
    entries = [c for c in range(count) if count <= _LEGEND or c in used]
    legend = [(c, class_name(class_names, c)) for c in entries]
    return Picture(
        title,
        tuple(map(row, range(len(images)))),
        background=names.index("background") if "background" in names else None,
        legend=(*legend, *([(-1, "not labelled")] if IGNORE in used else [])),
        legend_title="class",
    )


def of_retrieval(
    images: Sequence[np.ndarray],
    masks: Sequence[np.ndarray] | np.ndarray,
    result: Retrieval,
    *,
    k: int,
    scored: bool,
    class_names: Sequence[str] | None,
) -> dict[str, Picture | Classes]:
    """{"segmentation": `picture` of the classes retrieved from k neighbours; "dense_classes": IoU
    of each class and the confusion matrix of patches, if `scored`}.

    scored: whether the result covers all test images."""
    title = f"Dense retrieval: the class of each patch from its {k} nearest training patches"
    drawn: dict[str, Picture | Classes] = {
        "segmentation": picture(
            images, masks, result.truth, result.predicted, title=title, class_names=class_names
        )
    }
    if scored:
        drawn["dense_classes"] = confusion.picture(
            result.patch_counts,
            result.patch_iou,
            names=class_names,
            title="IoU of each class, and the predicted classes of its patches",
            measure="IoU",
        )
    return drawn
