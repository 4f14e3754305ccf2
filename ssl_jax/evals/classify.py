"""Accuracy of a network's own classifier on test images, as after fine-tuning (SOP and SOVE tables
1 and 3, STELLAR table 12). Nothing is trained, so only the test part of the data is used.
"""

import dataclasses
from types import SimpleNamespace

from ssl_jax.config import InputError, field
from ssl_jax.data import kinds
from ssl_jax.data.subset import class_names
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import confusion
from ssl_jax.evals.registry import BASELINES, Protocol, register_module
from ssl_jax.methods.pictures.base import Classes
from ssl_jax.scores.classification import TOP, accuracies

_IMAGENET = dict(kind="tfds", name="imagenet2012", test_split="validation", size=256)
# Shorter side 256 and centre crop 224: a crop ratio of .875.
PROTOCOLS = {
    "imagenet": Protocol(
        "SOP table 1, 1 % and 10 % of the labels; STELLAR table 12", dict(data=_IMAGENET, crop=224)
    ),
    "sop": Protocol(
        "SOP table 1, all labels",
        dict(data=_IMAGENET, crop=224, bilinear=True),  # code
    ),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    bilinear: bool = field(
        False,
        "resize images to data.size bilinearly instead of bicubically (code of SOP's fine-tuning"
        " on ImageNet)",
    )


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Accuracy in percent: top-1 `classify` and, with more than five classes, `classify_top5`."""
    test = case.cached("classify", _scored)
    first, top = accuracies(test.image, test.labels)
    many = test.image.shape[1] > TOP
    return {"classify": 100 * first} | ({"classify_top5": 100 * top} if many else {})


def figures(case: Case, settings: Settings) -> dict[str, Classes]:
    """{"classify_classes": the confusion matrix}."""
    test = case.cached("classify", _scored)
    predicted, classes = test.image.argmax(axis=1), test.image.shape[1]
    names = case.test.class_names
    return {"classify_classes": confusion.of_labels(test.labels, predicted, classes, names)}


def _scored(case):
    """Extracts the classifier's logits of the test images as their features."""

    def logits(images):
        _, extras = case.network.with_extras(images)
        if "logits" not in extras:
            raise InputError(
                "classify needs a network with a classifier, as the method finetune trains; leave"
                " it out of evals.tasks"
            )
        return SimpleNamespace(image=extras["logits"])

    part = dataclasses.replace(case, encoder=logits).features_of(*case.records("test"))
    case.need(part.labels is not None, "labels")
    classes = part.image.shape[1]
    if part.labels.min() < 0 or part.labels.max() >= classes:
        raise InputError(
            f"{case.test} has the labels {part.labels.min()} to {part.labels.max()}, but the"
            f" network was trained for 0 to {classes - 1}; evaluate it on the set it was trained on"
        )
    names = class_names(case.test)
    if kinds.get(case.config.data.kind).classes != "declared" and len(names or ()) != classes:
        raise InputError(
            f"{case.test} has {len(names or ())} classes, but the network was trained for"
            f" {classes}; let data.split name its training images, which number the classes"
        )
    return part


register_module(__name__, heading="top-1", needs="labels", share=True, baselines=BASELINES[:1])
