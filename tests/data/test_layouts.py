"""layouts.py: other splits and forms of the official downloads; `sets` has the usual ones."""

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data import names
from ssl_jax.data.source import make_source
from tests.data.records import png
from tests.data.sets import MAKERS, put


@pytest.fixture
def made(tmp_path):
    """made(kind, **config): a source of the set of that kind, which is written once."""

    def make(kind, **config):
        if not any(tmp_path.iterdir()):
            MAKERS[kind](tmp_path, False)
        return make_source(dict(kind=kind, dir=tmp_path) | config)

    return make


def columns(mask):
    assert (mask == mask[:1]).all()
    return mask[0].tolist()


def test_voc(made):
    val, aug = made("voc", split="val"), made("voc", split="trainaug")
    assert len(val) == 1 and columns(val[0]["mask"]) == [0] + [5] * 7
    assert aug.list_names() == ("2007_000032.jpg", "2008_000002.jpg")
    # VOC's own mask with its ignored border, where there is one
    assert [columns(record["mask"])[-1] for record in aug] == [255, 15]
    assert aug[1]["boxes"].shape == (0, 4)
    foreground = made("voc", reduce_zero_label=True)
    assert foreground.mask_names == names.VOC[1:]
    assert columns(foreground[0]["mask"]) == [255, 0, 19] + [255] * 5


@pytest.mark.parametrize(
    "kind, values, count",
    [("ade20k", (0, 1, 150), 151), ("cityscapes", (0, 3, 7, 8, 26, 33, 29), 34)],
)
def test_raw_labels_and_other_splits(kind, values, count, made):
    raw = made(kind, raw_labels=True)
    assert tuple(columns(raw[0]["mask"])[: len(values)]) == values
    assert len(raw.mask_names) == count and len(made(kind, split="val")) == 1


def test_pascal_context(made):
    images = made("pascal_context", reduce_zero_label=True)
    assert len(images.mask_names) == 59 and images.mask_names[0] == "aeroplane"
    assert columns(images[0]["mask"]) == [255, 0] + [58] * 6
    assert columns(made("pascal_context", split="val")[0]["mask"]) == [7] * 8


def test_coco(made, tmp_path):
    assert "val" in made("coco", split="val2017").annotations
    (tmp_path / "images" / "val2017").rename(tmp_path / "val2017")  # unpacked in one place
    assert len(made("coco", split="val")) == 3


def test_coco_stuff(made, tmp_path):
    raw = made("coco_stuff", raw_labels=True)
    assert columns(raw[0]["mask"])[:4] == [0, 12, 91, 181] and raw.mask_names is None
    mask = made("coco_stuff")[0]["mask"]
    known = [names.COCO_STUFF[i] for i in mask[0, :4]]
    assert known == ["person", "stop sign", "banner", "wood"]
    for name in "abc":  # as mmsegmentation's converter adds them
        path = tmp_path / "annotations" / "train2017" / f"{name}_labelTrainIds.png"
        put(path, png(mask))
        path.with_name(f"{name}.png").unlink()
    np.testing.assert_array_equal(made("coco_stuff")[0]["mask"], mask)


def test_davis(made, tmp_path):
    for split in ("2016/val", "480p/val"):  # all objects are one
        single = made("davis", split=split)
        assert dict(single.sequences) == {"bear": range(3)}
        assert columns(single[2]["mask"]) == [0] + [1] * 7
        assert single.mask_names == ("background", "object")
    assert len(made("davis", split="2017/train")) == 1
    # Test sequences have only their first frame annotated.
    (tmp_path / "DAVIS" / "Annotations" / "480p" / "cows" / "00000.png").unlink()
    assert "mask" not in made("davis", split="train")[0]


@pytest.mark.parametrize(
    "kind, missing",
    [
        ("voc", "VOCdevkit/VOC2012/SegmentationClass/2007_000033.png"),
        ("voc", "VOCdevkit/VOC2012/JPEGImages/2007_000032.jpg"),
        ("pascal_context", "VOC2010/SegmentationClassContext/2008_000002.png"),
        ("ade20k", "ADEChallengeData2016/annotations/training/ADE_train_00000001.png"),
        ("cityscapes", "gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png"),
        ("coco", "images/train2017/b.jpg"),
        ("coco_stuff", "annotations/train2017/b.png"),
    ],
)
def test_missing_files_are_named(kind, missing, made, tmp_path):
    made(kind)
    (tmp_path / missing).unlink()
    with pytest.raises(InputError, match=r"data\.\w+: 1 of \d"):
        made(kind)
