"""boxes.py: XML files, COCO's JSON; hand-worked boxes."""

import json

import numpy as np
import pytest
from PIL import Image

from ssl_jax.config import InputError
from ssl_jax.data import boxes
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.source import make_source
from tests.data.records import coco_json, save, xml


def test_corners_are_cut_and_empty_boxes_left_out():
    corners = [[-2, 1, 3, 20], [4, 4, 4, 9], [0.25, 0.5, 0.75, 1.5], [30, 0, 40, 4]]
    found = boxes.from_corners(corners, [5, 6, 7, 8], (10, 12))
    np.testing.assert_array_equal(found.boxes, [[0, 1, 3, 11], [0.25, 0.5, 0.5, 1]])
    assert found.boxes.dtype == np.float32 and found.labels.tolist() == [5, 7]
    relative = boxes.from_corners([0.1, 0.5, 0.6, 1], None, (10, 20), stated=(1, 1))
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


def coco(**changes):
    return json.dumps(coco_json() | changes)


def boxed(*bbox):
    return coco(annotations=[dict(image_id=9, category_id=1, bbox=bbox)])


IMAGE = dict(id=1, file_name="a")
BROKEN = [
    ("<annotation><object>", ""),
    (xml((4, 4), [("cow", (0, 0, 1, 1))]), "cow"),
    (xml((4, 4), [("cat", ("?", 0, 1, 1))]), ""),
    (xml((4, 4), [("cat", ("nan", 0, 1, 1))]), "finite"),
    ('<?xml version="1.0" encoding="nosuch"?><annotation/>', "nosuch"),
    *((x, "") for x in ("[", "{}", '{"images": [], "annotations": [{}]}', "[1]", "[" * 10**5)),
    *((boxed(1, 2, 3, x), "") for x in (float("nan"), "4", [4], 10**400)),
    (coco(annotations="ab"), ""),
    *((coco(images=x, annotations=[]), "") for x in ([IMAGE | dict(file_name=5)], [IMAGE] * 2)),
    (coco(categories=[dict(id=1, name=None)], annotations=[]), ""),
]


@pytest.mark.parametrize("text, named", BROKEN)
def test_broken_annotations_are_named(text, named, tmp_path):
    (file := tmp_path / "a.txt").write_text(text)
    if text.startswith("<"):
        with pytest.raises(Unreadable, match=f"a.txt: .*{named}"):
            boxes.XmlBoxes([str(file)], ("cat",)).read(0, (4, 4))
        return
    for path in (file, tmp_path / "gone.json"):
        with pytest.raises(InputError, match=f"data.boxes: .*{path.name}"):
            boxes.read_coco(path)


@pytest.mark.parametrize(
    "change, named",
    [
        (dict(bbox=None), "bbox"),
        (dict(bbox=[1, 2, 3]), "bbox"),
        (dict(bbox=...), "no bbox"),
        (dict(image_id=99), "image_id 99"),
        (dict(image_id=...), "no image_id"),
        (dict(category_id=5), "category_id 5"),
    ],
)
def test_an_annotation_that_lacks_something_is_named(change, named, tmp_path):
    entry = dict(id=77, image_id=9, category_id=1, bbox=[0, 0, 2, 2]) | change
    entry = {key: value for key, value in entry.items() if value is not ...}
    (tmp_path / "a.json").write_text(coco(annotations=[entry]))
    with pytest.raises(InputError, match=f"data.boxes: .*a.json: annotation 77 .*{named}"):
        boxes.read_coco(tmp_path / "a.json")


def annotate(folder, name, pixels):
    """Of image a: a mask without EXIF, and its box as XML and in a file of COCO's."""
    save(folder / name / "a.png", pixels)
    (top, bottom), (left, right) = ((int(x.min()), int(x.max()) + 1) for x in np.nonzero(pixels))
    text = xml(pixels.shape, [("a", (top, left, bottom, right))])
    (folder / name / "a.xml").write_text(text)
    found = [dict(image_id=9, category_id=1, bbox=[left, top, right - left, bottom - top])]
    image = dict(id=9, file_name="a.png", height=len(pixels), width=pixels.shape[1])
    (folder / f"{name}.json").write_text(coco(images=[image], annotations=found))
    return [("masks", name), ("boxes", name), ("boxes", f"{name}.json")]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_what_is_said_of_the_stored_pixels_turns_with_them(orientation, tmp_path):
    stored, exif = np.zeros((6, 8), np.uint8), Image.Exif()
    stored[1:3, 4:7] = 1
    exif[0x0112] = orientation
    for name, array in (("images", 255 * np.dstack([stored] * 3)), ("own", stored)):
        save(tmp_path / name / "a.png", array, exif=exif)
    upright = (make_source(dict(kind="folder", dir=tmp_path))[0]["image"][..., 0] > 0).astype("u1")
    given = [("masks", "own"), *annotate(tmp_path, "stored", stored)]
    for key, place in given + (annotate(tmp_path, "upright", upright) if orientation > 4 else []):
        record = make_source(dict(kind="folder", dir=tmp_path) | {key: place})[0]
        for y, x, height, width in record.get("boxes", np.zeros((0, 4))).astype(int):
            record["mask"] = np.zeros_like(upright)
            record["mask"][y : y + height, x : x + width] = 1
        np.testing.assert_array_equal(record["mask"], upright, f"{key} {place}")
