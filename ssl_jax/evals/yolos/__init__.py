"""Object detection with YOLOS (Fang et al. 2021): the pretrained encoder gets detection tokens, is
trained further on boxes with DETR's loss, and is scored by COCO's average precision (CrIBo tables 5
and 6).

Differs from the authors' code in: the images of a batch share a canvas, and boxes are shares of the
canvas instead of the image without its margin; position codes are learned on a square grid of the
same area; the margin has the mean colour. Crowd regions are neither trained on nor left out of the
score.
"""

import numpy as np
from ml_collections import ConfigDict

from ssl_jax.config import InputError
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import boxes as boxes_picture
from ssl_jax.evals.registry import BASELINES, register
from ssl_jax.evals.yolos.prediction import predict
from ssl_jax.evals.yolos.settings import PROTOCOLS, Settings
from ssl_jax.evals.yolos.training import classes_of, train
from ssl_jax.methods.pictures.base import Picture
from ssl_jax.scores import detection

_SHOWN, _LEAST_SCORE = 8, 0.5  # images in the picture, and what is drawn in them


def score(case: Case, settings: Settings) -> dict[str, float]:
    """`yolos`: AP of the test images in percent; `yolos_ap50`, `yolos_ap75`, and by size `_small`,
    `_medium`, `_large` where there are boxes of that size.

    Raises InputError for a network without weights, data without boxes, or a crop.
    """
    train_indices, test_indices = (case.chosen(name)[1] for name in ("train", "test"))
    classes = max(classes_of(case.train), classes_of(case.test))
    detector = train(case.encoder, case.train, train_indices, case.config, case.seed)
    found = predict(detector, case.test, test_indices, case.config, case.config.batch)
    case.extracted[case.own("yolos")] = found
    predicted, true, _ = found
    if not any(len(image.boxes) for image in true):
        raise InputError(f"no test image of {case.test} has a box, so there is nothing to score")
    scores = detection.average_precision(predicted, true, classes=classes)
    return {"yolos": scores.pop("ap")} | {
        f"yolos_{name.removeprefix('ap_')}": value for name, value in scores.items()
    }


def check(name: str, settings: Settings, data: ConfigDict) -> None:
    """Refuses a machine that could train but not score. Raises InputError."""
    del name, settings, data
    detection.check_installed()


def figures(case: Case, settings: Settings) -> dict[str, Picture]:
    """{"boxes": some test images with their true and predicted boxes}; nothing where this process
    has not trained the detector on images of this size."""
    found = case.extracted.get(case.own("yolos"))
    if found is None:
        return {}
    predicted, true, kept = (part[:_SHOWN] for part in found)
    return {
        "boxes": boxes_picture.picture(
            [np.asarray(case.test[i]["image"]) for i in kept],
            true,
            predicted,
            least_score=_LEAST_SCORE,
            class_names=getattr(case.test, "box_names", None),
        )
    }


register(
    "yolos",
    score,
    Settings,
    heading="YOLOS AP",
    trains=True,
    needs="boxes",
    draw=figures,
    whole=True,
    baselines=BASELINES[:1],
    protocols=PROTOCOLS,
    check=check,
    multiples=("position_size", "middle_size"),
)
