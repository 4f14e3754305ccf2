"""Linear probes on frozen features: a grid of learning rates and batch sizes, trained together on
the same minibatches.

The defaults follow STELLAR (affine LayerNorm and a linear layer, AdamW, no schedule, 10 % of the
training set held out for the selection), with one batch size and on features of the evaluation
crop, which are computed once. `PROTOCOLS` has the papers' settings: STELLAR's full grid, and iBOT's
(SGD, cosine, several layers, selection on the test set, over epochs too), both with random crops.
"""

import numpy as np
from ml_collections import ConfigDict

from ssl_jax.config import InputError
from ssl_jax.evals.case import Case
from ssl_jax.evals.linear.settings import PROTOCOLS, Settings
from ssl_jax.evals.pictures import confusion
from ssl_jax.evals.registry import register_module
from ssl_jax.features import crops
from ssl_jax.methods.pictures.base import Classes
from ssl_jax.ops import numerics
from ssl_jax.runtime import distributed
from ssl_jax.scores.probe import Probe, Stream, fit, predict

__all__ = ["PROTOCOLS", "Settings", "check", "figures", "probe", "score"]
# Settings that are arguments of `probe.fit` by the same name.
_OF_FIT = (
    *("epochs", "weight_decay", "held_out", "optimizer", "schedule", "clip", "norm"),
    "every_epoch",
)


def check(name: str, settings: Settings, data: ConfigDict) -> None:
    """Raises InputError for a crop_scale that is not a range."""
    crops.check(name, settings.crop_scale)


def probe(case: Case, settings: Settings, num_classes: int = 0) -> Probe:
    """Trains and tests the probe of an evaluation, once per case.

    num_classes: number of classes; 0 = that of the labels.

    Raises InputError for a set without labels or with more classes.
    """

    def trained(case):
        train, test = case.labelled(settings.tokens, settings.layers)
        classes = 1 + int(max(train.labels.max(), test.labels.max()))
        if num_classes and classes > num_classes:
            raise InputError(f"the images have {classes} classes, expected {num_classes}")
        result = fit(
            *(train.image, train.labels, test.image, test.labels),
            num_classes=num_classes or classes,
            key=numerics.key(case.seed),
            learning_rates=tuple(settings.lr_factor * lr for lr in settings.lrs),
            batch_factors=tuple(settings.batch_factors),
            batch_size=settings.batch,
            stream=_crops(case, settings, train.index) if settings.crop_scale else None,
            **{name: getattr(settings, name) for name in _OF_FIT},
        )
        if result.diverged.any() and distributed.is_first():
            print(
                f"  warning: {case.config.type}: the loss of {result.diverged.sum()} of"
                f" {len(result.diverged)} classifiers is not finite after training; use lower lrs",
                flush=True,
            )
        return result

    return case.cached("linear", trained, num_classes)


def score(case: Case, settings: Settings) -> dict[str, float]:
    """`linear`, test accuracy in percent of the selected classifier; `linear_lr`, `linear_batch`,
    its learning rate and batch size; `linear_held_out`, its accuracy on the held-out part;
    `linear_best`, the best of the grid on the test images, which is therefore selected on them;
    with every_epoch, `linear_best_of_epochs`, the best of the grid after any epoch.
    """
    best = probe(case, settings)
    scores = {"linear": 100.0 * best.accuracy, "linear_lr": best.learning_rate / settings.lr_factor}
    if len(settings.batch_factors) > 1:
        scores["linear_batch"] = best.batch_size
    if settings.held_out:
        scores["linear_held_out"] = 100.0 * float(best.held_out.max())
        scores["linear_best"] = 100.0 * float(best.test.max())
    if best.by_epoch is not None:
        scores["linear_best_of_epochs"] = 100.0 * float(best.by_epoch.max())
    return scores


def figures(case: Case, settings: Settings) -> dict[str, Classes]:
    """{"linear_classes": the confusion matrix of the test images}."""
    best, (_, test) = probe(case, settings), case.labelled(settings.tokens, settings.layers)
    predicted, classes = predict(best.params, test.image), len(best.params["bias"])
    names = case.test.class_names
    return {"linear_classes": confusion.of_labels(test.labels, predicted, classes, names)}


def _crops(case: Case, settings: Settings, records: np.ndarray) -> Stream:
    """Streams features of random crops of the training images, read at their stored size."""
    c = case.config
    size = c.crop or c.data.size or (case.train.size or (0,))[0]
    if not size:
        raise InputError("crop_scale needs the size of a crop: set crop or data.size")
    return crops.stream(
        case.network,
        case.train.unresized,
        records,
        tokens=settings.tokens,
        layers=settings.layers,
        size=size // case.patch * case.patch,
        scale=tuple(settings.crop_scale),
        bilinear=settings.bilinear_crops,
        batch_size=settings.batch,
        epochs=settings.epochs,
        seed=case.seed,
    )


register_module(__name__, heading="linear", needs="labels", share=True, trains=True)
