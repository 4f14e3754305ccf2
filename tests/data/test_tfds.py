"""tfds.py: sets written here without TensorFlow, read without it; errors name what exists."""

import os
import subprocess
import sys

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data.folder import Folder
from ssl_jax.data.source import make_source
from ssl_jax.data.tfds import Tfds
from tests.data.records import IMAGES, LABELS, MASKS, same_record, save, write_tfds


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    write_tfds(folder, "tiny_shapes", {"train": range(10), "test": [10, 11]})
    return folder


def test_tfds_reads_records(tfds_dir):
    records = make_source(dict(kind="tfds", name="tiny_shapes", dir=str(tfds_dir), split="train"))
    assert (
        len(records) == 10
        and records.size == (8, 8)
        and records.num_classes == 3
        and records.has_masks
    )
    for i in (0, 7, np.int64(9)):
        same_record(records[i], {"image": IMAGES[i], "label": LABELS[i], "mask": MASKS[i]})
        assert (
            records[i]["image"].dtype == records[i]["mask"].dtype == np.uint8
            and type(records[i]["label"]) is int
        )
    assert records.name(3) == "tiny_shapes/train/3"
    with pytest.raises(IndexError):
        records[10]


def test_tfds_slices_and_split_argument(tfds_dir):
    config = dict(kind="tfds", name="tiny_shapes", dir=tfds_dir, split="train[20%:50%]")
    part, test = make_source(config), make_source(config, split="test")
    assert len(part) == 3 and len(test) == 2
    np.testing.assert_array_equal(part[0]["image"], IMAGES[2])
    np.testing.assert_array_equal(test[1]["image"], IMAGES[11])


def test_tfds_gives_the_same_samples_as_a_folder_of_index_named_pngs(tfds_dir, tmp_path):
    records = Tfds("tiny_shapes", tfds_dir, "train")
    for i in range(len(records)):
        save(tmp_path / f"{i:05d}.png", records[i]["image"])
    folder = Folder(tmp_path)
    assert len(folder) == len(records)
    for a, b in zip(folder, records, strict=True):
        np.testing.assert_array_equal(a["image"], b["image"])


def test_tfds_without_labels_and_masks(tmp_path):
    write_tfds(tmp_path, "bare", {"train": range(3)}, label=False, mask=False)
    records = Tfds("bare", tmp_path)
    assert records.num_classes is None and not records.has_masks
    same_record(records[2], {"image": IMAGES[2]})


def test_tfds_does_not_trust_a_wrong_declared_size(tmp_path):
    write_tfds(tmp_path, "wrong_size", {"train": range(2)}, size=16)
    assert Tfds("wrong_size", tmp_path).size is None


@pytest.mark.parametrize(
    "change, message",
    [
        (
            dict(name="tiny_shape"),
            "data.name: no 'tiny_shape' in .*found: tiny_shapes; did you mean 'tiny_shapes'",
        ),
        (dict(name="tiny_shapes:9.9.9"), "data.name: .*found: tiny_shapes/1.0.0"),
        (dict(name=""), "data.name is empty"),
        (dict(dir="/nowhere/at/all"), "data.dir: /nowhere/at/all does not exist"),
        (dict(split="validation"), "data.split: tiny_shapes has train, test .*not 'validation'"),
        (dict(split="train[:x%]"), "data.split: .*not 'train\\[:x%\\]'"),
        (dict(split="train[:0%]"), "data.split: 'train\\[:0%\\]' of tiny_shapes holds no record"),
    ],
)
def test_tfds_names_what_exists(change, message, tfds_dir):
    with pytest.raises(InputError, match=message) as caught:
        make_source(
            {**dict(kind="tfds", name="tiny_shapes", dir=str(tfds_dir), split="train"), **change}
        )
    assert "\n" not in str(caught.value)


BOXES = [[[0.25, 0, 0.75, 0.5], [0.5, 0.5, 1, 1]], [], [[0, 0.25, 1, 1]], [[0, 0, 1, 1]]]
LABELS_OF_BOXES = [[2, 0], [], [1], [0]]


def boxed(folder, **changes):
    write_tfds(
        folder,
        "boxed",
        {"train": range(4)},
        mask=False,
        label=False,
        **dict(boxes=BOXES, box_labels=LABELS_OF_BOXES) | changes,
    )
    return dict(kind="tfds", name="boxed", dir=folder)


