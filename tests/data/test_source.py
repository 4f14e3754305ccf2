"""source.py: the kind that a config names, and what sources of all kinds keep to."""

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.data import photos, source
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.embedded import GeneratedSource
from ssl_jax.data.folder import Folder
from ssl_jax.data.prepared import Prepared
from ssl_jax.data.source import make_source, title
from ssl_jax.data.subset import Subset
from ssl_jax.data.tfds import Tfds
from tests.data.records import IMAGES, LABELS, MASKS, png, same_record, save, write_tfds
from tests.data.test_tars import shard


def test_unknown_kind_names_the_nearest():
    with pytest.raises(InputError, match="data.kind: .*did you mean 'folder'"):
        make_source(dict(kind="foldr"))


def test_a_title_is_of_the_set_that_is_read():
    assert title("tfds", "cifar10") == "cifar10" and title("folder", "cifar10") == "folder"


def test_sources_know_the_names_of_their_classes():
    windows = Prepared(GeneratedSource("photos", "train", 2), cache=True)
    assert windows.class_names == photos.CLASS_NAMES and windows.num_classes == 17
    assert windows.mask_names is None
    collages = GeneratedSource("photo_collages", "train", 2)
    assert collages.class_names is None and collages.mask_names == photos.CLASS_NAMES
    assert collages.box_names == photos.CLASS_NAMES and collages.num_box_classes == 17
    assert collages.has_boxes and not windows.has_boxes and collages.shape(1) == (64, 64)
    assert len(collages[0]["box_labels"]) == len(collages[0]["boxes"])
    arrays = Prepared(ArraySource(IMAGES, LABELS), size=8)
    assert arrays.class_names is None and arrays.mask_names is None


def test_sources_pickle_and_print_stably(tmp_path):
    write_tfds(tmp_path / "sets", "tiny_shapes", {"train": range(10), "test": [10, 11]})
    save(tmp_path / "images" / "a" / "1.png", IMAGES[0])
    save(tmp_path / "images" / "b" / "2.png", IMAGES[1])
    everything = [
        Folder(tmp_path / "images"),
        Tfds("tiny_shapes", tmp_path / "sets", "test"),
        ArraySource(IMAGES, LABELS, MASKS),
        GeneratedSource("photos", "train", 9, size=32),
        Prepared(Folder(tmp_path / "images"), size=6, cache=True),
        Subset(ArraySource(IMAGES), [3, 1]),
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


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(kind="voc"), 'x.dir is ""; x.kind="voc" needs the folder'),
        (dict(kind="csv"), 'x.dir is ""; x.kind="csv" needs the folder'),
        (dict(kind="folder", dir="d", labels="l"), "x.labels is 'l', .* for csv, webdataset, hugg"),
        (
            dict(kind="photos", masks="m"),
            "x.masks is 'm', which means nothing for x.kind=\"photos\"",
        ),
        (dict(kind="voc", dir="d", boxes="b"), "x.boxes is 'b', .* it is for folder, tfds"),
        (dict(kind="davis", dir="d", list="l"), "x.list is 'l', which means nothing"),
        (dict(kind="folder", dir="d", class_map=(0, 300)), "integers from 0 to 255"),
        (dict(kind="folder", dir="d", class_map=("a",)), "integers from 0 to 255"),
    ],
)
def test_sections_that_cannot_work_are_refused(changes, message):
    section = config_lib.build(source.defaults())
    section.update(changes)
    with pytest.raises(InputError, match=message):
        source.check("x", section, section.dir)


