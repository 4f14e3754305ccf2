"""tfds.py: sets written here without TensorFlow, read without it."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data.source import make_source
from tests.data.records import IMAGES, MASKS, same_record, write_tfds


def written(folder, *arguments, **changes):
    """A set of three records, and the config that reads it."""
    write_tfds(folder, "shapes", {"train": range(3), "test": [10, 11]}, *arguments, **changes)
    return dict(kind="tfds", name="shapes", dir=str(folder))


def test_bare_images_whose_declared_size_is_wrong(tmp_path):
    images = make_source(written(tmp_path, label=False, mask=False, size=16))
    assert images.num_classes is None and not images.has_masks and images.size is None
    same_record(images[2], {"image": IMAGES[2]})


@pytest.mark.parametrize("key, feature", [("images", "image"), ("masks", "segmentation_mask")])
@pytest.mark.parametrize("to", ["tensor", "float32"])
def test_features_that_are_no_images(key, feature, to, tmp_path):
    """Numbers outside 0..255 would wrap; an image of floats is stored as other bytes."""
    config = written(tmp_path)
    file = tmp_path / "shapes" / "1.0.0" / "features.json"
    features = json.loads(file.read_text())
    entry = features["featuresDict"]["features"][feature]
    entry["image"]["dtype"] = "float32"
    entry["image"]["shape"]["dimensions"][-1] = "1"
    if to == "tensor":
        tensor = {"dtype": "float32", "encoding": "none", "shape": entry.pop("image")["shape"]}
        entry |= {"tensor": tensor}
        entry["pythonClassName"] = entry["pythonClassName"].replace(
            "image_feature.Image", "tensor_feature.Tensor"
        )
    file.write_text(json.dumps(features))
    if key == "masks":  # what only is called so is not used
        assert not make_source(config).has_masks
    with pytest.raises(InputError, match=f"data.{key}: .*{feature}"):
        make_source({**config, key: feature})


def test_slices_and_other_splits(tmp_path):
    config = written(tmp_path)
    part, test = make_source(config, split="train[34%:67%]"), make_source(config, split="test")
    assert len(part) == 1 and len(test) == 2 and part.name(0) == "shapes/train[34%:67%]/0"
    np.testing.assert_array_equal(part[0]["image"], IMAGES[1])
    np.testing.assert_array_equal(test[1]["image"], IMAGES[11])


@pytest.mark.parametrize(
    "change, named",
    [
        (dict(name="shape"), "data.name: .*shapes"),
        (dict(name="shapes:9.9.9"), "data.name: .*shapes/1.0.0"),
        (dict(name=""), "data.name"),
        (dict(split="train[:0%]"), "data.split: .*train"),
        (dict(masks="truht"), "data.masks: .*truht"),
        (dict(boxes="things"), "data.boxes: .*things"),
        (dict(list="nameless"), "data.list"),
    ],
)
def test_what_is_not_there_is_named(change, named, tmp_path):
    with pytest.raises(InputError, match=named) as caught:
        make_source(written(tmp_path, boxes=[np.zeros((0, 4))] * 12) | change)
    assert "\n" not in str(caught.value)


def test_sets_that_cannot_be_read_are_refused(tmp_path):
    other_boxes = dict(boxes=[[[0, 0, 1, 1]]] * 12, bbox_format="REL_XYXY")
    changes = dict(images=dict(key="picture"), dir=dict(file_format="tfrecord"), boxes=other_boxes)
    for key, change in changes.items():
        with pytest.raises(InputError, match=f"data.{key}"):
            make_source(written(tmp_path / key, **change))


@pytest.mark.parametrize("module", ["tests.toy", "antigravity"])
def test_a_set_imports_nothing(tmp_path, monkeypatch, module):
    monkeypatch.delitem(sys.modules, "tests.toy", raising=False)
    config = written(tmp_path)
    (file,) = tmp_path.rglob("features.json")
    file.write_text(re.sub(r"tensorflow_[\w.]*ClassLabel", f"{module}.Feature", file.read_text()))
    with pytest.raises(InputError, match=f"{module}.Feature"):
        make_source(config)
    assert module not in sys.modules
    (tmp_path / "shapes").rename(tmp_path / "huggingface")
    with pytest.raises(InputError, match="huggingface"):
        make_source(config | {"name": "huggingface:shapes"})


def test_boxes_without_classes_and_crowds(tmp_path):
    boxes = [[[0.25, 0, 0.75, 0.5], [0.5, 0.5, 1, 1]], [], [[0, 0, 1, 1]]]
    changes = dict(boxes=[*boxes, *[[]] * 9], crowds=[[0, 1], [], [1], *[[]] * 9])
    config = written(tmp_path, **changes)
    for name in ("", "objects", "objects/bbox"):
        images = make_source(config | dict(boxes=name))
        assert images.num_box_classes is None and images.box_names is None
        np.testing.assert_array_equal(images[0]["boxes"], [[2, 0, 4, 4]])
        assert "box_labels" not in images[0] and images[2]["boxes"].shape == (0, 4)
        np.testing.assert_array_equal(images[0]["crowd_boxes"], [[4, 4, 4, 4]])
        np.testing.assert_array_equal(images[2]["crowd_boxes"], [[0, 0, 8, 8]])
        assert (
            not {"crowd_boxes", "crowd_labels"} & {*images[1]} and "crowd_labels" not in images[0]
        )


@pytest.mark.parametrize(
    "image, mask, keys",
    [
        ("image_left", "segmentation_label", {}),
        ("photo", "truth", dict(images="photo", masks="truth")),
    ],
)
def test_other_names_of_features(image, mask, keys, tmp_path):
    config = written(tmp_path, key=image, mask_key=mask)
    record = {"image": IMAGES[1], "label": 1, "mask": MASKS[1]}
    same_record(make_source(config | keys)[1], record)


def test_names_of_classes(tmp_path):
    config = written(tmp_path)
    (tmp_path / "names.txt").write_text("a\n\nb \nc\nd\n")
    config["class_names"] = str(tmp_path / "names.txt")
    images = make_source(config)
    assert images.mask_names == ("a", "b", "c", "d")
    (tmp_path / "names.txt").write_text("a\nb\n")
    with pytest.raises(InputError, match="data.masks: shapes/train/0"):
        make_source(config)
    with pytest.raises(InputError, match="gone.txt"):
        make_source(config | dict(class_names=str(tmp_path / "gone.txt")))


def test_tensorflow_is_not_loaded(tmp_path, root):
    code = (
        "import sys; from ssl_jax.data import source;"
        f" source.make_source({written(tmp_path)!r})[0]; assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
