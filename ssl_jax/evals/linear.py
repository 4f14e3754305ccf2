"""Linear probes on frozen features: a grid of learning rates and batch sizes, trained together on
the same minibatches.

The defaults follow STELLAR (affine LayerNorm and a linear layer, AdamW, no schedule, 10 % of the
training set held out for the selection), with one batch size and on features of the evaluation
crop, which are computed once. `PROTOCOLS` has the papers' settings: STELLAR's full grid, and iBOT's
(SGD, cosine, several layers, selection on the test set, over epochs too), both with random crops.
"""

import dataclasses

import numpy as np
from ml_collections import ConfigDict

from ssl_jax.config import InputError, field
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import confusion
from ssl_jax.evals.registry import Protocol, register_module
from ssl_jax.features import crops, tokens
from ssl_jax.methods.pictures.base import Classes
from ssl_jax.ops import numerics
from ssl_jax.runtime import distributed
from ssl_jax.scores.probe import LEARNING_RATES, OPTIMIZERS, Probe, Stream, fit, predict

_SCALED_TO = 256  # batch size for which scaled learning rates are given
# Settings that are arguments of `probe.fit` by the same name.
_OF_FIT = (
    *("epochs", "weight_decay", "held_out", "optimizer", "schedule", "clip", "norm"),
    "every_epoch",
)

_IMAGENET = dict(kind="folder", split="train", test_split="val", size=256)
_STELLAR = dict(
    data=_IMAGENET,
    crop=224,
    epochs=30,
    batch=64,
    batch_factors=tuple(2**i for i in range(8)),
    clip=5.0,  # of the authors' trainer; the paper does not state it
)
_IBOT = dict(
    data=_IMAGENET,
    crop=224,
    crop_scale=(0.08, 1.0),
    bilinear_crops=True,  # this and every_epoch are from the code
    every_epoch=True,
    epochs=100,
    batch=1024,
    norm=False,
    optimizer="sgd",
    schedule="cosine",
    weight_decay=0.0,
    scale_lr=True,
    held_out=0.0,
    lrs=(1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5),
)
_IBOT_GRID = tuple(round(n * 10.0**e, 10) for e in range(-4, 1) for n in range(1, 10))
PROTOCOLS = {
    "stellar": Protocol(
        "STELLAR tables 1, 2, 4 to 6, 9 and 10, ImageNet and Places365",
        _STELLAR | dict(crop_scale=(0.2, 1.0)),
    ),
    "stellar_transfer": Protocol(
        "STELLAR table 4, Pets, Food-101, GlaS", _STELLAR | dict(crop_scale=(0.5, 1.0))
    ),
    "sop_small": Protocol("SOP and SOVE table 1, ViT-S", _IBOT | dict(tokens="cls", layers=4)),
    "sop_swin": Protocol("SOP and SOVE table 1, Swin-T", _IBOT | dict(tokens="mean", layers=4)),
    "sop_base": Protocol("SOP and SOVE table 1, ViT-B and L", _IBOT | dict(tokens="cls_mean")),
    "ibot_small": Protocol(
        "iBOT table 2, ViT-S", _IBOT | dict(tokens="cls", layers=4, lrs=_IBOT_GRID)
    ),
    "ibot_base": Protocol(
        "iBOT table 2, ViT-B and L", _IBOT | dict(tokens="cls_mean", lrs=_IBOT_GRID)
    ),
}


@dataclasses.dataclass(frozen=True)
class Settings(tokens.Settings):
    epochs: int = field(30, "length of the probe's training", "epochs", above=0)
    batch: int = field(256, "features per training step", "features", above=0)
    batch_factors: tuple[int, ...] = field(
        (1,), "factors on `batch` that are tried, each with all learning rates", above=0, most=2**16
    )
    lrs: tuple[float, ...] = field(
        LEARNING_RATES,
        "learning rates that are tried in one run; the best on the held-out images counts",
        above=0,
        most=1000,
    )
    scale_lr: bool = field(False, "multiply learning rates by batch size / 256")
    schedule: str = field(
        "constant",
        'schedule of the learning rate: "constant", or "cosine" to 0, one value per epoch',
        choices=("constant", "cosine"),
    )
    optimizer: str = field(
        "adamw", 'optimizer of the probe; "sgd" and "lars" have momentum 0.9', choices=OPTIMIZERS
    )
    weight_decay: float = field(1e-4, "weight decay of the optimizer", least=0, most=1000)
    clip: float = field(0.0, "largest L2 norm of a classifier's gradient; 0 = no limit", least=0)
    norm: bool = field(True, "apply a learned LayerNorm before the linear layer")
    held_out: float = field(
        0.1,
        "share of the training images that selects the best classifier; 0 = the test images select"
        " it, as in iBOT and SOP",
        least=0,
        below=1,
    )
    crop_scale: tuple[float, ...] = field(
        (),
        "(least, largest) share of an image's area in random training crops, which are encoded in"
        " every epoch; () = train on the evaluation crop, encoded once",
        element=0.5,
        above=0,
        most=1,
    )
    bilinear_crops: bool = field(
        False,
        "resample random crops bilinearly (torchvision's default, code of iBOT) instead of"
        " bicubically",
    )
    every_epoch: bool = field(
        False,
        "score the test images after every epoch too, and report the best score of all epochs"
        " (code of iBOT and SOP)",
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
            learning_rates=tuple(_factor(settings) * lr for lr in settings.lrs),
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


def _factor(settings: Settings) -> float:
    """The factor by which learning rates are scaled with the batch size."""
    return settings.batch / _SCALED_TO if settings.scale_lr else 1.0


def score(case: Case, settings: Settings) -> dict[str, float]:
    """`linear`, test accuracy in percent of the selected classifier; `linear_lr`, `linear_batch`,
    its learning rate and batch size; `linear_held_out`, its accuracy on the held-out part;
    `linear_best`, the best of the grid on the test images, which is therefore selected on them;
    with every_epoch, `linear_best_of_epochs`, the best of the grid after any epoch.
    """
    best = probe(case, settings)
    scores = {"linear": 100.0 * best.accuracy, "linear_lr": best.learning_rate / _factor(settings)}
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
