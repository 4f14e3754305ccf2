"""layouts.py: tiny sets in the folders that the official downloads unpack to."""

import json

import numpy as np
import pytest
from PIL import Image

from ssl_jax.config import InputError
from ssl_jax.data import names
from ssl_jax.data.source import make_source
from tests.data.records import coco_json, save, xml

IMAGE = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
KINDS = ("voc", "pascal_context", "ade20k", "cityscapes", "coco", "coco_stuff", "davis")


def mask_of(*values):
    """A mask of 6 x 8 whose columns have these values, the last one repeated."""
    columns = [*values, *[values[-1]] * (8 - len(values))]
    return np.repeat(np.array(columns, np.uint8)[None], 6, axis=0)


def columns(mask):
    assert (mask == mask[:1]).all()
    return mask[0].tolist()


def save_palette(path, mask):
    """As VOC and DAVIS store masks: indices of colours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(mask)
    image.putpalette(np.random.default_rng(1).integers(0, 256, 768).tolist())
    image.save(path)


def lists(folder, **splits):
    folder.mkdir(parents=True, exist_ok=True)
    for split, lines in splits.items():
        (folder / f"{split}.txt").write_text("".join(f"{line}\n" for line in lines))


def voc(root):
    """VOCtrainval_11-May-2012.tar and SegmentationClassAug, whose list in DeepLab's form has
    paths."""
    place = root / "VOCdevkit" / "VOC2012"
    for name in ("2007_000032", "2007_000033", "2008_000002"):
        save(place / "JPEGImages" / f"{name}.jpg", IMAGE)
    save_palette(place / "SegmentationClass" / "2007_000032.png", mask_of(0, 1, 20, 255))
    save_palette(place / "SegmentationClass" / "2007_000033.png", mask_of(0, 5))
    save(place / "SegmentationClassAug" / "2007_000032.png", mask_of(0, 1, 20, 20))
    save(place / "SegmentationClassAug" / "2008_000002.png", mask_of(15))
    both = ("2007_000032", "2008_000002")
    aug = [f"/JPEGImages/{n}.jpg /SegmentationClassAug/{n}.png" for n in both]
    sets = place / "ImageSets" / "Segmentation"
    lists(sets, train=both[:1], val=["2007_000033"], train_aug=aug, trainval=["2007_000032"])
    (place / "Annotations").mkdir()
    (place / "Annotations" / "2007_000032.xml").write_text(
        xml((6, 8), [("aeroplane", (1, 1, 6, 8)), ("tvmonitor", (2, 3, 4, 4))])
    )
    (place / "Annotations" / "2007_000033.xml").write_text(xml((6, 8), []))


def test_voc(tmp_path):
    voc(tmp_path)
    config = dict(kind="voc", dir=tmp_path / "VOCdevkit" / "VOC2012")
    train, val = make_source(config), make_source(config, split="val")
    assert (len(train), len(val)) == (1, 1) and train.mask_names == names.VOC
    assert columns(train[0]["mask"]) == [0, 1, 20] + [255] * 5
    assert columns(val[0]["mask"]) == [0] + [5] * 7
    assert train.box_names == names.VOC[1:] and train.num_box_classes == 20
    np.testing.assert_array_equal(train[0]["boxes"], [[0, 0, 6, 8], [1, 2, 3, 2]])
    assert train[0]["box_labels"].tolist() == [0, 19]
    aug = make_source(config | dict(dir=tmp_path, split="trainaug"))
    assert aug.list_names() == ("2007_000032.jpg", "2008_000002.jpg")
    # VOC's own mask with its ignored border, where there is one
    assert [columns(aug[i]["mask"])[-1] for i in range(2)] == [255, 15]
    assert aug[1]["boxes"].shape == (0, 4)
    foreground = make_source(config | dict(reduce_zero_label=True))
    assert foreground.mask_names == names.VOC[1:]
    assert columns(foreground[0]["mask"]) == [255, 0, 19] + [255] * 5


def pascal_context(root):
    """As mmsegmentation's converter writes VOC2010."""
    place = root / "VOC2010"
    save(place / "JPEGImages" / "2008_000002.jpg", IMAGE)
    save(place / "JPEGImages" / "2008_000003.jpg", IMAGE)
    save(place / "SegmentationClassContext" / "2008_000002.png", mask_of(0, 1, 59))
    save(place / "SegmentationClassContext" / "2008_000003.png", mask_of(7))
    sets = place / "ImageSets" / "SegmentationContext"
    lists(sets, train=["2008_000002"], val=["2008_000003"])


