"""folder.py: masks and boxes beside the images."""

import json

import numpy as np
import pytest
from PIL import Image

from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.folder import Folder
from ssl_jax.data.source import make_source
from tests.data.records import IMAGES, MASKS, coco_json, same_record, save, xml


def write(root, images, masks):
    """{relative path: number of the image or mask} below root."""
    for path, i in images.items():
        save(root / path, IMAGES[i])
    for path, i in masks.items():
        save(root / path, MASKS[i])


LAYOUTS = {
    "images/x.png, masks/x.png": ("images/{}.png", "masks/{}.png", "masks", ""),
    "deeper": ("images/a/{}.png", "masks/a/{}.png", "masks", ""),
    "masks in one folder": ("images/a/{}.png", "masks/{}.png", "masks", ""),
    "split below": ("images/train/{}.png", "masks/train/{}.png", "masks", ""),
    "split above": ("train/images/{}.png", "train/masks/{}.png", "masks", ""),
    "beside the images": ("{}.png", "labels/{}.png", "labels", ""),
    "suffix": ("images/{}.png", "masks/{}_mask.png", "masks", "_mask"),
    "another extension": ("train/{}.png", "gt/train/{}.tif", "gt", ""),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_masks_are_found_by_stem(layout, tmp_path):
    image, mask, masks, suffix = LAYOUTS[layout]
    write(tmp_path, *({form.format(n): i for i, n in enumerate("ab")} for form in (image, mask)))
    config = dict(kind="folder", dir=tmp_path, masks=masks, mask_suffix=suffix)
    places = [masks, str(tmp_path / masks)]
    for place in places if (tmp_path / masks).is_dir() else places[:1]:
        records = make_source(config | dict(masks=place))
        assert len(records) == 2 and records.has_masks and records.mask_names is None
        for i in range(2):
            same_record(records[i], {"image": IMAGES[i], "mask": MASKS[i]})
            assert records.shape(i) == (8, 8)


def test_splits_keep_apart_what_has_the_same_name(tmp_path):
    images = {"images/train/1.png": 0, "images/val/1.png": 1}
    write(tmp_path, images, {"masks/train/1.png": 0, "masks/val/1.png": 1})
    for i, split in enumerate(("train", "val")):
        records = Folder(tmp_path, split, masks="masks")
        same_record(records[0], {"image": IMAGES[i], "mask": MASKS[i]})
    with pytest.raises(InputError, match="data.split"):
        Folder(tmp_path, "test", masks="masks")


def test_names_and_rules(tmp_path):
    write(tmp_path, {"images/1.png": 0}, {"masks/1.png": 0})
    (tmp_path / "names.txt").write_text("sky\n\nroad \ncar\n")
    config = dict(kind="folder", dir=tmp_path, masks="masks", reduce_zero_label=True)
    records = make_source(config | dict(class_names=str(tmp_path / "names.txt")))
    assert records.mask_names == ("sky", "road", "car")
    expected = np.where(MASKS[0] == 0, 255, MASKS[0].astype(int) - 1)
    np.testing.assert_array_equal(records[0]["mask"], expected)
    records = make_source(config | dict(reduce_zero_label=False, class_map=(1, 1, 0, 255)))
    np.testing.assert_array_equal(records[0]["mask"], np.array([1, 1, 0, 255])[MASKS[0]])
    with pytest.raises(InputError, match="gone.txt cannot be read"):
        make_source(config | dict(class_names=str(tmp_path / "gone.txt")))


def test_missing_masks_are_named(tmp_path):
    write(tmp_path, {f"images/{i}.png": i for i in range(5)}, {"masks/0.png": 0})
    with pytest.raises(
        InputError, match=r"data.masks: 4 of 5 images have no mask: 1.png, 2.png, 3.png and 1 more"
    ):
        Folder(tmp_path, masks="masks")
    with pytest.raises(InputError, match="data.masks: .*gone is no folder"):
        Folder(tmp_path, masks="gone")


@pytest.mark.parametrize(
    "mask, message",
    [
        (MASKS[0][:, :6], "the mask has 8x6 pixels, its image .*1.png 8x8"),
        (IMAGES[0], "has colours"),
        (np.full((8, 8), 3, np.uint8), "the value 3, which is no class"),
        (np.full((8, 8), 300, np.uint16), "must be in 0..255"),
    ],
)
def test_masks_of_the_wrong_kind(mask, message, tmp_path):
    """The first is refused at once; a later one is a record that cannot be read."""
    names = ("sky", "road", "car")
    save(tmp_path / "images/1.png", IMAGES[0])
    save(tmp_path / "masks/1.png", mask)
    with pytest.raises(InputError, match=f"data.masks: .*masks/1.png: .*{message}"):
        Folder(tmp_path, masks="masks", class_names=names)
    save(tmp_path / "images/0.png", IMAGES[0])
    save(tmp_path / "masks/0.png", MASKS[0] % 3)
    records = Folder(tmp_path, masks="masks", class_names=names)
    records[0]
    with pytest.raises(Unreadable, match=message):
        records[1]


def test_palette_masks_keep_their_numbers(tmp_path):
    save(tmp_path / "images/1.jpg", IMAGES[0])
    palette = Image.fromarray(MASKS[0])
    palette.putpalette(list(range(255, -1, -1)) * 3)
    (tmp_path / "masks").mkdir()
    palette.save(tmp_path / "masks/1.png")
    np.testing.assert_array_equal(Folder(tmp_path, masks="masks")[0]["mask"], MASKS[0])


def test_ilsvrc_boxes(tmp_path):
    """Images by class, XML files by class for training and in one folder for validation."""
    for path in ("train/n1/n1_5.JPEG", "train/n1/n1_6.JPEG", "train/n2/n2_7.JPEG"):
        save(tmp_path / path, IMAGES[0])
    for path in ("val/n1/ILSVRC2012_val_1.JPEG", "val/n2/ILSVRC2012_val_2.JPEG"):
        save(tmp_path / path, IMAGES[0])
    annotations = {
        "train/n1/n1_5": [("n1", (0, 0, 4, 8)), ("n1", (4, 4, 8, 8))],
        "train/n2/n2_7": [("n2", (2, 2, 4, 4))],
        "val/ILSVRC2012_val_2": [("n2", (1, 2, 3, 8))],
    }
    for path, objects in annotations.items():
        file = tmp_path / "boxes" / f"{path}.xml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(xml((8, 8), objects))
    config = dict(kind="folder", dir=tmp_path, boxes="boxes")
    train, val = make_source(config), make_source(config, split="val")
    assert train.class_names == train.box_names == ("n1", "n2") and train.num_box_classes == 2
    assert [len(train[i]["boxes"]) for i in range(3)] == [2, 0, 1]
    assert train[2]["label"] == 1 and train[2]["box_labels"].tolist() == [1]
    np.testing.assert_array_equal(train[0]["boxes"], [[0, 0, 4, 8], [4, 4, 4, 4]])
    np.testing.assert_array_equal(val[1]["boxes"], [[1, 2, 2, 6]])
    assert val[0]["boxes"].shape == (0, 4) and val[0]["box_labels"].shape == (0,)


def test_boxes_of_a_flat_folder(tmp_path):
    """Without folders of classes and without a file of names, the annotations name the classes."""
    for i, name in enumerate(("dog", "cat")):
        save(tmp_path / "images" / f"{i}.png", IMAGES[i])
        (tmp_path / "xml").mkdir(exist_ok=True)
        (tmp_path / "xml" / f"{i}.xml").write_text(xml((8, 8), [(name, (0, 0, 4, 4))]))
    records = Folder(tmp_path, boxes="xml")
    assert records.box_names == ("cat", "dog") and records.num_classes is None
    assert [records[i]["box_labels"].tolist() for i in range(2)] == [[1], [0]]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="data.boxes: no image has an XML file .*0.xml"):
        Folder(tmp_path, boxes="empty")


