"""Dense retrieval: a test patch takes the class of its nearest training patches (Hummingbird; CrIBo
table 1), see `scores.segmentation`.
"""

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.evals.case import Case, Masked
from ssl_jax.evals.classes import classes_of
from ssl_jax.evals.dense.settings import PROTOCOLS, Settings
from ssl_jax.evals.pictures import confusion, segmentation
from ssl_jax.evals.registry import register_module
from ssl_jax.features.monitored import subset
from ssl_jax.features.store import Grids
from ssl_jax.methods.pictures.base import Classes, Picture
from ssl_jax.scores.metrics import mean_iou
from ssl_jax.scores.segmentation import Retrieval, segment

__all__ = ["PROTOCOLS", "Settings", "figures", "score"]
_SHOWN = 6  # test images of the picture
Parts = tuple[Masked, Masked, int]  # training patches, test patches, number of classes


def _parts(case: Case, settings: Settings) -> Parts:
    train, test = (case.masked(name, settings.layers) for name in ("train", "test"))
    return train, test, classes_of(case.test, train.masks, test.masks)


def _retrieved(parts: Parts, settings: Settings, images: np.ndarray | None = None) -> Retrieval:
    """Retrieves classes of the test patches from training images; None = all."""
    train, test, classes = parts
    try:
        return segment(
            train.patches,
            train.masks,
            test.patches,
            test.masks,
            num_classes=classes,
            k=settings.k,
            rule=settings.vote,
            absent=settings.absent,
            images=images,
        )
    except ValueError as error:
        note = "" if images is None else f" of {len(images)} training images"
        raise InputError(f"dense retrieval from the patches{note}: {error}") from error


def score(case: Case, settings: Settings) -> dict[str, float]:
    """mIoU in percent with the first subsample, over patches (`dense`) and over pixels
    (`dense_pixel`); `dense_1in8`, ... with the other subsamples. A subsample above 1 is the mean
    over `runs` draws of training images (CrIBo: 5), with the standard deviation `_sd`.
    """
    parts = _parts(case, settings)
    scores: dict[str, float] = {}
    total = len(parts[0].masks)
    for part in settings.subsample:
        draws = []
        for draw in range(settings.runs if part > 1 else 1):
            images = subset(total, max(1, total // part), case.seed + draw)
            result = _retrieved(parts, settings, images if part > 1 else None)
            # The pictures show the first draw.
            case.extracted.setdefault(case.key_of("dense"), result)
            if not result.patch_counts.sum():
                raise InputError(f"dense: most pixels of every patch of {case.test} are ignored")
            draws.append((mean_iou(result.patch_iou), mean_iou(result.pixel_iou)))
        patch, pixel = 100.0 * np.mean(draws, axis=0)
        name = "dense" if part == settings.subsample[0] else f"dense_1in{part}"
        scores |= {name: float(patch), f"{name}_pixel": float(pixel)}
        if len(draws) > 1:
            scores[f"{name}_sd"] = float(100.0 * np.std(draws, axis=0, ddof=1)[0])
    return scores


def figures(case: Case, settings: Settings) -> dict[str, Picture | Classes]:
    """{"segmentation": the first test images with true and retrieved classes; "dense_classes": IoU
    of each class and the confusion matrix of patches, if `score` was called before}."""
    train, test, classes = _parts(case, settings)
    scored: Retrieval | None = case.extracted.get(case.key_of("dense"))
    result, names = scored, case.test.mask_names
    if result is None:
        if isinstance(test.patches, Grids):
            return {}
        few = Masked(*(rows[:_SHOWN] for rows in test))
        result = _retrieved((train, few, classes), settings)
    drawn: dict[str, Picture | Classes] = {
        "segmentation": segmentation.picture(
            [case.images(case.test, [i])[0] for i in test.index[:_SHOWN]],
            {"truth": test.masks, "truth per patch": result.truth, "retrieved": result.predicted},
            title="Dense retrieval: the class of each patch from its"
            f" {settings.k} nearest training patches",
            names=names,
        )
    }
    if scored:
        title = "IoU of each class, and the predicted classes of its patches"
        counts, iou = result.patch_counts, result.patch_iou
        drawn["dense_classes"] = confusion.picture(counts, iou, names=names, title=title)
    return drawn


register_module(__name__, heading="dense mIoU", needs="masks")
