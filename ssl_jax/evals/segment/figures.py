"""Pictures of a segmentation: test images with truth and prediction, and how each class fared."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ssl_jax.evals import metrics
from ssl_jax.evals.pictures.base import IGNORE, Panel, Picture, class_name
from ssl_jax.evals.segment.inference import Scored

SHOWN = 6  # test images
_LEGEND = 24  # with more classes than this, those with most pixels are named
_FRAME = "#bbbbbb"
_BAND = 12  # pixels of a class in the picture of classes


def make(
    scored: Sequence[Scored], counts: np.ndarray, config: Any, names: Sequence[str] | None
) -> dict[str, Picture]:
    """{"segment": images; "segment_classes": IoU of each class beside the confusion matrix}.

    scored: some test images, with one prediction each. counts: [c, c] of all test pixels.
    """
    return {
        "segment": images(scored, config.head, len(counts), names),
        "segment_classes": classes(counts, config.absent, names),
    }


def images(scored: Sequence[Scored], head: str, count: int, names: Sequence[str] | None) -> Picture:
    """One row per image: the image, its true classes, those predicted."""

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
    named = list(names or ())
    return Picture(
        f"Segmentation with a {head.replace('_', ' ')} head",
        tuple(map(row, scored)),
        background=named.index("background") if "background" in named else None,
        legend=(*((c, class_name(names, c)) for c in entries), *unlabelled),
        legend_title="class",
    )


def classes(counts: np.ndarray, absent: str, names: Sequence[str] | None) -> Picture:
    """A bar of each class's IoU, and on the same rows where its pixels went."""
    iou, pixels = metrics.class_iou(counts, absent), counts.sum(axis=1)
    count = len(counts)
    bars = np.full((count, _BAND, 10 * _BAND), -1)
    for i, value in enumerate(np.nan_to_num(iou)):
        bars[i, 1:-1, : round(value * bars.shape[-1])] = i
    shares = counts / np.maximum(pixels, 1)[:, None]
    order = np.argsort(-pixels, kind="stable")[:_LEGEND]

    def entry(i):
        value = "not there" if np.isnan(iou[i]) else f"{100 * iou[i]:.1f}"
        return int(i), f"{class_name(names, i)} {value}"

    return Picture(
        "IoU of each class, and its pixels by predicted class",
        (
            (
                Panel(labels=bars.reshape(-1, bars.shape[-1]), title="IoU, 0 to 100", frame=_FRAME),
                Panel(
                    heat=shares.repeat(_BAND, 0).repeat(max(1, 10 * _BAND // count), 1),
                    title="truth (rows), predicted (columns)",
                    frame=_FRAME,
                ),
            ),
        ),
        legend=tuple(entry(i) for i in sorted(order)),
        legend_title="IoU, percent",
        from_zero=True,
    )
