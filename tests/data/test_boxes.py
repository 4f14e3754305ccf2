"""boxes.py: XML files, COCO's JSON; hand-worked boxes."""

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data import boxes
from ssl_jax.data.decode import Unreadable
from tests.data.records import xml


def test_corners_are_cut_and_empty_boxes_left_out():
    corners = [[-2, 1, 3, 20], [4, 4, 4, 9], [0.25, 0.5, 0.75, 1.5], [30, 0, 40, 4]]
    found = boxes.from_corners(corners, [5, 6, 7, 8], (10, 12))
    np.testing.assert_array_equal(found.boxes, [[0, 1, 3, 11], [0.25, 0.5, 0.5, 1]])
    assert found.boxes.dtype == np.float32 and found.labels.tolist() == [5, 7]
    relative = boxes.from_corners([0.1, 0.5, 0.6, 1], None, (10, 20), scale=(10, 20))
    np.testing.assert_allclose(relative.boxes, [[1, 10, 5, 10]], atol=1e-6)
    assert relative.labels is None
    none = boxes.from_corners([], [], (3, 3))
    assert none.boxes.shape == (0, 4) and none.labels.shape == (0,)


def test_xml(tmp_path):
    path = str(tmp_path / "a.xml")
    (tmp_path / "a.xml").write_text(xml((10, 20), [("cat", (3, 2, 5, 9)), ("dog", (1, 1, 10, 20))]))
    found = boxes.XmlBoxes([path, None], ("dog", "cat")).read(0, (10, 20))
    np.testing.assert_array_equal(found.boxes, [[3, 2, 2, 7], [1, 1, 9, 19]])
    assert found.labels.tolist() == [1, 0]
    # VOC counts rows and columns from 1, the last ones belong to the box.
    voc = boxes.XmlBoxes([path], ("dog", "cat"), first_pixel=1).read(0, (10, 20))
    np.testing.assert_array_equal(voc.boxes, [[2, 1, 3, 8], [0, 0, 10, 20]])
    # The file speaks of an image twice as large.
    half = boxes.XmlBoxes([path], ("dog", "cat")).read(0, (5, 10))
    np.testing.assert_array_equal(half.boxes, [[1.5, 1, 1, 3.5], [0.5, 0.5, 4.5, 9.5]])
    nothing = boxes.XmlBoxes([path, None], ("dog", "cat")).read(1, (10, 20))
    assert nothing.boxes.shape == (0, 4) and nothing.labels.dtype == np.int32


@pytest.mark.parametrize(
    "text, named",
    [
        ("<annotation><object>", ""),
        (xml((4, 4), [("cow", (0, 0, 1, 1))]), "cow"),
        (xml((4, 4), [("cat", ("?", 0, 1, 1))]), ""),
    ],
)
def test_broken_xml_is_unreadable(text, named, tmp_path):
    (tmp_path / "a.xml").write_text(text)
    with pytest.raises(Unreadable, match=f"a.xml: .*{named}"):
        boxes.XmlBoxes([str(tmp_path / "a.xml")], ("cat",)).read(0, (4, 4))


@pytest.mark.parametrize("text", ["[", "{}", '{"images": [], "annotations": [{}]}', "[1]"])
def test_other_json_is_refused(text, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match="data.boxes: .*x.json"):
        boxes.read_coco(tmp_path / "x.json")
    with pytest.raises(InputError, match="gone.json"):
        boxes.read_coco(tmp_path / "gone.json")