def test_pascal_context(tmp_path):
    pascal_context(tmp_path)
    config = dict(kind="pascal_context", dir=tmp_path)
    records = make_source(config)
    assert len(records.mask_names) == 60 and records.mask_names[0] == "background"
    assert columns(records[0]["mask"]) == [0, 1] + [59] * 6
    records = make_source(config | dict(reduce_zero_label=True))
    assert len(records.mask_names) == 59 and records.mask_names[0] == "aeroplane"
    assert columns(records[0]["mask"]) == [255, 0] + [58] * 6
    assert columns(make_source(config, split="val")[0]["mask"]) == [7] * 8


def ade20k(root):
    """ADEChallengeData2016.zip."""
    place = root / "ADEChallengeData2016"
    for split, name in (("training", "ADE_train_00000001"), ("validation", "ADE_val_00000001")):
        save(place / "images" / split / f"{name}.jpg", IMAGE)
        save(place / "annotations" / split / f"{name}.png", mask_of(0, 1, 150))
    (place / "objectInfo150.txt").write_text("")


def test_ade20k(tmp_path):
    ade20k(tmp_path)
    for split in ("train", "training", "val"):
        records = make_source(dict(kind="ade20k", dir=tmp_path, split=split))
        assert len(records) == 1 and records.mask_names == names.ADE20K
        assert columns(records[0]["mask"]) == [255, 0] + [149] * 6
    raw = make_source(dict(kind="ade20k", dir=tmp_path, raw_labels=True))
    assert columns(raw[0]["mask"]) == [0, 1] + [150] * 6 and len(raw.mask_names) == 151


def cityscapes(root):
    """gtFine_trainvaltest.zip and leftImg8bit_trainvaltest.zip."""
    for split, city in (("train", "aachen"), ("train", "zurich"), ("val", "munster")):
        frame = f"{split}/{city}/{city}_000000_000019"
        save(root / "leftImg8bit" / f"{frame}_leftImg8bit.png", IMAGE)
        for what in ("labelIds", "instanceIds", "color"):
            mask = mask_of(0, 3, 7, 8, 26, 33, 29) if what == "labelIds" else mask_of(99)
            save(root / "gtFine" / f"{frame}_gtFine_{what}.png", mask)


def test_cityscapes(tmp_path):
    cityscapes(tmp_path)
    config = dict(kind="cityscapes", dir=tmp_path)
    records = make_source(config)
    assert len(records) == 2 and len(records.mask_names) == 19
    assert columns(records[1]["mask"]) == [255, 255, 0, 1, 13, 18, 255, 255]
    assert len(make_source(config, split="val")) == 1
    raw = make_source(config | dict(raw_labels=True))
    assert columns(raw[0]["mask"]) == [0, 3, 7, 8, 26, 33, 29, 29]
    assert raw.mask_names[26] == "car" and len(raw.mask_names) == 34


def coco(root):
    """train2017.zip, val2017.zip, annotations_trainval2017.zip, stuffthingmaps_trainval2017.zip in
    mmsegmentation's places."""
    (root / "annotations").mkdir()
    for split in ("train2017", "val2017"):
        for name in "abc":
            save(root / "images" / split / f"{name}.jpg", IMAGE)
            mask = mask_of(0, 12, 91, 181, 255)
            save(root / "annotations" / split / f"{name}.png", mask)
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(coco_json()))


coco_stuff = coco


def test_coco(tmp_path):
    coco(tmp_path)
    for split in ("train", "val2017"):
        records = make_source(dict(kind="coco", dir=tmp_path, split=split))
        assert len(records) == 3 and records.image_ids == (4, 9, 2) and not records.has_masks
        assert records.box_names == ("person", "toothbrush") and records.num_classes is None
        np.testing.assert_array_equal(records[0]["boxes"], [[2, 1, 4, 3]])
        assert records[0]["box_labels"].tolist() == [1] and records[2]["boxes"].shape == (0, 4)
        assert records.annotations.endswith(".json") and split[:3] in records.annotations
    (tmp_path / "images" / "train2017" / "b.jpg").unlink()
    with pytest.raises(InputError, match="1 of 3 images have no file in .*train2017: b.jpg"):
        make_source(dict(kind="coco", dir=tmp_path))


def test_coco_without_a_folder_of_images(tmp_path):
    """The zip files unpacked in one place."""
    coco(tmp_path)
    (tmp_path / "images" / "val2017").rename(tmp_path / "val2017")
    assert len(make_source(dict(kind="coco", dir=tmp_path, split="val"))) == 3


def test_coco_stuff(tmp_path):
    coco_stuff(tmp_path)
    config = dict(kind="coco_stuff", dir=tmp_path)
    records = make_source(config)
    assert len(records) == 3 and len(records.mask_names) == 171
    mask = records[0]["mask"]
    assert columns(mask) == [0, 11, 80, 170] + [255] * 4
    assert [records.mask_names[i] for i in (0, 11, 80, 170)] == [
        *("person", "stop sign", "banner", "wood")
    ]
    raw = make_source(config | dict(raw_labels=True))
    assert columns(raw[0]["mask"])[:4] == [0, 12, 91, 181] and raw.mask_names is None
    for name in "abc":  # as mmsegmentation's converter adds them
        path = tmp_path / "annotations" / "train2017" / f"{name}_labelTrainIds.png"
        save(path, mask_of(0, 11, 80, 170, 255))
        path.with_name(f"{name}.png").unlink()
    np.testing.assert_array_equal(make_source(config)[0]["mask"], mask)


