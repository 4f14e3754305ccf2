"""source.py: folders, TFDS sets written here without TensorFlow, arrays, generated pictures,
resizing and caching.
"""

import io
import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from array_record.python import array_record_module
from PIL import Image

from ssl_jax.config import InputError
from ssl_jax.data import photos, source
from ssl_jax.data.source import (
    ArraySource,
    Folder,
    GeneratedSource,
    Prepared,
    Tfds,
    Unreadable,
    make_source,
)

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), np.uint8)
LABELS = np.arange(12) % 3
MASKS = np.random.default_rng(1).integers(0, 4, (12, 8, 8), np.uint8)


def save(path, image):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def png(array):
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


def write_tfds(
    folder, name, splits, *, label=True, mask=True, key="image", size=8, file_format="array_record"
):
    """A TFDS data set folder/name/1.0.0 in ArrayRecord form. splits: {split: indices into
    IMAGES}.
    """
    from tensorflow_datasets.proto import tf_example_pb2

    place = folder / name / "1.0.0"
    place.mkdir(parents=True)
    image_class = "tensorflow_datasets.core.features.image_feature.Image"

    def feature(channels):
        shape = {"dimensions": [str(size), str(size), str(channels)]}
        return {
            "image": {"dtype": "uint8", "encodingFormat": "png", "shape": shape},
            "pythonClassName": image_class,
        }

    features = {key: feature(3)}
    if mask:
        features["segmentation_mask"] = feature(1)
    if label:
        label_class = "tensorflow_datasets.core.features.class_label_feature.ClassLabel"
        features["label"] = {"classLabel": {"numClasses": "3"}, "pythonClassName": label_class}
    nested = {"features": features}
    dict_class = "tensorflow_datasets.core.features.features_dict.FeaturesDict"
    (place / "features.json").write_text(
        json.dumps({"featuresDict": nested, "pythonClassName": dict_class})
    )
    template = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    entries = []
    for split, indices in splits.items():
        path = place / f"{name}-{split}.{file_format}-00000-of-00001"
        writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
        for i in indices:
            example = tf_example_pb2.Example()
            fields = example.features.feature
            fields[key].bytes_list.value.append(png(IMAGES[i]))
            if mask:
                fields["segmentation_mask"].bytes_list.value.append(png(MASKS[i]))
            if label:
                fields["label"].int64_list.value.append(int(LABELS[i]))
            writer.write(example.SerializeToString())
        writer.close()
        entry = {
            "filepathTemplate": template,
            "name": split,
            "numBytes": "1",
            "shardLengths": [str(len(indices))],
        }
        entries.append(entry)
    info = {"fileFormat": file_format, "name": name, "splits": entries, "version": "1.0.0"}
    (place / "dataset_info.json").write_text(json.dumps(info))


@pytest.fixture(scope="module")
def tfds_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    write_tfds(folder, "tiny_shapes", {"train": range(10), "test": [10, 11]})
    return folder


def same_record(a, b):
    assert a.keys() == b.keys()
    for key, value in a.items():
        np.testing.assert_array_equal(value, b[key])


# folders


def test_folder_with_classes(tmp_path):
    for i, name in enumerate(["b/2.png", "a/x.PNG", "b/1.webp", "c/deep/er/y.Jpeg", "a/z.jpg"]):
        save(tmp_path / name, IMAGES[i])
    for name in ["a/notes.txt", "a/.hidden.png", ".cache/x.png", "README.png.md"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"not an image")
    folder = Folder(tmp_path)
    names = [os.path.relpath(folder.name(i), tmp_path) for i in range(len(folder))]
    assert names == ["a/x.PNG", "a/z.jpg", "b/1.webp", "b/2.png", "c/deep/er/y.Jpeg"]
    assert folder.class_names == ("a", "b", "c") and folder.num_classes == 3
    assert [folder[i]["label"] for i in range(5)] == [0, 0, 1, 1, 2]
    np.testing.assert_array_equal(folder[0]["image"], IMAGES[1])
    assert not folder.has_masks and folder.size is None and "mask" not in folder[0]
    assert len(list(folder)) == 5  # iteration ends


@pytest.mark.parametrize(
    "names", [["1.png", "2.png"], ["1.png", "a/2.png", "b/3.png"], ["only/1.png", "only/2.png"]]
)
def test_folder_without_classes(names, tmp_path):
    for i, name in enumerate(names):
        save(tmp_path / name, IMAGES[i])
    folder = Folder(tmp_path)
    assert folder.num_classes is None and folder.class_names is None and len(folder) == len(names)
    assert folder[0].keys() == {"image"}


def test_folder_splits(tmp_path):
    for i, name in enumerate(["train/a/1.png", "train/b/2.png", "val/a/3.png", "val/b/4.png"]):
        save(tmp_path / name, IMAGES[i])
    train, val = (
        make_source(dict(kind="folder", dir=tmp_path, split=split)) for split in ("train", "val")
    )
    np.testing.assert_array_equal(train[1]["image"], IMAGES[1])
    np.testing.assert_array_equal(val[1]["image"], IMAGES[3])
    assert [len(s) for s in (train, val)] == [2, 2] and val[1]["label"] == 1
    with pytest.raises(
        InputError, match="data.split: .* no subfolder 'test'; subfolders: train, val"
    ):
        make_source(dict(kind="folder", dir=tmp_path, split="train"), split="test")


def test_folder_follows_links_but_not_in_circles(tmp_path):
    save(tmp_path / "elsewhere" / "1.png", IMAGES[0])
    save(tmp_path / "root" / "a" / "2.png", IMAGES[1])
    (tmp_path / "root" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "a" / "loop").symlink_to(tmp_path / "root")
    folder = Folder(tmp_path / "root")
    assert sorted(os.path.basename(folder.name(i)) for i in range(len(folder))) == [
        "1.png",
        "2.png",
    ]


