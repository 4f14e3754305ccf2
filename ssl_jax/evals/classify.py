"""Accuracy of a network's own classifier on images it was not trained on, as after fine-tuning
(SOP and SOVE tables 1 and 3, STELLAR table 12).

No part of the evaluation learns anything: of the data only the test part is looked at.
"""

import dataclasses
from types import SimpleNamespace

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import InputError
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import confusion
from ssl_jax.evals.registry import BASELINES, NoSettings, Protocol, register_module
from ssl_jax.methods.pictures.base import Classes
from ssl_jax.scores import metrics

_IMAGENET = dict(kind="tfds", name="imagenet2012", test_split="validation", size=256)
# Short side 256, the central 224 pixels: a crop ratio of .875.
PROTOCOLS = {"imagenet": Protocol("SOP table 1, STELLAR table 12", dict(data=_IMAGENET, crop=224))}
TOP = 5


def accuracies(logits: ArrayLike, labels: ArrayLike, ks: tuple[int, ...] = (1, TOP)) -> list[float]:
    """Share of rows, in [0, 1], whose label is among the k highest scores, for each k.

    Equal scores share the place: a label counts as many times as a random order of the equal ones
    would have it among the k on average, so a network that says the same of everything is at
    chance.

    Args:
      logits: [n, c], n > 0; labels: [n] int in [0, c).

    Raises:
      ValueError: shapes do not fit or a label is out of range.
    """
    scores, labels = np.asarray(logits), np.asarray(labels)
    if scores.ndim != 2 or not len(scores) or labels.shape != scores.shape[:1]:
        raise ValueError(f"logits {scores.shape} and labels {labels.shape} do not fit [n, c], [n]")
    if labels.min() < 0 or labels.max() >= scores.shape[1]:
        raise ValueError(f"labels must lie in [0, {scores.shape[1]})")
    own = scores[np.arange(len(labels)), labels][:, None]
    above, equal = (scores > own).sum(axis=1), (scores == own).sum(axis=1)
    return [float(np.clip((k - above) / equal, 0, 1).mean()) for k in ks]


def score(case: Case, settings: NoSettings) -> dict[str, float]:
    """Top-1 accuracy `classify` and, of more than five classes, `classify_top5`, in percent.

    Raises InputError for a network without a classifier, a set without labels, or one with other
    classes.
    """
    found = case.once("classify", _scored)
    first, top = accuracies(found.image, found.labels)
    many = found.image.shape[1] > TOP
    return {"classify": 100 * first} | ({"classify_top5": 100 * top} if many else {})


def figures(case: Case, settings: NoSettings) -> dict[str, Classes]:
    """{"classify_classes": what each class is taken for}."""
    found = case.once("classify", _scored)
    counts = metrics.confusion(
        found.labels, found.image.argmax(axis=1), num_classes=found.image.shape[1], ignore=-1
    )
    names = getattr(case.test, "class_names", None)
    return {"classify_classes": confusion.picture(counts, names=names)}


def _scored(case):
    """The test images with the scores of the classifier as their features."""

    def logits(images):
        extras = case.encoder(images, extras=True).extras
        if not extras or "logits" not in extras:
            raise InputError(
                "classify needs a network with a classifier, as the method finetune trains; leave"
                " it out of evals.tasks"
            )
        return SimpleNamespace(image=extras["logits"])

    found = dataclasses.replace(case, encoder=logits).of(*case.chosen("test"))
    case.need(found.labels is not None, "labels")
    assert found.image is not None
    classes = found.image.shape[1]
    if found.labels.min() < 0 or found.labels.max() >= classes:
        raise InputError(
            f"{case.test} has the labels {found.labels.min()} to {found.labels.max()}, but the"
            f" network was trained for 0 to {classes - 1}; evaluate it on the set it was trained on"
        )
    return found


register_module(__name__, heading="top-1", needs="labels", share=True, baselines=BASELINES[:1])
