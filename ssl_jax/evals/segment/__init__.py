"""Semantic segmentation with a trained head (linear, Segmenter's mask transformer, Semantic FPN or
UPerNet), on frozen tokens or with a fine-tuned network.

    config.evals.segment = evals.new("segment", data=dict(kind="tfds", name="camvid", dir="..."))
    config.evals.segment = evals.new("segment", protocol="cribo_linear", data=...)

Training crops, losses, schedules and inference follow mmsegmentation or STELLAR; the protocols name
the papers' tables. The defaults train the linear head for a few hundred steps, for a CPU.
"""

import jax
import numpy as np
from ml_collections import ConfigDict

from ssl_jax.config import InputError
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import confusion, segmentation
from ssl_jax.evals.registry import register_module
from ssl_jax.evals.segment import inference, selection
from ssl_jax.evals.segment.protocols import PROTOCOLS
from ssl_jax.evals.segment.selection import outcome
from ssl_jax.evals.segment.settings import PYRAMIDS, Settings, check_stride
from ssl_jax.methods.pictures.base import Classes, Picture
from ssl_jax.runtime import sharding
from ssl_jax.scores import metrics

__all__ = ["PROTOCOLS", "Settings", "check", "figures", "outcome", "score"]
_SHOWN = 6  # test images of the picture


def check(name: str, settings: Settings, data: ConfigDict) -> None:
    """Raises InputError for keys that contradict each other."""
    c = settings
    if c.head in PYRAMIDS and len(c.layers) not in (1, 4):
        raise InputError(
            f"{name}.layers is {tuple(c.layers)}; the head {c.head} reads four layers (or one, four"
            " times)"
        )
    if c.level == "patch" and c.test == "slide":
        raise InputError(
            f'{name}.level="patch" scores the grid of one whole image; use test="center" or'
            ' test="whole"'
        )
    if c.side:
        check_stride(name, c)


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Scores of the selected head in percent: `segment`, mIoU; `segment_class_accuracy`, mAcc;
    `segment_accuracy`, aAcc. Also its learning rate `segment_lr`; with several batch sizes, its own
    `segment_batch`; with several heads, its mIoU `segment_held_out` on held-out images.

    Returns {} for raw pixels if the network is to be fine-tuned.
    """
    if not _applies(case, settings):
        return {}
    best = outcome(case, settings)
    iou = metrics.class_iou(best.counts, settings.absent)
    scores = {
        "segment": 100 * metrics.mean_iou(iou),
        "segment_class_accuracy": 100 * metrics.mean_iou(metrics.class_accuracy(best.counts)),
        "segment_accuracy": 100 * metrics.accuracy(best.counts),
        "segment_lr": best.learning_rate,
    }
    if len(settings.batch_factors) > 1:
        scores["segment_batch"] = best.batch
    if best.selection is not None and settings.held_out:
        scores["segment_held_out"] = 100 * max(best.selection)
    return scores


def _applies(case: Case, settings: Settings) -> bool:
    """Whether the network can be trained as set; raw pixels cannot be fine-tuned."""
    return settings.frozen or case.network.encoder is not None


def figures(case: Case, settings: Settings) -> dict[str, Picture | Classes]:
    """{"segment": some test images, segmented by the selected head; "segment_classes": IoU of each
    class and the confusion matrix of all test images}."""
    if not _applies(case, settings):
        return {}
    best, settings = outcome(case, settings), selection.with_side(case, settings)
    _, test, _ = selection.parts(case, settings)
    shown = test.part(np.arange(min(_SHOWN, len(test))))
    mesh = sharding.make_mesh(devices=jax.local_devices())
    scored = inference.score(
        best.network, [best.trained], shown, settings, patch=case.patch, mesh=mesh
    )
    images, truth, predicted = zip(*((x.image, x.truth, x.predicted[0]) for x in scored))
    names = case.test.mask_names
    if names and settings.ignored >= 0:
        names = [name for i, name in enumerate(names) if i != settings.ignored]
    iou, what = metrics.class_iou(best.counts, settings.absent), settings.head.replace("_", " ")
    return {
        "segment": segmentation.picture(
            images,
            {"truth": truth, "predicted": predicted},
            title=f"Segmentation with a {what} head",
            names=names,
            count=len(best.counts),
        ),
        "segment_classes": confusion.picture(
            best.counts,
            iou,
            names=names,
            title="IoU of each class, and its pixels by predicted class",
        ),
    }


register_module(
    __name__, heading="segm. mIoU", rgb=True, needs="masks", trains=True, multiples=("side",)
)
