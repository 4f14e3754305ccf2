"""prepared.py: resizing moves everything of a record together; what is kept is read once."""

import pickle

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.prepared import Prepared
from tests.data.records import IMAGES, same_record


class Counting:
    """Counts how often a source is read, and lacks what came later."""

    num_classes, has_masks, size = None, True, None

    def __init__(self, *records):
        self.records, self.reads = records, 0

    def __len__(self):
        return len(self.records)

    def __getitem__(self, i):
        self.reads += 1
        if self.records[i] is None:
            raise Unreadable(str(i), "broken")
        return self.records[i]

    def name(self, i):
        return str(i)


def test_resizing_moves_image_mask_and_boxes_together():
    mask = np.zeros((20, 40), np.uint8)
    mask[4:10, 14:24] = 5  # inside the central square, columns 10 to 30
    image = np.repeat(mask[..., None] * np.uint8(40), 3, axis=2)
    # The second box is cut at the border, the third is outside.
    boxes = np.array([[4, 14, 6, 10], [0, 0, 20, 12], [0, 0, 5, 5]], np.float32)
    record = {"image": image, "mask": mask, "boxes": boxes, "box_labels": [3, 1, 0], "label": 2}
    records = Prepared(Counting(record), size=10)
    small = records[0]
    assert records.size == (10, 10) and small["image"].shape == (10, 10, 3) and small["label"] == 2
    np.testing.assert_array_equal(np.argwhere(small["mask"] == 5)[[0, -1]], [[2, 2], [4, 6]])
    expected = [[2, 2, 3, 5], [0, 0, 10, 1], [0, 0, 2.5, 0]]
    np.testing.assert_allclose(small["boxes"], expected, atol=1e-5)
    assert small["boxes"].dtype == np.float32 and small["box_labels"] == [3, 1, 0]
    assert small["image"][3, 4, 0] > 180 and small["image"][8, 8, 0] < 20


def test_a_cache_reads_once_protects_what_it_keeps_and_stays_home():
    counting = Counting(*[{"image": image.copy(), "label": 1} for image in IMAGES[:3]], None)
    records = Prepared(counting, cache=True)
    empty = len(pickle.dumps(records))
    for _ in range(3):
        same_record(records[2], {"image": IMAGES[2], "label": 1})
    assert counting.reads == 1
    with pytest.raises(ValueError, match="read-only"):
        records[2]["image"][0] = 0
    for _ in range(2):
        with pytest.raises(Unreadable):
            records[3]
    assert counting.reads == 3
    assert len(pickle.dumps(records)) == empty


def test_shapes_are_known_without_reading_and_fitting_images_are_left_alone():
    counting = Counting({"image": np.zeros((5, 7, 3), np.uint8)})
    assert Prepared(counting, size=4).shape(0) == (4, 4) and counting.reads == 0
    assert Prepared(counting, cache=True).shape(0) == (5, 7)
    image = IMAGES[0]
    assert Prepared(Counting({"image": image}), size=8)[0]["image"] is image
    floats = ArraySource((IMAGES / 255).astype(np.float32))
    np.testing.assert_array_equal(Prepared(floats, size=8)[1]["image"], floats[1]["image"])
    with pytest.raises(InputError, match="data.size=5: array/1"):
        Prepared(floats, size=5)[1]