def davis(root):
    """DAVIS-2017-trainval-480p.zip."""
    place = root / "DAVIS"
    for video, frames in (("bear", 3), ("dogs", 2), ("cows", 1)):
        for i in range(frames):
            save(place / "JPEGImages" / "480p" / video / f"{i:05d}.jpg", IMAGE)
            mask = mask_of(0, i + 1, 2)
            save_palette(place / "Annotations" / "480p" / video / f"{i:05d}.png", mask)
    lists(place / "ImageSets" / "2017", train=["cows"], val=["dogs", "bear"])
    lists(place / "ImageSets" / "2016", val=["bear"])
    pairs = [
        f"/JPEGImages/480p/bear/{i:05d}.jpg /Annotations/480p/bear/{i:05d}.png" for i in (0, 1)
    ]
    lists(place / "ImageSets" / "480p", val=pairs)


def test_davis(tmp_path):
    davis(tmp_path)
    records = make_source(dict(kind="davis", dir=tmp_path, split="val"))
    assert dict(records.sequences) == {"dogs": range(2), "bear": range(2, 5)} and len(records) == 5
    assert [(r["sequence"], r["frame"]) for r in records] == [
        *(("dogs", 0), ("dogs", 1), ("bear", 0), ("bear", 1), ("bear", 2))
    ]
    assert columns(records[4]["mask"]) == [0, 3] + [2] * 6 and records.mask_names is None
    assert records.name(3).endswith("bear/00001.jpg") and records.shape(3) == (6, 8)
    for split in ("2016/val", "480p/val"):  # all objects are one
        single = make_source(dict(kind="davis", dir=tmp_path / "DAVIS", split=split))
        assert dict(single.sequences) == {"bear": range(3)}
        assert columns(single[2]["mask"]) == [0] + [1] * 7
        assert single.mask_names == ("background", "object")
    assert len(make_source(dict(kind="davis", dir=tmp_path, split="2017/train"))) == 1
    # Test sequences have only their first frame annotated.
    (tmp_path / "DAVIS" / "Annotations" / "480p" / "cows" / "00000.png").unlink()
    assert "mask" not in make_source(dict(kind="davis", dir=tmp_path, split="train"))[0]


MAKERS = dict(zip(KINDS, (voc, pascal_context, ade20k, cityscapes, coco, coco_stuff, davis)))


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_folders_and_splits_are_named(kind, tmp_path):
    with pytest.raises(InputError, match="data.dir is empty"):
        make_source(dict(kind=kind, dir=""))
    with pytest.raises(InputError, match=f"data.dir: {tmp_path} has no folder"):
        make_source(dict(kind=kind, dir=tmp_path))
    with pytest.raises(InputError, match="data.dir: .*gone does not exist"):
        make_source(dict(kind=kind, dir=tmp_path / "gone"))
    MAKERS[kind](tmp_path)
    with pytest.raises(InputError, match="data.split: .*'?test'?"):
        make_source(dict(kind=kind, dir=tmp_path, split="test"))


@pytest.mark.parametrize(
    "kind, missing",
    [
        ("voc", "VOCdevkit/VOC2012/SegmentationClass/2007_000032.png"),
        ("voc", "VOCdevkit/VOC2012/JPEGImages/2007_000032.jpg"),
        ("pascal_context", "VOC2010/SegmentationClassContext/2008_000002.png"),
        ("ade20k", "ADEChallengeData2016/annotations/training/ADE_train_00000001.png"),
        ("cityscapes", "gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png"),
        ("coco_stuff", "annotations/train2017/b.png"),
    ],
)
def test_missing_files_are_named(kind, missing, tmp_path):
    MAKERS[kind](tmp_path)
    (tmp_path / missing).unlink()
    if kind == "voc":
        (tmp_path / "VOCdevkit/VOC2012/SegmentationClassAug/2007_000032.png").unlink()
    with pytest.raises(InputError, match=r"data\.\w+: 1 of \d images have no (mask|file)"):
        make_source(dict(kind=kind, dir=tmp_path))


def test_values_that_are_no_class_are_named(tmp_path):
    ade20k(tmp_path)
    place = tmp_path / "ADEChallengeData2016" / "annotations" / "training"
    save(place / "ADE_train_00000001.png", mask_of(0, 151))
    with pytest.raises(InputError, match="ADE_train_00000001.png: .*the value 151, .*no class"):
        make_source(dict(kind="ade20k", dir=tmp_path))
