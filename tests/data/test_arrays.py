"""arrays.py: records of arrays in memory; other shapes and dtypes are refused."""

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data.arrays import ArraySource
from tests.data.records import IMAGES, LABELS, MASKS, same_record

BOXES = [np.array([[0, 0, 4, 4], [1, 2, 3, 4]])] * 12


def test_boxes():
    records = ArraySource(IMAGES, boxes=BOXES, box_labels=[[0, 5]] * 12)
    assert records.has_boxes and records.num_box_classes == 6 and records.shape(3) == (8, 8)
    record = {"image": IMAGES[3], "boxes": BOXES[0], "box_labels": [0, 5]}
    same_record(records[3], record)
    assert records[3]["boxes"].dtype == np.float32
    bare = ArraySource(IMAGES, boxes=BOXES)
    assert bare.num_box_classes is None and bare[0].keys() == {"image", "boxes"}


def test_array_source():
    records = ArraySource(IMAGES, LABELS, MASKS)
    same_record(records[5], {"image": IMAGES[5], "label": LABELS[5], "mask": MASKS[5]})
    assert (len(records), records.size, records.num_classes, records.has_masks) == (
        12,
        (8, 8),
        3,
        True,
    )
    bare = ArraySource((IMAGES / 255).astype(np.float32))
    assert (
        bare[0].keys() == {"image"}
        and bare[0]["image"].dtype == np.float32
        and bare.num_classes is None
    )
    with pytest.raises(IndexError):
        bare[-1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((IMAGES[0],), r"images must be .*uint8 \[8, 8, 3\]"),
        ((IMAGES[:0],), "N > 0"),
        ((IMAGES.astype(np.float64),), "float64"),
        ((IMAGES, LABELS[:5]), r"labels must be integers \[12\], got int64 \[5\]"),
        ((IMAGES, LABELS * 1.0), "labels must be integers"),
        ((IMAGES, LABELS - 1), "negative"),
        ((IMAGES, None, MASKS[:, :4]), "masks must be uint8"),
        ((IMAGES, None, None, BOXES[:5]), "boxes must be one array for each of 12 images"),
        ((IMAGES, None, None, BOXES, [[0]] * 12), "box_labels must be one integer for each box"),
        ((IMAGES, None, None, BOXES, [[0, -1]] * 12), "box_labels must not be negative"),
        ((IMAGES, None, None, None, [[0]] * 12), "box_labels need boxes"),
    ],
)
def test_array_source_refuses(arguments, message):
    with pytest.raises(InputError, match=message):
        ArraySource(*arguments)
