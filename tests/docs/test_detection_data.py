"""launch/detection/data.py and detection.toml: UAVDT's files, sets with boxes, the protocols."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from launch.detection import data as script
from launch.detection.protocols import PROTOCOLS, protocol
from ssl_jax.config import InputError
from ssl_jax.data import base

WHOLE = "2,1,10,20,30,40,1,1,1\n2,2,50,60,7,8,1,1,3\n1,1,11,21,30,40,1,2,2\n1,9,0,0,0,5,1,1,1\n"


@pytest.fixture
def uavdt(tmp_path):
    """A training sequence of two annotated frames and a test sequence of one."""
    truth = tmp_path / "UAV-benchmark-MOTD_v1.0" / "GT"
    truth.mkdir(parents=True)
    for part, sequence, text in (("train", "M0101", WHOLE), ("test", "M0203", WHOLE[:22])):
        (tmp_path / "M_attr" / part).mkdir(parents=True)
        (tmp_path / "M_attr" / part / f"{sequence}_attr.txt").write_text("1,0,0\n")
        (truth / f"{sequence}_gt_whole.txt").write_text(text)
        (tmp_path / "UAV-benchmark-M" / sequence).mkdir(parents=True)
        for frame in (1, 2):
            file = tmp_path / "UAV-benchmark-M" / sequence / f"img{frame:06}.jpg"
            Image.new("RGB", (100, 80)).save(file)
    (truth / "M0101_gt_ignore.txt").write_text("2,-1,0,0,20,20,-1,-1,-1\n3,-1,0,0,9,9,-1,-1,-1\n")
    return tmp_path


def test_uavdt_becomes_cocos_form(uavdt, tmp_path):
    out = tmp_path / "out"
    (out / "test.json").parent.mkdir()
    (out / "test.json").write_text("mine")
    with pytest.raises(InputError, match="test"):
        script.main(["uavdt", str(uavdt), str(out)])
    assert (out / "test.json").read_text() == "mine"
    (out / "test.json").unlink()
    assert script.main(["uavdt", str(uavdt), str(out)]) == 0
    train, test = (json.loads((out / f"{part}.json").read_text()) for part in ("train", "test"))
    assert [x["name"] for x in train["categories"]] == ["car", "truck", "bus"]
    assert train["images"] == [
        dict(id=1, file_name="M0101/img000001.jpg", height=80, width=100),
        dict(id=2, file_name="M0101/img000002.jpg", height=80, width=100),
    ]
    keys = ("image_id", "category_id", "bbox", "area", "iscrowd")
    assert [tuple(x[key] for key in keys) for x in train["annotations"]] == [
        (1, 2, [11, 21, 30, 40], 1200, 0),
        (2, 1, [10, 20, 30, 40], 1200, 0),
        (2, 3, [50, 60, 7, 8], 56, 0),
        (2, 1, [0, 0, 20, 20], 400, 1),
    ]
    assert [x["id"] for x in train["annotations"]] == [1, 2, 3, 4]
    assert [x["file_name"] for x in test["images"]] == ["M0203/img000002.jpg"]


@pytest.mark.parametrize(
    "file, text",
    [
        ("UAV-benchmark-MOTD_v1.0/GT/M0101_gt_whole.txt", "1,1,10,20,30,40,1,1,4"),
        ("UAV-benchmark-MOTD_v1.0/GT/M0101_gt_whole.txt", "1,1,10,20,30,40,1,1"),
        ("UAV-benchmark-MOTD_v1.0/GT/M0101_gt_ignore.txt", "1,1,10,20,30,40,1,1,x"),
        ("UAV-benchmark-MOTD_v1.0/GT/M0101_gt_whole.txt", None),
        ("UAV-benchmark-M/M0101/img000001.jpg", "no image"),
        ("M_attr/train/M0101_attr.txt", None),
    ],
)
def test_files_of_another_form_are_refused_by_name(uavdt, file, text):
    path = uavdt / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(InputError, match=path.parent.name if "attr" in file else path.name):
        script.uavdt(uavdt, "train")


def test_a_set_with_boxes_becomes_a_coco_file_and_its_images(tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    boxes, crowd = np.float32([[1, 2, 3, 4]]), np.float32([[5, 6, 7, 8]])
    of_image = dict(boxes=boxes, box_labels=np.int32([1]), crowd_boxes=crowd)
    record = dict(image=image, crowd_labels=np.int32([0]), **of_image)
    records = base.adopt([record, record, record])
    records.has_boxes, records.num_box_classes, records.box_names = True, 2, ["a", "b"]
    content = script.copied(records, tmp_path / "mine", 2)
    assert [x["name"] for x in content["categories"]] == ["a", "b"]
    assert [x["id"] for x in content["images"]] == [1, 2] and len(content["annotations"]) == 4
    first, second = content["annotations"][:2]
    assert (first["bbox"], first["category_id"], first["iscrowd"]) == ([2, 1, 4, 3], 2, 0)
    assert (second["bbox"], second["category_id"], second["iscrowd"]) == ([6, 5, 8, 7], 1, 1)
    stored = np.asarray(Image.open(tmp_path / "mine" / content["images"][0]["file_name"]))
    np.testing.assert_array_equal(stored, image)


def test_a_copy_that_was_cut_off_goes_on_and_is_of_one_source(tmp_path, monkeypatch):
    def records(value):
        image = np.full((4, 6, 3), value, np.uint8)
        made = base.adopt([dict(image=image, boxes=np.float32([[1, 2, 3, 4]]))] * 2)
        made.has_boxes = True
        return made

    def cut(image, file, *_):
        Path(file).write_bytes(b"half")
        raise OSError("the disk is full")

    folder = tmp_path / "train"
    script.copied(records(1), folder, 1)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(Image.Image, "save", cut)
        script.copied(records(1), folder)
    script.copied(records(1), folder)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "000000.png").touch()
    for other in (folder, tmp_path / "theirs"):
        with pytest.raises(InputError, match=other.name):
            script.copied(records(2), other)
    assert all(np.asarray(Image.open(x)).max() == 1 for x in sorted(folder.glob("0*.png")))


def test_a_source_without_boxes_is_refused(tmp_path):
    with pytest.raises(InputError):
        script.copied(base.adopt([dict(image=np.zeros((4, 4, 3), np.uint8))]), tmp_path / "none")


# As printed: FLSL, appendix G; iBOT's detection, which SOP and SOVE follow.
PRINTED = {
    "flsl_table1": dict(
        detector="mask", optimizer="adamw", rate=5e-5, batch=16, epochs=12.0, warmup=1000,
        steps=[8.0, 11.0], long=1333, test_short=800, score="coco",
    ),
    "flsl_table2": dict(
        detector="mask", pyramid="simple", heads="vitdet", short=[1024], long=1024,
        jitter=[0.1, 2.0], rate=1e-4, weight_decay=0.1, layer_decay=0.7, epochs=100.0, warmup=250,
    ),
    "flsl_table3": dict(
        detector="faster", pyramid="fpn", short=[528], long=1072, optimizer="sgd", rate=5e-4,
        weight_decay=1e-4, batch=16, epochs=12.0, warmup=300, steps=[8.0], score="uavdt",
    ),
    "sop_table2": dict(
        detector="mask", pyramid="fpn", blocks=[4, 6, 8, 12], rate=1e-4, weight_decay=0.05,
        layer_decay=0.75, drop_path=0.2, batch=16, epochs=12.0, steps=[8.0, 11.0], crop=True,
    ),
}  # fmt: skip


def test_protocols_have_the_same_settings_and_the_papers_values():
    kinds = {key: type(value) for key, value in PROTOCOLS["small"].items()}
    for name, settings in PROTOCOLS.items():
        assert {key: type(value) for key, value in settings.items()} == kinds, name
        assert len(settings["anchors"]) == 5 and len(settings["blocks"]) in (0, 4), name
    assert PROTOCOLS.keys() == {*PRINTED, "small"}
    for name, printed in PRINTED.items():
        assert PROTOCOLS[name] | printed == PROTOCOLS[name], name


def test_a_setting_is_changed_or_refused_by_name():
    p = protocol("small", ["rate=1", "optimizer=sgd", "blocks=[1,2,3,4]", "jitter=[]", "clip=0"])
    assert (p.rate, p.optimizer, p.blocks, p.jitter) == (1.0, "sgd", [1, 2, 3, 4], [])
    wrong = ["rate=fast", "optimizer=adam", "rates=1.0", "source=x", "batch=1.5", "crop=1"]
    wrong += ["batch=0", "epochs=-1", "anchors=[1,2]", "short=[]", "jitter=[0.1]", "rate=nan"]
    for change in wrong:
        with pytest.raises(InputError, match=change.partition("=")[0]):
            protocol("small", [change])
    with pytest.raises(InputError, match="smal"):
        protocol("smal", [])
