"""source.py: the kind that a config names, and what sources of all kinds keep to."""

import pickle

import pytest

from ssl_jax.config import InputError
from ssl_jax.data import photos
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.embedded import GeneratedSource
from ssl_jax.data.folder import Folder
from ssl_jax.data.prepared import Prepared
from ssl_jax.data.source import make_source
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