def test_boxes(tmp_path):
    records = make_source(boxed(tmp_path))
    assert records.has_boxes and records.num_box_classes == 3 and not records.has_masks
    assert records.box_names == ("red", "white", "platelet")
    # (ymin, xmin, ymax, xmax) of 8 x 8 pixels
    expected = ([[2, 0, 4, 4], [4, 4, 4, 4]], np.zeros((0, 4)), [[0, 2, 8, 6]], [[0, 0, 8, 8]])
    for i, boxes in enumerate(expected):
        record = records[i]
        np.testing.assert_array_equal(record["boxes"], boxes)
        assert record["boxes"].dtype == np.float32 and record["box_labels"].dtype == np.int32
        assert record["box_labels"].tolist() == LABELS_OF_BOXES[i]
    for name in ("objects", "objects/bbox"):
        assert make_source(boxed(tmp_path / name) | dict(boxes=name)).has_boxes
    with pytest.raises(InputError, match="data.boxes: boxed has no sequence of boxes 'things'"):
        make_source(dict(kind="tfds", name="boxed", dir=tmp_path, boxes="things"))


def test_boxes_without_classes_and_crowds(tmp_path):
    records = make_source(boxed(tmp_path, box_labels=None, crowds=[[0, 1], [], [0], [1]]))
    assert records.num_box_classes is None and records.box_names is None
    np.testing.assert_array_equal(records[0]["boxes"], [[2, 0, 4, 4]])
    assert "box_labels" not in records[0] and records[3]["boxes"].shape == (0, 4)


def test_boxes_of_another_form_are_refused(tmp_path):
    with pytest.raises(InputError, match="data.boxes: .*REL_XYXY; only REL_YXYX"):
        make_source(boxed(tmp_path, bbox_format="REL_XYXY"))


@pytest.mark.parametrize(
    "image, mask, keys",
    [
        ("image", "annotation", {}),
        ("image_left", "segmentation_label", {}),
        ("photo", "truth", dict(images="photo", masks="truth")),
    ],
)
def test_other_names_of_features(image, mask, keys, tmp_path):
    write_tfds(tmp_path, "other", {"train": range(3)}, key=image, mask_key=mask)
    config = dict(kind="tfds", name="other", dir=tmp_path) | keys
    same_record(make_source(config)[1], {"image": IMAGES[1], "label": 1, "mask": MASKS[1]})
    with pytest.raises(InputError, match="data.masks: other has no feature 'truht'"):
        make_source(config | dict(masks="truht"))


def test_names_and_rules_of_masks(tmp_path):
    write_tfds(tmp_path, "other", {"train": range(3)})
    (tmp_path / "names.txt").write_text("a\nb\nc\n")
    config = dict(kind="tfds", name="other", dir=tmp_path, reduce_zero_label=True)
    records = make_source(config | dict(class_names=str(tmp_path / "names.txt")))
    assert records.mask_names == ("a", "b", "c") and records.shape(2) == (8, 8)
    expected = np.where(MASKS[2] == 0, 255, MASKS[2].astype(int) - 1)
    np.testing.assert_array_equal(records[2]["mask"], expected)
    (tmp_path / "names.txt").write_text("a\nb\n")
    with pytest.raises(InputError, match="data.masks: other/train/0: .*no class"):
        make_source(config | dict(class_names=str(tmp_path / "names.txt")))


def test_tfds_refuses_sets_without_images_or_random_access(tmp_path):
    write_tfds(tmp_path, "no_image", {"train": range(2)}, key="picture")
    with pytest.raises(
        InputError, match="data.name: no_image has no feature 'image'; its features: .*picture"
    ):
        Tfds("no_image", tmp_path)
    write_tfds(tmp_path, "sequential", {"train": range(2)}, file_format="tfrecord")
    with pytest.raises(InputError, match="data.dir: sequential .* cannot be read by index"):
        Tfds("sequential", tmp_path)


def test_tfds_does_not_load_tensorflow(tfds_dir, root):
    code = (
        "import sys; from ssl_jax.data import source, tfds; tfds.Tfds('tiny_shapes',"
        f" {str(tfds_dir)!r}, 'test')[0]; assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)


def test_real_tfds_sets():
    """CIFAR-10 and CamVid where someone has them."""
    folder = os.environ.get("SSL_JAX_DATA")
    if not folder:
        pytest.skip(
            "set SSL_JAX_DATA to a folder of TFDS sets (ArrayRecord) with cifar10 and camvid"
        )
    cifar = make_source(dict(kind="tfds", name="cifar10", dir=folder, split="test"))
    assert len(cifar) == 10000 and cifar.size == (32, 32) and cifar.num_classes == 10
    camvid = make_source(dict(kind="tfds", name="camvid", dir=folder, split="test[:10]", size=64))
    assert len(camvid) == 10 and camvid[3]["mask"].shape == (64, 64)
    assert set(np.unique(camvid[3]["mask"])) <= {*range(11), 255}