@pytest.mark.parametrize("make", [lambda p: p / "gone", lambda p: p, lambda p: p / "file"])
def test_folder_that_cannot_be(make, tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "sub").mkdir()
    with pytest.raises(InputError) as caught:
        make_source(dict(kind="folder", dir=str(make(tmp_path))))
    message = str(caught.value)
    assert (
        "data.dir" in message
        and str(make(tmp_path)) in message
        and ".webp" in message
        and "\n" not in message
    )


def test_folder_needs_a_dir():
    with pytest.raises(InputError, match="data.dir is empty"):
        make_source(dict(kind="folder", dir=""))


def test_folder_names_a_broken_file(tmp_path):
    save(tmp_path / "1.png", IMAGES[0])
    (tmp_path / "2.png").write_bytes(png(IMAGES[1])[:60])
    folder = Folder(tmp_path)
    with pytest.raises(Unreadable, match="2.png"):
        folder[1]
    same_record(folder[0], {"image": IMAGES[0]})


# TFDS


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
        "import sys; from ssl_jax.data import source; source.Tfds('tiny_shapes',"
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


# arrays


def test_array_source():
    records = ArraySource(IMAGES, LABELS, MASKS)
    same_record(records[5], {"image": IMAGES[5], "label": LABELS[5], "mask": MASKS[5]})
    assert (len(records), records.size, records.num_classes, records.has_masks) == (
        12,
        (8, 8),
        3,
        True,
    )
    bare = ArraySource((IMAGES / 255).astype(np.float32))
    assert (
        bare[0].keys() == {"image"}
        and bare[0]["image"].dtype == np.float32
        and bare.num_classes is None
    )
    with pytest.raises(IndexError):
        bare[-1]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((IMAGES[0],), r"images must be .*uint8 \[8, 8, 3\]"),
        ((IMAGES[:0],), "N > 0"),
        ((IMAGES.astype(np.float64),), "float64"),
        ((IMAGES, LABELS[:5]), r"labels must be integers \[12\], got int64 \[5\]"),
        ((IMAGES, LABELS * 1.0), "labels must be integers"),
        ((IMAGES, LABELS - 1), "negative"),
        ((IMAGES, None, MASKS[:, :4]), "masks must be uint8"),
    ],
)
def test_array_source_refuses(arguments, message):
    with pytest.raises(InputError, match=message):
        ArraySource(*arguments)


# generated pictures


@pytest.mark.parametrize(
    "kind, classes, masks", [("photos", 17, False), ("photo_collages", None, True)]
)
def test_generated(kind, classes, masks):
    records = make_source(dict(kind=kind, split="test", length=10**9, size=32))
    assert (len(records), records.size, records.num_classes, records.has_masks) == (
        10**9,
        (32, 32),
        classes,
        masks,
    )
    same_record(records[123456789], getattr(photos, kind)(0, "test", 123456789, size=32))
    assert ("label" in records[0]) == (classes is not None)
    assert make_source(dict(kind=kind, length=1)).size == (64, 64)


@pytest.mark.parametrize(
    "change, key",
    [
        (dict(split="val"), "data.split"),
        (dict(length=0), "data.length"),
        (dict(size=4), "data.size"),
        (dict(size=-1), "data.size"),
    ],
)
def test_generated_refuses(change, key):
    with pytest.raises(InputError, match=key):
        make_source({**dict(kind="photos", split="train", length=5), **change})


def test_unknown_kind_names_the_nearest():
    with pytest.raises(InputError, match="data.kind: .*did you mean 'folder'"):
        make_source(dict(kind="foldr"))


# resizing and caching


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


def test_sources_know_the_names_of_their_classes(tmp_path):
    windows = Prepared(GeneratedSource("photos", "train", 2), cache=True)
    assert windows.class_names == photos.CLASS_NAMES and windows.num_classes == 17
    assert windows.mask_names is None
    collages = GeneratedSource("photo_collages", "train", 2)
    assert collages.class_names is None and collages.mask_names == photos.CLASS_NAMES
    arrays = Prepared(ArraySource(IMAGES, LABELS), size=8)
    assert arrays.class_names is None and arrays.mask_names is None


def test_cache_stays_home_when_pickled():
    records = Prepared(ArraySource(IMAGES), cache=True)
    empty = len(pickle.dumps(records))
    for i in range(12):
        records[i]
    copy = pickle.loads(pickle.dumps(records))
    assert len(pickle.dumps(records)) == empty
    same_record(copy[3], records[3])


def test_sources_pickle_and_print_stably(tfds_dir, tmp_path):
    save(tmp_path / "a" / "1.png", IMAGES[0])
    save(tmp_path / "b" / "2.png", IMAGES[1])
    everything = [
        Folder(tmp_path),
        Tfds("tiny_shapes", tfds_dir, "test"),
        ArraySource(IMAGES, LABELS, MASKS),
        GeneratedSource("photos", "train", 9, size=32),
        Prepared(Folder(tmp_path), size=6, cache=True),
    ]
    for records in everything:
        copy = pickle.loads(pickle.dumps(records))
        assert (
            repr(copy) == repr(records)
            and " at 0x" not in repr(records)
            and "\n" not in repr(records)
        )
        assert len(copy) == len(records) and copy.name(1) == records.name(1)
        same_record(copy[1], records[1])


def test_accepted_extensions_are_lower_case():
    assert all(extension == extension.lower() for extension in source.EXTENSIONS)