def test_boxes_in_a_coco_file(tmp_path):
    for name in "abc":
        save(tmp_path / "train" / f"{name}.jpg", IMAGES[0])
    (tmp_path / "instances_train.json").write_text(json.dumps(coco_json()))
    records = Folder(tmp_path, boxes="instances_{split}.json")
    assert records.box_names == ("person", "toothbrush")
    np.testing.assert_array_equal(records[0]["boxes"], [[2, 1, 4, 3]])
    save(tmp_path / "train" / "d.jpg", IMAGES[0])
    with pytest.raises(InputError, match="1 of 4 images have no entry in instances_.*: d.jpg"):
        Folder(tmp_path, boxes="instances_{split}.json")


FOUND = {
    "masks": ("images/{}.jpg", "masks/{}.png"),
    "annotations": ("images/{}.jpg", "annotations/{}.png"),
    "classes": ("images/a/{}.jpg", "masks/a/{}.png"),
    "split below": ("images/train/{}.jpg", "masks/train/{}.png"),
    "split above": ("train/images/{}.jpg", "train/masks/{}.png"),
}


@pytest.mark.parametrize("layout", FOUND)
def test_masks_beside_images_are_found(layout, tmp_path):
    image, mask = FOUND[layout]
    write(tmp_path, *({form.format(n): i for i, n in enumerate("ab")} for form in (image, mask)))
    records = make_source(dict(kind="folder", dir=tmp_path))
    assert len(records) == 2 and records.has_masks and records.num_classes is None
    folder = (tmp_path / mask).parent
    folder = folder.parent if layout == "classes" else folder
    assert f"masks from '{folder}'" in repr(records)
    np.testing.assert_array_equal(records[1]["mask"], MASKS[1])
    alone = make_source(dict(kind="folder", dir=tmp_path), truth=False)
    assert not alone.has_masks and alone[1].keys() == {"image"} and len(alone) == 2
    assert "masks from" not in repr(alone)


@pytest.mark.parametrize("why", ["one is missing", "two places", "colours", "another size"])
def test_masks_that_are_not_sure_are_passed_over(why, tmp_path):
    write(tmp_path, {f"images/{i}.png": i for i in range(3)}, {f"masks/{i}.png": i for i in (1, 2)})
    first = {"colours": IMAGES[0], "another size": MASKS[0][:4], "two places": MASKS[0]}
    if why in first:
        save(tmp_path / "masks/0.png", first[why])
    if why == "two places":
        write(tmp_path, {}, {f"annotations/{i}.png": i for i in range(3)})
    records = Folder(tmp_path)
    assert len(records) == 3 and not records.has_masks and records.num_classes is None
    if why == "two places":
        assert Folder(tmp_path, masks="masks").has_masks
    else:
        with pytest.raises(InputError, match=r"data.masks: .*0.png"):
            Folder(tmp_path, masks="masks")
