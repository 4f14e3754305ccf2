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
    """Counts how often a source is read."""

    num_classes, has_masks, size = None, True, None

    def __init__(self, records):
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


def test_resize_moves_image_mask_and_boxes_together():
    mask = np.zeros((20, 40), np.uint8)
    mask[4:10, 14:24] = 5  # inside the central square, columns 10 to 30
    image = np.repeat(mask[..., None] * np.uint8(40), 3, axis=2)
    boxes = np.array([[4, 14, 6, 10], [0, 0, 20, 12], [0, 0, 5, 5]], np.float32)
    records = Prepared(
        Counting([{"image": image, "mask": mask, "boxes": boxes, "label": 2}]), size=10
    )
    record = records[0]
    assert (
        records.size == (10, 10) and record["image"].shape == (10, 10, 3) and record["label"] == 2
    )
    np.testing.assert_array_equal(np.argwhere(record["mask"] == 5)[[0, -1]], [[2, 2], [4, 6]])
    np.testing.assert_allclose(
        record["boxes"], [[2, 2, 3, 5], [0, 0, 10, 1], [0, 0, 2.5, 0]], atol=1e-5
    )
    assert record["image"][3, 4, 0] > 180 and record["image"][8, 8, 0] < 20


def test_size_leaves_fitting_images_alone():
    image = IMAGES[0]
    assert Prepared(Counting([{"image": image}]), size=8)[0]["image"] is image


def test_cache_reads_once_and_protects_what_it_keeps():
    counting = Counting([{"image": image.copy(), "label": 1} for image in IMAGES[:3]] + [None])
    records = Prepared(counting, cache=True)
    for _ in range(3):
        same_record(records[2], {"image": IMAGES[2], "label": 1})
    assert counting.reads == 1
    with pytest.raises(ValueError, match="read-only"):
        records[2]["image"][0] = 0
    for _ in range(2):
        with pytest.raises(Unreadable):
            records[3]
    assert counting.reads == 3


def test_cache_stays_home_when_pickled():
    records = Prepared(ArraySource(IMAGES), cache=True)
    empty = len(pickle.dumps(records))
    for i in range(12):
        records[i]
    copy = pickle.loads(pickle.dumps(records))
    assert len(pickle.dumps(records)) == empty
    same_record(copy[3], records[3])


def test_boxes_keep_their_classes_and_the_source_its_facts():
    boxes = [np.array([[0, 0, 4, 4], [4, 4, 4, 4]]), np.zeros((0, 4))]
    images = np.stack([np.zeros((8, 16, 3), np.uint8)] * 2)
    source = ArraySource(images, boxes=boxes, box_labels=[[3, 1], []])
    records = Prepared(source, size=4, cache=True)
    assert records.has_boxes and records.num_box_classes == 4 and not records.has_masks
    # The central square is columns 4 to 12, at half the size: the first box is outside.
    np.testing.assert_array_equal(records[0]["boxes"], [[0, 0, 2, 0], [2, 0, 2, 2]])
    assert records[0]["box_labels"].tolist() == [3, 1]
    assert records[1]["boxes"].shape == (0, 4) and records[1]["boxes"].dtype == np.float32


def test_shape():
    counting = Counting([{"image": np.zeros((5, 7, 3), np.uint8)}])
    assert Prepared(counting, size=4).shape(0) == (4, 4) and counting.reads == 0
    assert Prepared(counting, cache=True).shape(0) == (5, 7)  # the source has no cheaper way
    assert not Prepared(counting, size=4).has_boxes  # nor does it know of boxes


def test_float_images_are_not_resized():
    floats = ArraySource((IMAGES / 255).astype(np.float32))
    side = IMAGES.shape[1]
    np.testing.assert_array_equal(Prepared(floats, size=side)[1]["image"], floats[1]["image"])
    with pytest.raises(InputError, match="data.size=5: array/1 is float32, .* only uint8"):
        Prepared(floats, size=5)[1]
