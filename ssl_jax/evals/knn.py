"""Weighted k-nearest-neighbour classification on frozen features (Wu et al. 2018, as in DINO and
iBOT; SOP table 1).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from ssl_jax.config import field
from ssl_jax.evals.case import Case, Labelled
from ssl_jax.evals.pictures import confusion, neighbours
from ssl_jax.evals.registry import Protocol, register_module
from ssl_jax.features import tokens
from ssl_jax.methods.pictures.base import Classes, Picture
from ssl_jax.scores.neighbours import KS, TEMPERATURE, classify

_IMAGENET = dict(kind="folder", split="train", test_split="val", size=256)
_PAPER = dict(data=_IMAGENET, crop=224, k=KS, temperature=TEMPERATURE)
PROTOCOLS = {
    "sop": Protocol("SOP and SOVE table 1; with data.list table B.2", _PAPER | dict(tokens="cls")),
    "stellar": Protocol("STELLAR tables 1 and 3", _PAPER | dict(tokens="sparse")),
    "stellar_dense": Protocol("STELLAR table 1, dense", _PAPER | dict(tokens="mean")),
    "cribo": Protocol("CrIBo table 5", _PAPER | dict(tokens="cls")),
}
_QUERIES, _SHOWN = 6, 8  # of the picture: test images, neighbours of each


def temperature_field() -> Any:
    """Declares the temperature of cosines. Below its minimum, weights in float32 are all 1 or 0."""
    return field(TEMPERATURE, "votes are weighted by exp(cosine / temperature)", least=1e-6)


def k_field(default: tuple[int, ...]) -> Any:
    """Declares the numbers of neighbours."""
    meaning = "numbers of neighbours; scores of all are reported, the first is the main score"
    return field(default, meaning, "neighbours", above=0)


@dataclasses.dataclass(frozen=True)
class Settings(tokens.Settings):
    k: tuple[int, ...] = k_field(KS)
    temperature: float = temperature_field()


def scores_by_k(name: str, accuracy: Mapping[int, float], first: int) -> dict[str, float]:
    """Scores in percent of an evaluation `name` from {k: accuracy in 0..1}: NAME, with the first k
    or the largest available one; NAME_best, of several k; and NAME_kK for each."""
    percent = {k: 100.0 * share for k, share in accuracy.items()}
    best = {f"{name}_best": max(percent.values())} if len(percent) > 1 else {}
    each = {f"{name}_k{k}": value for k, value in percent.items()}
    return {name: percent[min(first, max(percent))], **best, **each}


def _parts(case: Case, settings: Settings) -> tuple[Labelled, Labelled, int]:
    """(training vectors, test vectors, number of classes)."""
    train, test = case.labelled(settings.tokens, settings.layers)
    return train, test, 1 + int(max(train.labels.max(), test.labels.max()))


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Top-1 accuracy in percent: `knn` with the first k; `knn_k10`, ... for each k; `knn_best`, the
    best k on the test set, which papers report.
    """
    train, test, classes = _parts(case, settings)
    voted = classify(
        train.image,
        train.labels,
        test.image,
        num_classes=classes,
        ks=settings.k,
        temperature=settings.temperature,
    )
    accuracy = {k: float((p == test.labels).mean()) for k, p in voted.predictions.items()}
    return scores_by_k("knn", accuracy, settings.k[0])


def figures(case: Case, settings: Settings) -> dict[str, Picture | Classes]:
    """{"neighbours": the first test images of each class, then the second, ..., with their nearest
    training images; "knn_classes": the confusion matrix}."""
    train, test, classes = _parts(case, settings)
    bank = train.image, train.labels
    labels = test.labels[:1000]
    queries = np.lexsort(np.stack([labels, neighbours.turns(labels.tolist())]))[:_QUERIES]
    nearest = classify(*bank, test.image[queries], num_classes=classes, ks=(_SHOWN,))
    how: dict[str, Any] = dict(ks=settings.k[:1], temperature=settings.temperature)
    voted = classify(*bank, test.image, num_classes=classes, **how)
    (predicted,) = voted.predictions.values()
    names = case.test.class_names
    return {
        "knn_classes": confusion.of_labels(test.labels, predicted, classes, names),
        "neighbours": neighbours.picture(
            case.images(case.test, test.index[queries]),
            [case.images(case.train, train.index[row]) for row in nearest.index],
            nearest.similarity,
            test.labels[queries],
            train.labels[nearest.index],
            class_names=names,
        ),
    }


register_module(__name__, heading="k-NN", needs="labels", share=True)
