"""Dense retrieval: a test patch takes the class of its nearest training patches (Hummingbird; CrIBo
table 1), see `scores.segmentation`.
"""

import dataclasses

import numpy as np

from ssl_jax.config import InputError, field
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import confusion, segmentation
from ssl_jax.evals.pictures.base import Classes, Picture
from ssl_jax.evals.registry import Protocol, register_module
from ssl_jax.features import extract, tokens
from ssl_jax.features.store import Grids
from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.scores.metrics import ABSENT, mean_iou, num_classes
from ssl_jax.scores.segmentation import NEIGHBOURS, segment

PROTOCOLS = {
    "cribo": Protocol(
        "CrIBo tables 1 and 4: VOC 2012 (augmented) and ADE20K at their native sizes",
        dict(data=dict(size=0), crop=0, k=NEIGHBOURS, subsample=(1, 8, 64, 128), runs=5),
    )
}
_SHOWN = 6  # test images of the picture


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of this type of evaluation."""

    k: int = field(NEIGHBOURS, "nearest patches that vote", "patches", above=0)
    vote: str = field(
        "plain",
        '"plain", or "softmax" (votes weigh exp(cosine / 0.1))',
        choices=("plain", "softmax"),
    )
    absent: str = field(
        "zero",
        'a class that is predicted somewhere but is not in the truth: "zero" counts its IoU as'
        ' 0 (as mmsegmentation), "skip" leaves it out of the mean',
        choices=ABSENT,
    )
    subsample: tuple[int, ...] = field(
        (1,),
        "keep one training image in this many; each is reported, and the first is the score",
        "images",
        above=0,
    )
    runs: int = field(5, "draws of a subsample above 1, averaged", "draws", above=0)
    layers: int = tokens.layers_field()


def _parts(case, settings):
    """Training and test patches with their masks, and the number of classes. Raises InputError for
    labels that the set does not name."""
    train, test = (case.masked(name, settings.layers) for name in ("train", "test"))
    classes, names = num_classes(train.masks, test.masks), getattr(case.test, "mask_names", None)
    if names and classes > len(names):
        raise InputError(
            f"a mask of {case.test} has class {classes - 1}, but the set names {len(names)}"
            f" classes, 0 to {len(names) - 1}; {IGNORE} means ignore"
        )
    return train, test, classes


def _retrieved(parts, settings, images=None, shown=None):
    """Classes of the patches of the first `shown` test images, from some training images."""
    train, test, classes = parts
    how = dict(k=settings.k, rule=settings.vote, absent=settings.absent, images=images)
    test_patches, test_masks = (x[:shown] if shown else x for x in (test.patches, test.masks))
    arrays = train.patches, train.masks, test_patches, test_masks
    try:
        return segment(*arrays, num_classes=classes, **how)
    except ValueError as error:
        some = "" if images is None else f" of {len(images)} training images"
        raise InputError(f"dense retrieval from the patches{some}: {error}") from error


def score(case: Case, settings: Settings) -> dict[str, float]:
    """`dense`: patch-level mIoU in percent; `dense_pixel`: pixel-level; both with the first
    subsample, and `dense_1in8`, ... with each of several. A subsample above 1 is the mean over
    `runs` draws of training images, drawn from the seed (CrIBo: 5 draws), and `_sd` their standard
    deviation.

    Raises InputError for a set without masks, or with labels that it does not name.
    """
    parts = _parts(case, settings)
    scores: dict[str, float] = {}
    total = len(parts[0].masks)
    for part in settings.subsample:
        draws = []
        for draw in range(settings.runs if part > 1 else 1):
            images = extract.subset(total, max(1, total // part), case.seed + draw)
            result = _retrieved(parts, settings, images if part > 1 else None)
            case.extracted.setdefault(case.own("dense"), result)  # the first one, for the pictures
            draws.append((mean_iou(result.patch_iou), mean_iou(result.pixel_iou)))
        patch, pixel = 100.0 * np.mean(draws, axis=0)
        name = "dense" if part == settings.subsample[0] else f"dense_1in{part}"
        scores |= {name: float(patch), f"{name}_pixel": float(pixel)}
        if len(draws) > 1:
            scores[f"{name}_sd"] = float(100.0 * np.std(draws, axis=0, ddof=1)[0])
    return scores


def figures(case: Case, settings: Settings) -> dict[str, Picture | Classes]:
    """{"segmentation": the first test images, their true classes and those retrieved;
    "dense_classes": IoU of each class and what its patches are taken for, if it was scored}."""
    parts, scored = _parts(case, settings), case.extracted.get(case.own("dense"))
    test = parts[1]
    if scored is None and isinstance(test.patches, Grids):
        return {}
    result = scored or _retrieved(parts, settings, shown=_SHOWN)
    names = getattr(case.test, "mask_names", None)
    pictures: dict[str, Picture | Classes] = {
        "segmentation": segmentation.picture(
            [case.images(case.test, [i])[0] for i in test.index[:_SHOWN]],
            test.masks,
            result.truth,
            result.predicted,
            title=f"Dense retrieval: the class of each patch from its {settings.k} nearest training"
            " patches",
            class_names=names,
        )
    }
    if scored:
        pictures["dense_classes"] = confusion.picture(
            scored.patch_counts,
            scored.patch_iou,
            names=names,
            title="IoU of each class, and the predicted classes of its patches",
            measure="IoU",
        )
    return pictures


register_module(__name__, heading="dense mIoU", needs="masks")
