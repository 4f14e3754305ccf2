"""k-NN on patches of the largest box (FLSL's ablations in tables 5, 6, 9, 11-14).

The largest box of an image is divided into 3 x 3 cells, and the patches at their centres represent
the image. Each of the nine patches of a test image is classified as in `knn`, with the nine of all
training images as the bank; the image is correct if at least one patch is.

The class is the label of the image or, if the set has none, of the box. Images without a visible
box are left out.
"""

import dataclasses
from typing import Any

import numpy as np

from ssl_jax.config import field
from ssl_jax.evals import knn
from ssl_jax.evals.case import Case
from ssl_jax.evals.classes import check_classes
from ssl_jax.evals.pictures import neighbours
from ssl_jax.evals.registry import Protocol, register_module
from ssl_jax.features import boxes, windows
from ssl_jax.methods.pictures.base import Picture
from ssl_jax.scores.neighbours import KS, classify_sets

PAPER_K = 140  # 20 * 7
_SHOWN = 12  # test images of the picture


@dataclasses.dataclass(frozen=True)
class Settings:
    k: tuple[int, ...] = knn.k_field((PAPER_K, *KS))
    temperature: float = knn.temperature_field()
    cells: int = field(
        3, "number of cells along each side into which a box is divided", "cells", above=0
    )
    boxes: str = field(
        "exact",
        'how boxes follow the resized image: "exact", or "script", as FLSL\'s script, which scales'
        " height and width to data.size although the image keeps its aspect ratio",
        choices=("exact", "script"),
    )


_CHANGES: dict[str, Any] = dict(
    data=dict(size=256, test_split="val"), crop=224, temperature=0.07, cells=3
)
_TABLES = "FLSL tables 5, 6, 9, 11-14"
PROTOCOLS = {
    "paper": Protocol(_TABLES, _CHANGES | dict(k=(PAPER_K,), boxes="exact")),
    "script": Protocol(_TABLES, _CHANGES | dict(k=(10, 20, 100, 200), boxes="script")),
}


def _sight(case: Case, settings: Settings, source: Any) -> tuple[Any, boxes.Sight]:
    """The source with images of their stored size, and how these are resized and cropped. A source
    without other stored images, such as an embedded set, is not resized again."""
    stored, crop = source.unresized, case.config.crop
    resize = 0 if stored is source else case.config.data.size
    return stored, boxes.Sight(case.patch, resize, crop, settings.boxes, settings.cells)


def _result(
    case: Case, settings: Settings
) -> tuple[dict[int, np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """({k: classes [M, P] of the patches of M test images}, their labels [M], records [M] and
    points [M, P, 2])."""

    def select(name: str) -> boxes.Selected:
        records, how = case.boxed(name), (case.batch_size, case.shared)
        stored, sight = _sight(case, settings, records.source)
        return boxes.select(case.network, stored, records.indices, sight, *how)

    train, test = select("train"), select("test")
    case.need(min(train.labels.min(), test.labels.min()) >= 0, "labels from 0 on")
    check_classes("box_knn", case.train, [train.labels], "labels")
    predicted = classify_sets(
        *(train.features, train.labels, test.features),
        num_classes=1 + int(max(train.labels.max(), test.labels.max())),
        ks=settings.k,
        temperature=settings.temperature,
    )
    return predicted, test.labels, test.index, test.points


def scored(case: Case, settings: Settings) -> int:
    """Number of test images with a visible box."""
    return len(case.cached("box_knn", lambda case: _result(case, settings))[1])


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Accuracy in percent on test images with a visible box: `box_knn_k20`, ... for each k;
    `box_knn` with the first k; `box_knn_best`, the best k on the test images.
    """
    predicted, labels, _, _ = case.cached("box_knn", lambda case: _result(case, settings))
    right = {k: p == labels[:, None] for k, p in predicted.items()}
    first = min(settings.k[0], max(predicted))
    accuracy = {k: float(right[k].any(axis=1).mean()) for k in (first, *right)}
    return knn.scores_by_k("box_knn", accuracy, first)


def figures(case: Case, settings: Settings) -> dict[str, Picture]:
    """{"box_neighbours": see `pictures.neighbours.points`}."""
    predicted, labels, index, points = case.cached("box_knn", lambda case: _result(case, settings))
    stored, sight = _sight(case, settings, case.test)
    images = [boxes.seen(stored[int(i)], sight)[1] for i in index[:_SHOWN]]
    first = min(settings.k[0], max(predicted))
    picture = neighbours.points(
        list(map(windows.unit, images)),
        points,
        labels,
        predicted[first],
        class_names=case.test.class_names or case.test.box_names,
        title=f"Patches at the centres of the cells of the largest box; {first} neighbours of each"
        " vote",
    )
    return {"box_neighbours": picture}


register_module(__name__, heading="box k-NN", needs="boxes", share=True)
