"""Object detection with YOLOS (Fang et al. 2021): detection tokens are added to the pretrained
encoder, which is fine-tuned on boxes with DETR's loss and scored by COCO's average precision (CrIBo
tables 5 and 6).

Differences from the authors' code: boxes are relative to the canvas that the images of a batch
share, not to the image without its margin; the margin has the mean colour. Crowds are left out of
training, and predictions in them count neither as right nor as wrong, as in COCO.
"""

import numpy as np
from ml_collections import ConfigDict

from ssl_jax.config import InputError
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import boxes as boxes_picture
from ssl_jax.evals.registry import BASELINES, register_module
from ssl_jax.evals.yolos.prediction import predict
from ssl_jax.evals.yolos.settings import PROTOCOLS, Settings
from ssl_jax.evals.yolos.training import train
from ssl_jax.methods.pictures.base import Picture
from ssl_jax.scores import detection

__all__ = ["PROTOCOLS", "Settings", "check", "figures", "score"]
_SHOWN, _LEAST_SCORE = 8, 0.5  # of the picture: images, least score of drawn predictions


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Average precision on the test images in percent: `yolos`; `yolos_ap50`, `yolos_ap75`; and
    `yolos_small`, `yolos_medium`, `yolos_large` if there are boxes of that size.
    """
    train_records, test_records = case.boxed("train"), case.boxed("test")
    classes, others = (source.num_box_classes or 1 for source in (case.train, case.test))
    detector = train(case.network.encoder, train_records, classes, settings, case.seed)
    results = predict(detector, test_records, settings)
    case.extracted[case.key_of("yolos")] = results
    predicted, true, _ = results
    if all(np.all(image.crowd) for image in true):
        raise InputError(f"no test image of {case.test} has a box, so there is nothing to score")
    scores = detection.average_precision(predicted, true, classes=max(classes, others))
    return {"yolos": scores.pop("ap")} | {
        f"yolos_{name.removeprefix('ap_')}": value for name, value in scores.items()
    }


def check(name: str, settings: Settings, data: ConfigDict) -> None:
    """Raises InputError if the library that computes the score is not installed."""
    del name, settings, data
    detection.check_installed()


def figures(case: Case, settings: Settings) -> dict[str, Picture]:
    """{"boxes": some test images with their true and predicted boxes}; {} unless this process has
    trained the detector on images of this size."""
    results = case.extracted.get(case.key_of("yolos"))
    if results is None:
        return {}
    predicted, true, numbers = (part[:_SHOWN] for part in results)
    return {
        "boxes": boxes_picture.picture(
            [np.asarray(case.test[i]["image"]) for i in numbers],
            true,
            predicted,
            least_score=_LEAST_SCORE,
            class_names=case.test.box_names,
        )
    }


register_module(
    __name__,
    heading="YOLOS AP",
    trains=True,
    needs="boxes",
    rgb=True,
    whole=True,
    baselines=BASELINES[:1],
    multiples=("position_size", "middle_size"),
)
