"""tars.py: WebDataset shards, read by index."""

import gzip
import io
import json
import pickle
import tarfile

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.source import make_source
from tests.data.records import IMAGES, LABELS, MASKS, png


def shard(path, members):
    """A tar of {name: bytes}."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def samples(rows, **others):
    """Members of samples; others: extension -> function of the row."""
    return {
        f"{i:03}.{extension}": make(i)
        for i in rows
        for extension, make in ({"png": lambda i: png(IMAGES[i])} | others).items()
    }


def number(i):
    return str(LABELS[i]).encode()


def opened(place, **config):
    return make_source(dict(kind="webdataset", dir=str(place), **config))


def test_shards_by_index(tmp_path):
    for n, rows in enumerate((range(4), range(4, 7))):
        shard(tmp_path / f"set-{n:04}.tar", samples(rows, cls=number))
    records = opened(tmp_path)
    assert len(records) == 7 and records.num_classes == 3 and records.class_names is None
    for i in (6, 0, 4):
        np.testing.assert_array_equal(records[i]["image"], IMAGES[i])
        assert records[i]["label"] == LABELS[i] and records.shape(i) == (8, 8)
    assert records.name(5) == f"{tmp_path}/set-0001.tar/005" and records.list_names()[6] == "006"
    copy = pickle.loads(pickle.dumps(records))
    assert repr(copy) == repr(records) and copy[3]["label"] == LABELS[3]
    assert len(opened(tmp_path / "set-0000.tar", split="train[:50%]")) == 2
    assert not records.has_masks and records[0].keys() == {"image", "label"}


def test_splits_are_names_or_folders(tmp_path):
    shard(tmp_path / "a" / "im-train-0.tar", samples(range(3)))
    shard(tmp_path / "a" / "im-val-0.tar", samples(range(3, 5)))
    shard(tmp_path / "b" / "train" / "0.tar", samples(range(3)))
    shard(tmp_path / "b" / "val" / "0.tar", samples(range(3, 5)))
    for place in (tmp_path / "a", tmp_path / "b"):
        assert (len(opened(place)), len(opened(place, split="val"))) == (3, 2)
        assert opened(place).num_classes is None
        with pytest.raises(
            InputError, match="no tar of the part 'test'; parts: train, val; a part"
        ):
            opened(place, split="test")


def test_labels_in_json_names_and_masks(tmp_path):
    def fields(i):
        return json.dumps({"label": "xyz"[LABELS[i]], "n": int(LABELS[i])}).encode()

    others = {"json": fields, "seg.png": lambda i: png(MASKS[i])}
    shard(tmp_path / "0.tar", samples(range(5), **others))
    records = opened(tmp_path)
    assert records.class_names == ("x", "y", "z") and records[4]["label"] == LABELS[4]
    np.testing.assert_array_equal(records[2]["mask"], MASKS[2])
    records = opened(tmp_path, labels="n", class_map=(1, 1, 0, 255))
    assert records.class_names is None and records[4]["label"] == LABELS[4]
    np.testing.assert_array_equal(records[2]["mask"], np.array([1, 1, 0, 255])[MASKS[2]])
    with pytest.raises(InputError, match="data.labels: no sample of .* has 'm', as extension or"):
        opened(tmp_path, labels="m")
    with pytest.raises(
        InputError, match="data.masks: no sample .*'m'; its extensions: json, png, se"
    ):
        opened(tmp_path, masks="m")


def test_samples_without_an_image_are_counted(tmp_path):
    members = samples(range(2), cls=number) | {"x.cls": b"1", ".hidden.png": b"", "d/y.txt": b""}
    shard(tmp_path / "0.tar", members)
    records = opened(tmp_path)
    assert len(records) == 2 and records.left_out == f"2 samples without an image of {tmp_path}"
    assert opened(tmp_path, size=4).left_out == records.left_out


def test_what_cannot_be(tmp_path):
    with pytest.raises(InputError, match="no tar of the part 'train'; parts: it does not exist"):
        opened(tmp_path / "gone")
    shard(tmp_path / "a" / "0.tar", samples(range(2)) | {"000.cls": b"1"})
    with pytest.raises(InputError, match=r"data.labels: 1 of 2 samples .*no label: .*0.tar/001"):
        opened(tmp_path / "a")
    whole = (tmp_path / "a" / "0.tar").read_bytes()
    for name, content in (("zip", gzip.compress(whole)), ("text", b"no tar at all" * 100)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.tar").write_bytes(content)
        with pytest.raises(
            InputError, match=r"0.tar cannot be read as a tar: .* not be compressed"
        ):
            opened(tmp_path / name)
    shard(tmp_path / "b" / "0.tar", {"0.txt": b"", "0.json": b"{"})
    with pytest.raises(InputError, match="data.labels: .*0.tar/0.json cannot be read"):
        opened(tmp_path / "b")
    shard(tmp_path / "b" / "0.tar", {"0.txt": b""})
    with pytest.raises(InputError, match=r"data.images: no sample of .*0.tar has an image .*: txt"):
        opened(tmp_path / "b")


def test_a_tar_that_changes_or_a_broken_image(tmp_path):
    path = tmp_path / "0.tar"
    shard(path, samples(range(2)) | {"2.png": b"no image"})
    records = opened(tmp_path)
    with pytest.raises(Unreadable, match="0.tar/2: not an image"):
        records[2]
    path.write_bytes(path.read_bytes()[:600])
    with pytest.raises(Unreadable, match="0.tar/001: the tar has become shorter"):
        records[1]
    path.unlink()
    with pytest.raises(Unreadable, match="0.tar/000: No such file"):
        records[0]
