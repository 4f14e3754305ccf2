"""folder.py: which files it finds, classes, splits, masks and boxes beside the images."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.folder import Folder, parts
from ssl_jax.data.source import make_source
from ssl_jax.data.subset import Subset, sliced
from ssl_jax.views.loader import check_labels
from tests.data.records import IMAGES, MASKS, coco_json, png, same_record, save, xml
from tests.data.sets import COCO_NAMES, put


def write(root, images, masks=()):
    """{relative path: number of the image or mask} below root."""
    for path, i in images.items():
        save(root / path, IMAGES[i])
    for path, i in dict(masks).items():
        save(root / path, MASKS[i])


def files(folder, root):
    return [os.path.relpath(folder.name(i), root) for i in range(len(folder))]


@pytest.mark.parametrize(
    "names",
    [["1.png", "2.png"], ["1.png", "2.png", "a/3.png", "b/4.png"], ["only/1.png", "only/2.png"]],
)
def test_folders_without_classes(names, tmp_path):
    write(tmp_path, {name: i for i, name in enumerate(names)})
    folder = Folder(tmp_path)
    assert folder.num_classes is None and folder.class_names is None and len(folder) == len(names)
    assert folder[0].keys() == {"image"}


@pytest.mark.parametrize(
    "images, split, part",
    [
        ("Training/a/1.png Testing/a/2.png", "train", "Training"),
        ("TRAIN/1.png validation/2.png", "val", "validation"),
        ("set/train/1.png set/test/2.png", "test", "set/test"),
        ("train2017/1.png val2017/2.png", "train", "train2017"),
        ("train_images/1.png test_images/2.png", "test", "test_images"),
        ("images/train/1.png images/val/2.png labels/train/1.png", "train", "images/train"),
        ("images/train/1.png images/val/2.png", "val", "images/val"),
        ("Train/1.png train_images/2.png", "train", "Train"),
        ("train2014/1.png train2017/2.png", "train", None),
        ("valid/1.png Test/2.png", "train", None),
        ("Train/1.png TRAIN/2.png", "train", None),
    ],
)
def test_usual_names_of_parts(images, split, part, tmp_path):
    write(tmp_path, {name: i for i, name in enumerate(images.split())})
    if part:
        (name,) = files(Folder(tmp_path, split), tmp_path)
        assert name.startswith(f"{part}/") and part.split("/")[-1] in parts(dict(dir=tmp_path))
    else:
        with pytest.raises(InputError, match="data.split"):
            Folder(tmp_path, split)


def test_images_beside_classes_have_no_label(tmp_path):
    write(tmp_path, {name: i for i, name in enumerate(("a/1.png", "a/2.png", "b/1.png", "c.png"))})
    write(tmp_path, {"@eaDir/1.png/thumb.png": 0, "__MACOSX/a/1.png": 0})
    records = make_source(dict(kind="folder", dir=tmp_path, size=4))
    assert records.class_names == ("a", "b") and [r["label"] for r in records] == [0, 0, 1, -1]
    named = make_source(dict(kind="folder", dir=tmp_path, name="imagenet2012"))  # of a preset
    assert str(named) == f"{tmp_path} (train)"
    assert records.unlabelled == [3] and Subset(records, [3, 1, 3]).unlabelled == [0, 2]
    with pytest.raises(InputError, match="1 of 4 images.*c.png"):
        check_labels(records, SimpleNamespace(classes=2))


def test_masks_are_no_images(tmp_path):
    """Masks next to the images of each class, and in a class of that name."""
    places = [f"{x}/{part}/1.png" for x in "ab" for part in ("images", "masks")]
    write(tmp_path, dict.fromkeys([*places, "a/0.png", "a/Mask/0.png", "masks/other.png"], 0))
    folder = Folder(tmp_path)
    assert files(folder, tmp_path) == ["a/0.png", *places[::2], "masks/other.png"]
    assert folder.left_out == "3 masks, such as a/Mask/0.png"
    assert folder.class_names == ("a", "b", "masks")


def test_formats_and_what_is_left_out(tmp_path):
    found = ["a.bmp", "b.TIF", "c.tiff", "d.png"]
    write(tmp_path, {name: i for i, name in enumerate(found)})
    save(tmp_path / "e.tif", np.full((4, 5), 257 * 7, np.uint16))
    others = ("x.heic", "y.HEIC", "z.heic", "notes.txt", "README", "f.gif", "g.png.md")
    for name in (*others, ".hidden.png", ".cache/x.png"):
        put(tmp_path / name, b"no image")
    folder = Folder(tmp_path)
    assert files(folder, tmp_path) == [*found, "e.tif"]
    for i in range(4):
        np.testing.assert_array_equal(folder[i]["image"], IMAGES[i])
    np.testing.assert_array_equal(folder[4]["image"], np.full((4, 5, 3), 7))
    what, place = folder.left_out.split(" in ")
    counts = {"3 .heic", "1 .gif", "1 .txt", "1 .md", "1 without extension"}
    assert place == f"{tmp_path} (not read)" and counts < set(what.split(", "))
    assert make_source(dict(kind="folder", dir=tmp_path, size=4)).left_out == folder.left_out
    put(tmp_path / "only" / "1.heic", b"")
    with pytest.raises(InputError, match="1 .heic"):
        Folder(tmp_path / "only")
    write(tmp_path / "parts", {"train/1.png": 0, "car/1.png": 1, "test/1.png": 2})
    put(tmp_path / "parts" / "notes" / "x.txt", b"no image")
    others = f"the images of car next to {tmp_path / 'parts' / 'train'}"
    assert Folder(tmp_path / "parts").left_out == others


def test_links_are_followed_but_not_in_circles(tmp_path):
    write(tmp_path, {"elsewhere/1.png": 0, "root/a/2.png": 1})
    (tmp_path / "root" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "a" / "loop").symlink_to(tmp_path / "root")
    folder = Folder(tmp_path / "root")
    names = files(folder, tmp_path / "root")
    assert sorted(map(os.path.basename, names)) == ["1.png", "2.png"]
    assert folder.left_out.startswith("1 further link")


def test_names_that_are_no_utf8(tmp_path):
    odd = os.fsdecode(b"caf\xe9")
    for name, i in ((f"{odd}/1.png", 0), (f"{odd}/{odd}.png", 1), ("b/2.png", 2)):
        try:
            write(tmp_path, {f"images/{name}": i}, {f"masks/{name}": i})
        except OSError:
            pytest.skip("this file system knows only UTF-8")
    folder = Folder(tmp_path, section=dict(masks="masks"))
    assert folder.class_names == ("b", "caf\\xe9") and folder[2]["label"] == 1
    repr(folder).encode()
    np.testing.assert_array_equal(folder[2]["image"], IMAGES[1])
    assert len(sliced(folder, "train[:2]")) == 2


# Layout: (images, masks, `masks` of the config, `mask_suffix`); "": found without being named.
LAYOUTS = {
    "images/x.png, masks/x.png": ("images/{}.png", "masks/{}.png", "masks", ""),
    "masks in one folder": ("images/a/{}.png", "masks/{}.png", "masks", ""),
    "split below": ("images/train/{}.png", "masks/train/{}.png", "masks", ""),
    "split above": ("train/images/{}.png", "train/masks/{}.png", "masks", ""),
    "beside the images": ("{}.png", "labels/{}.png", "labels", ""),
    "suffix": ("images/{}.png", "masks/{}_mask.png", "masks", "_mask"),
    "another extension": ("train/{}.png", "gt/train/{}.tif", "gt", ""),
    "found": ("images/{}.png", "masks/{}.png", "", ""),
    "found annotations": ("images/{}.png", "annotations/{}.png", "", ""),
    "found in capitals": ("Images/{}.png", "Mask/{}.png", "", ""),
    "found split above": ("train/images/{}.png", "train/masks/{}.png", "", ""),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_masks_are_found_by_stem(layout, tmp_path):
    image, mask, masks, suffix = LAYOUTS[layout]
    write(tmp_path, *({form.format(n): i for i, n in enumerate("ab")} for form in (image, mask)))
    config = dict(kind="folder", dir=tmp_path, mask_suffix=suffix)
    for place in (masks, *[str(tmp_path / masks)] * bool(masks and (tmp_path / masks).is_dir())):
        records = make_source(config | dict(masks=place))
        assert len(records) == 2 and records.has_masks and records.num_classes is None
        for i in range(2):
            same_record(records[i], {"image": IMAGES[i], "mask": MASKS[i]})
    if not masks:
        alone = make_source(config, truth=False)
        assert not alone.has_masks and alone[1].keys() == {"image"} and len(alone) == 2


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
        assert Folder(tmp_path, section=dict(masks="masks")).has_masks
    else:
        with pytest.raises(InputError, match="data.masks: .*0.png"):
            Folder(tmp_path, section=dict(masks="masks"))


def test_masks_in_gif_are_refused_where_they_are_found(tmp_path):
    write(
        tmp_path, {f"images/{i}.png": i for i in range(3)}, {f"masks/{i}.gif": i for i in range(3)}
    )
    with pytest.raises(InputError, match="GIF .*PNG"):
        Folder(tmp_path)


def test_splits_keep_apart_what_has_the_same_name(tmp_path):
    images = {"images/train/1.png": 0, "images/val/1.png": 1}
    write(tmp_path, images, {"masks/train/1.png": 0, "masks/val/1.png": 1})
    for i, split in enumerate(("train", "val")):
        record = Folder(tmp_path, split, dict(masks="masks"))[0]
        same_record(record, {"image": IMAGES[i], "mask": MASKS[i]})
    with pytest.raises(InputError, match="data.split"):
        Folder(tmp_path, "test", dict(masks="masks"))


def test_missing_masks_are_named(tmp_path):
    write(tmp_path, {f"images/{i}.png": i for i in range(5)}, {"masks/0.png": 0})
    with pytest.raises(InputError, match="data.masks: 4 of 5 .* 1.png, 2.png, 3.png and 1 more"):
        Folder(tmp_path, section=dict(masks="masks"))
    with pytest.raises(InputError, match="data.masks: .*gone"):
        Folder(tmp_path, section=dict(masks="gone"))


@pytest.mark.parametrize(
    "mask, named",
    [
        (MASKS[0][:, :6], "6x8 .*8x8"),
        (IMAGES[0], "RGB"),
        (np.full((8, 8), 3, np.uint8), "3"),
        (np.full((8, 8), 300, np.uint16), "300"),
    ],
)
def test_masks_of_the_wrong_kind(mask, named, tmp_path):
    """The first is refused at once; a later one is a record that cannot be read."""
    (tmp_path / "names.txt").write_text("sky\nroad\ncar\n")
    section = dict(masks="masks", class_names=tmp_path / "names.txt")
    write(tmp_path, {"images/1.png": 0})
    save(tmp_path / "masks/1.png", mask)
    with pytest.raises(InputError, match=f"data.masks: .*masks/1.png: .*{named}"):
        Folder(tmp_path, section=section)
    write(tmp_path, {"images/0.png": 0})
    save(tmp_path / "masks/0.png", MASKS[0] % 3)
    records = Folder(tmp_path, section=section)
    records[0]
    with pytest.raises(Unreadable, match=f"masks/1.png: .*{named}"):
        records[1]


def test_boxes_of_ilsvrcs_validation_set(tmp_path):
    write(tmp_path, {f"val/n{i}/ILSVRC2012_val_{i}.JPEG": i for i in (1, 2)})
    put(tmp_path / "boxes/val/ILSVRC2012_val_2.xml", xml((8, 8), [("n2", (1, 2, 3, 8))]))
    records = make_source(dict(kind="folder", dir=tmp_path, split="val", boxes="boxes"))
    np.testing.assert_array_equal(records[1]["boxes"], [[1, 2, 2, 6]])
    assert records[0]["boxes"].shape == (0, 4) and records[0]["box_labels"].shape == (0,)
    assert records[1]["box_labels"].tolist() == [1]


def test_boxes_of_a_flat_folder(tmp_path):
    """The annotations name the classes."""
    for i, name in enumerate(("dog", "cat")):
        put(tmp_path / "images" / f"{i}.png", png(IMAGES[i]))
        put(tmp_path / "xml" / f"{i}.xml", xml((8, 8), [(name, (0, 0, 4, 4))]))
    records = Folder(tmp_path, section=dict(boxes="xml"))
    assert records.box_names == ("cat", "dog") and records.num_classes is None
    assert [records[i]["box_labels"].tolist() for i in range(2)] == [[1], [0]]
    for i in range(2):  # folders that are no classes of these boxes
        put(tmp_path / "images" / f"scene{i}" / f"{i}.png", png(IMAGES[i]))
        (tmp_path / "images" / f"{i}.png").unlink()
    records = Folder(tmp_path, section=dict(boxes="xml"))
    assert records.box_names == ("cat", "dog") and records.class_names == ("scene0", "scene1")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="data.boxes: .*0.xml"):
        Folder(tmp_path, section=dict(boxes="empty"))


def test_boxes_in_a_coco_file(tmp_path):
    write(tmp_path, {f"train/{name}.jpg": 0 for name in "abc"})
    put(tmp_path / "instances_train.json", json.dumps(coco_json()))
    records = Folder(tmp_path, section=dict(boxes="instances_{split}.json"))
    assert records.box_names == COCO_NAMES
    np.testing.assert_array_equal(records[0]["boxes"], [[2, 1, 4, 3]])
    np.testing.assert_array_equal(records[0]["crowd_boxes"], [[0, 0, 8, 8]])
    write(tmp_path, {"train/d.jpg": 0})
    with pytest.raises(InputError, match="1 of 4 .*d.jpg"):
        Folder(tmp_path, section=dict(boxes="instances_{split}.json"))
    (tmp_path / "train" / "d.jpg").unlink()
    (tmp_path / "train").rename(tmp_path / "train2017")
    (tmp_path / "instances_train.json").rename(tmp_path / "instances_train2017.json")
    assert Folder(tmp_path, section=dict(boxes="instances_{split}.json")).has_boxes


def test_boxes_of_equal_stems(tmp_path):
    """`number.png` and `number.jpg` have their own boxes; the file states a larger image."""
    write(tmp_path, {"0.jpg": 0, "0.png": 0})
    images = [dict(id=i, file_name=f"0.{end}") for i, end in enumerate(("jpg", "png"))]
    images[1] |= dict(height=16, width=16)
    boxes = [dict(image_id=i, category_id=1, bbox=[2 * i, 4, 2, 2]) for i in range(2)]
    content = dict(images=images, annotations=boxes, categories=[dict(id=1, name="a")])
    put(tmp_path / "all.json", json.dumps(content))
    records = Folder(tmp_path, section=dict(boxes="all.json"))
    np.testing.assert_array_equal(records[0]["boxes"], [[4, 0, 2, 2]])
    np.testing.assert_array_equal(records[1]["boxes"], [[2, 1, 1, 1]])
    images[1] |= dict(height=16, width=24)  # of another image
    images[0] |= dict(height=None, width="8")
    put(tmp_path / "all.json", json.dumps(content))
    records = Folder(tmp_path, section=dict(boxes="all.json"))
    np.testing.assert_array_equal(records[1]["boxes"], [[4, 2, 2, 2]])


def test_a_missing_mask_is_not_that_of_another_image(tmp_path):
    write(tmp_path, {"images/a/0.png": 0, "images/b/0.png": 1}, {"masks/a/0.png": 0})
    with pytest.raises(InputError, match="data.masks: 1 of 2 .*b/0.png"):
        Folder(tmp_path, section=dict(masks="masks"))
