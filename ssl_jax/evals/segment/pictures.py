"""Pictures of a segmentation: test images with truth and prediction, and the score of each
class."""

from collections.abc import Sequence

import numpy as np

from ssl_jax.evals.pictures import confusion
from ssl_jax.evals.segment.inference import Scored
from ssl_jax.evals.segment.settings import Settings
from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.methods.pictures.base import Classes, Panel, Picture, class_name
from ssl_jax.scores import metrics

SHOWN = 6  # test images
_LEGEND = 24  # with more classes, the legend has only those that appear
_FRAME = "#bbbbbb"


def make(
    scored: Sequence[Scored], counts: np.ndarray, settings: Settings, names: Sequence[str] | None
) -> dict[str, Picture | Classes]:
    """{"segment": images; "segment_classes": IoU of each class and the confusion matrix}.

    scored: some test images, with one prediction each. counts: confusion matrix [c, c] of all test
    images.
    """
    return {
        "segment": images(scored, settings.head, len(counts), names),
        "segment_classes": confusion.picture(
            counts,
            metrics.class_iou(counts, settings.absent),
            names=names,
            title="IoU of each class, and its pixels by predicted class",
            measure="IoU",
        ),
    }


def images(scored: Sequence[Scored], head: str, count: int, names: Sequence[str] | None) -> Picture:
    """One row per image: the image, its true classes, its predicted classes."""

    def regions(labels, title):
        return Panel(
            labels=np.where(labels == IGNORE, -1, labels.astype(int)), title=title, frame=_FRAME
        )

    def row(one):
        truth, predicted = one.truth, one.predicted[0]
        valid = truth != IGNORE
        right = 100 * (truth == predicted)[valid].mean() if valid.any() else float("nan")
        return (
            Panel(one.image, title="image", frame=_FRAME),
            regions(truth, "truth"),
            regions(predicted, f"predicted, {right:.0f} % right"),
        )

    used = {
        int(c) for one in scored for part in (one.truth, one.predicted) for c in np.unique(part)
    }
    entries = [c for c in range(count) if count <= _LEGEND or c in used]
    unlabelled = [(-1, "not labelled")] if IGNORE in used else []
    class_names = list(names or ())
    return Picture(
        f"Segmentation with a {head.replace('_', ' ')} head",
        tuple(map(row, scored)),
        background=class_names.index("background") if "background" in class_names else None,
        legend=(*((c, class_name(names, c)) for c in entries), *unlabelled),
        legend_title="class",
    )
