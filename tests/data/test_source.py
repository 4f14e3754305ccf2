"""source.py: the kind that a config names, and what sources of all kinds keep to."""

import pickle

import pytest

from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.data import photos, source
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.embedded import GeneratedSource
from ssl_jax.data.folder import Folder
from ssl_jax.data.prepared import Prepared
from ssl_jax.data.source import make_source
from ssl_jax.data.subset import Subset
from ssl_jax.data.tfds import Tfds
from tests.data.records import IMAGES, LABELS, MASKS, same_record, save, write_tfds


def test_unknown_kind_names_the_nearest():
    with pytest.raises(InputError, match="data.kind: .*did you mean 'folder'"):
        make_source(dict(kind="foldr"))


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