def test_what_reads_masks_otherwise_prints_otherwise(tmp_path):
    """Kept features, and the masks beside them, are found by what a source prints."""
    for i in range(3):
        save(tmp_path / "images" / f"{i}.png", IMAGES[i])
        save(tmp_path / "masks" / f"{i}.png", MASKS[i])
        save(tmp_path / "other" / f"{i}.png", MASKS[i])
    write_tfds(tmp_path, "tiny_shapes", {"train": range(3)})
    folder = dict(kind="folder", dir=tmp_path, masks="masks")
    tfds = dict(kind="tfds", name="tiny_shapes", dir=tmp_path)
    rules = ({}, dict(reduce_zero_label=True), dict(class_map=(1, 0, 2, 3)), dict(ignore=3))
    for config in (folder, tfds):
        assert len({repr(make_source(config | rule)) for rule in rules}) == len(rules)
    assert repr(make_source(folder)) != repr(make_source(folder | dict(masks="other")))
    first, second = (Subset(ArraySource(IMAGES), rows) for rows in ([0, 1], [0, 2]))
    assert repr(first) != repr(second)


def test_what_reads_lists_tars_and_tables_otherwise_prints_otherwise(tmp_path):
    for i in range(2):
        save(tmp_path / f"{i}.png", IMAGES[i])
        save(tmp_path / f"m{i}.png", MASKS[i])
    (tmp_path / "x.csv").write_text("path,a,b,mask\n0.png,1,2,m0.png\n1.png,2,1,m1.png\n")
    members = {
        f"{i}.{end}": png(x) for end, x in (("png", IMAGES[0]), ("s.png", MASKS[0])) for i in "ab"
    }
    shard(
        tmp_path / "0.tar", members | {"a.json": b'{"k": 1, "l": 0}', "b.json": b'{"k": 0, "l": 0}'}
    )
    columns = dict(image=[png(IMAGES[0])] * 2, a=[0, 1], b=[1, 0], mask=[png(MASKS[0])] * 2)
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    for kind, *labels in (("csv", "a", "b"), ("webdataset", "k", "l"), ("huggingface", "a", "b")):
        config = dict(kind=kind, dir=tmp_path, masks="s.png" if kind == "webdataset" else "mask")
        ways = [dict(labels=label) for label in labels] + [dict(class_map=(1, 0, 2, 3))]
        assert len({repr(make_source(config | way)) for way in ways}) == 3, kind


@pytest.mark.parametrize("kind", ["folder", "csv", "webdataset"])
def test_an_image_that_is_too_large_is_named_by_every_kind(kind, tmp_path):
    save(tmp_path / "0.png", IMAGES[0])  # 12 x 12
    save(tmp_path / "1.png", np.zeros((30, 20, 3), np.uint8))
    (tmp_path / "list.csv").write_text("path\n0.png\n1.png\n")
    files = {f"{i}.png": (tmp_path / f"{i}.png").read_bytes() for i in (0, 1)}
    shard(tmp_path / "a.tar", files)
    section = dict(kind=kind, dir=str(tmp_path))
    opened = make_source({**section, "max_pixels": 599})
    same_record(opened[0], make_source(section)[0])
    for read in (opened.__getitem__, opened.shape):
        with pytest.raises(Unreadable, match=r"1.*: 30x20 pixels, more than data.max_pixels=599"):
            read(1)
    for limit in (600, 0):
        assert make_source({**section, "max_pixels": limit})[1]["image"].shape == (30, 20, 3)


def test_a_decode_size_is_for_images_alone(tmp_path):
    Image.new("RGB", (64, 48)).save(tmp_path / "0.jpg")
    section = dict(kind="folder", dir=str(tmp_path), decode_size=24)
    opened = make_source(section, truth=False)
    assert opened[0]["image"].shape == (24, 32, 3) and opened.shape(0) == (24, 32)
    assert make_source({**section, "size": 16})[0]["image"].shape == (16, 16, 3)
    Image.new("L", (64, 48)).save(tmp_path / "0_mask.png")
    (tmp_path / "list.csv").write_text("path,mask\n0.jpg,0_mask.png\n")
    masked = {**section, "kind": "csv"}
    assert make_source(masked)[0]["image"].shape == (48, 64, 3)  # as an evaluation has it
    with pytest.raises(InputError, match="data.decode_size=24 is for images without masks"):
        make_source(masked, truth=False)
