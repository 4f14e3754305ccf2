"""launch/detection/agnostic.py: average precision without classes on cases worked by hand."""

import numpy as np
import pytest

from launch.detection.agnostic import agnostic_precision
from tests.scores.test_detection import FAR, SQUARES, image

AREA = (0, 300, 100, 100)
# Predictions, ignored area, VOC's AP of SQUARES at IoU .7.
AGNOSTIC = {
    "two of three": (image([SQUARES[0], FAR, SQUARES[1]], scores=[0.9, 0.8, 0.7]), [], 250 / 3),
    "classes do not count": (image(SQUARES, [1, 2], [0.9, 0.8]), [], 100),
    "found twice": (image([SQUARES[0]] * 2, scores=[0.9, 0.8]), [], 50),
    "below the threshold": (image([(0, 8, 40, 40), SQUARES[1]], scores=[0.9, 0.8]), [], 25),
    "half in an ignored area": (image([(0, 280, 20, 40), *SQUARES], scores=[9, 8, 7]), [AREA], 100),
    "less in it": (image([(0, 279, 20, 40), *SQUARES], scores=[9, 8, 7]), [AREA], 200 / 3),
    "nothing": (image([], scores=[]), [], 0),
}  # fmt: skip


@pytest.mark.parametrize("name", AGNOSTIC)
def test_without_classes_by_hand(name):
    found, ignored, expected = AGNOSTIC[name]
    crowd = np.array([False, False, *[True] * len(ignored)])
    true = image([*SQUARES, *ignored], crowd=crowd)
    empty = image([], scores=[]), image([])
    assert agnostic_precision([found, empty[0]], [true, empty[1]]) == pytest.approx(expected)


def test_without_classes_scores_of_all_images_are_ranked_together():
    found = [image([FAR], scores=[0.5]), image(SQUARES[:1], scores=[0.9])]
    true = [image(SQUARES[:1]), image(SQUARES[:1])]
    assert agnostic_precision(found, true) == pytest.approx(50)
    assert agnostic_precision(found[::-1], true[::-1]) == pytest.approx(50)
    assert agnostic_precision([found[0]._replace(scores=np.array([1.0])), found[1]], true) == 25
    for images in (true[:1], [image([])] * 2):
        with pytest.raises(ValueError):
            agnostic_precision(found, images)
    for predicted in (
        image(SQUARES),
        image(SQUARES, scores=[1]),
        image(SQUARES, scores=[1, np.nan]),
    ):
        with pytest.raises(ValueError):
            agnostic_precision([predicted], [image(SQUARES)])
