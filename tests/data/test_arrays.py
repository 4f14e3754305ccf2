"""arrays.py: records of arrays in memory; other shapes and dtypes are refused."""

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data.arrays import ArraySource
from tests.data.records import IMAGES, LABELS, MASKS

BOXES = [np.array([[0, 0, 4, 4], [1, 2, 3, 4]])] * 12


def test_float_images_and_boxes_without_labels_and_masks():
    bare = ArraySource((IMAGES / 255).astype(np.float32), boxes=BOXES)
    assert bare[0].keys() == {"image", "boxes"} and bare[0]["image"].dtype == np.float32
    assert bare.num_classes is None and not bare.has_masks and bare.num_box_classes is None


@pytest.mark.parametrize(
    "arguments, named",
    [
        ((IMAGES[0],), r"images .*\[8, 8, 3\]"),
        ((IMAGES[:0],), "images"),
        ((IMAGES.astype(np.float64),), "images .*float64"),
        ((IMAGES, LABELS[:5]), r"labels .*\[12\].*\[5\]"),
        ((IMAGES, LABELS * 1.0), "labels"),
        ((IMAGES, LABELS - 1), "labels .*-1"),
        ((IMAGES, LABELS + 1_000_000), "labels .*1000002"),
        ((IMAGES, None, MASKS[:, :4]), "masks"),
        ((IMAGES, None, None, BOXES[:5]), "boxes"),
        ((IMAGES, None, None, BOXES, [[0]] * 12), "box_labels"),
        ((IMAGES, None, None, BOXES, [[0, -1]] * 12), "box_labels"),
        ((IMAGES, None, None, None, [[0]] * 12), "box_labels"),
    ],
)
def test_array_source_refuses(arguments, named):
    with pytest.raises(InputError, match=named):
        ArraySource(*arguments)
