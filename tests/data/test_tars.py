"""tars.py: WebDataset shards, read by index."""

import gzip
import os
import tarfile

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.source import make_source
from tests.data.records import IMAGES, LABELS, png, shard
from tests.data.sets import put


def samples(rows, labels=True):
    """Members of samples with an image and a number."""
    members = {f"{i:03}.png": png(IMAGES[i]) for i in rows}
    return members | {f"{i:03}.cls": str(LABELS[i]) for i in rows if labels}


def opened(place, **config):
    return make_source(dict(kind="webdataset", dir=str(place), **config))


def test_labels_in_members_and_names(tmp_path):
    shard(tmp_path / "set-0000.tar", samples(range(4)))
    shard(tmp_path / "set-0001.tar", samples(range(4, 7)))
    images = opened(tmp_path)
    assert [record["label"] for record in images] == LABELS[:7].tolist()
    assert images.num_classes == 3 and images.class_names is None and not images.has_masks
    assert images.name(5) == f"{tmp_path}/set-0001.tar/005" and images.list_names()[6] == "006"
    assert len(opened(tmp_path / "set-0000.tar")) == 4


def test_splits_are_names_or_folders(tmp_path):
    for path in ("a/im-train-0.tar", "b/train/0.tar"):
        shard(tmp_path / path, samples(range(3), labels=False))
    for path in ("a/im-val-0.tar", "b/val/0.tar"):
        shard(tmp_path / path, samples(range(3, 5), labels=False))
    (tmp_path / "c").mkdir()
    for name, other in {"Train-0": "im-train-0", "Validation-0": "im-val-0"}.items():
        (tmp_path / "c" / f"{name}.tar").symlink_to(tmp_path / "a" / f"{other}.tar")
    for name, other in {"train000": "im-train-0", "._train000": "c", "val2017": "im-val-0"}.items():
        put(tmp_path / "d" / f"{name}.tar", b"")
        (tmp_path / "d" / f"{name}.tar").unlink()
        (tmp_path / "d" / f"{name}.tar").symlink_to(tmp_path / "a" / f"{other}.tar")
    for place in map(tmp_path.joinpath, "abcd"):
        assert (len(opened(place)), len(opened(place, split="val"))) == (3, 2)
        assert opened(place).num_classes is None
        with pytest.raises(InputError, match="(?i)train, val"):
            opened(place, split="test")


@pytest.mark.parametrize("texts", [("17", "1000003"), ("3", "5000000000"), ("1", "\u00b2")])
def test_ids_and_other_digits_are_numbered(texts, tmp_path):
    labels = {f"{i:03}.cls": text for i, text in enumerate((*texts, texts[0]))}
    shard(tmp_path / "0.tar", samples(range(3), labels=False) | labels)
    images = opened(tmp_path)
    assert images.class_names == texts and [record["label"] for record in images] == [0, 1, 0]


def test_samples_without_a_label(tmp_path):
    """Of a sample with two labels, the one in `cls` counts."""
    labels = {"000.json": '{"label": 2}', "000.cls": "1", "001.json": '{"category": {"a": 1}}'}
    labels |= {"002.cls": "-1", "004.json": '{"class": 1.0}', "003.json": '{"class": [], "cls": 3}'}
    shard(tmp_path / "0.tar", samples(range(5), labels=False) | labels)
    images = opened(tmp_path)
    assert [record.get("label") for record in images] == [1, -1, -1, 3, 1]
    assert images.unlabelled == [1, 2]


def test_samples_without_an_image_are_counted(tmp_path):
    shard(tmp_path / "0.tar", samples(range(2)) | {"x.cls": "1", ".hidden.png": "", "d/y.txt": ""})
    images = opened(tmp_path)
    assert len(images) == 2 and images.left_out == f"2 samples without an image in {tmp_path}"
    assert opened(tmp_path, size=4).left_out == images.left_out


def linked(path, *links):
    """Adds links (name, target, type) to a tar."""
    with tarfile.open(path, "a") as tar:
        for name, target, kind in links:
            info = tarfile.TarInfo(name)
            info.linkname, info.type = target, kind
            tar.addfile(info)


def test_links_are_the_files_that_they_name(tmp_path):
    hard, soft = tarfile.LNKTYPE, tarfile.SYMTYPE
    shard(tmp_path / "0.tar", {f"./a/{name}": x for name, x in samples(range(3)).items()})
    links = [("./b/3.png", "../c/4.png", soft), ("./b/3.cls", "../a/002.cls", soft)]
    links += [("./c/4.png", "./a/001.png", hard), ("./c/5.png", "5.png", soft)]
    linked(tmp_path / "0.tar", *links, ("c/6.png", "a/7.png", hard), ("d", "", tarfile.DIRTYPE))
    images = opened(tmp_path)
    assert [record.get("label") for record in images] == [*LABELS[:3].tolist(), LABELS[2], -1]
    for i, image in enumerate((0, 1, 2, 1, 1)):
        np.testing.assert_array_equal(images[i]["image"], IMAGES[image])
    assert images.left_out.startswith("2 members")


@pytest.mark.parametrize("name", ["001.png", "001.cls", "001.PNG"])
def test_a_member_that_is_there_twice(name, tmp_path):
    shard(tmp_path / "0.tar", samples(range(3)))
    readme = ("README.md", "", tarfile.REGTYPE)  # of no sample
    linked(tmp_path / "0.tar", readme, readme)
    assert len(opened(tmp_path)) == 3
    linked(tmp_path / "0.tar", (name, "000.png", tarfile.REGTYPE))
    with pytest.raises(InputError, match=f"data.dir: .*0.tar .*{name}"):
        opened(tmp_path)


def header(size, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo("000.cls")
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


_KINDS = (tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME)


@pytest.mark.parametrize(
    "members, named",
    [
        ({"0.txt": "", "0.json": "{"}, "data.labels: .*0.tar/0.json"),
        ({"0.txt": "", "0.json": "[" * 10**5}, "data.labels: .*0.tar/0.json"),
        ({"0.txt": ""}, "data.images: .*0.tar .*txt"),
        # Members whose size is a lie.
        *((header(2**33, kind), "0.tar") for kind in _KINDS),
        *((header(*lie), "0.tar") for lie in ((-512,), (0, tarfile.GNUTYPE_SPARSE))),
    ],
)
def test_tars_that_cannot_be(members, named, tmp_path):
    lies = isinstance(members, bytes)
    shard(tmp_path / "0.tar", samples(range(2), labels=False) if lies else members)
    if lies:
        content = (tmp_path / "0.tar").read_bytes()[:2048]  # of one block and its header each
        (tmp_path / "0.tar").write_bytes(content + members)
        os.truncate(tmp_path / "0.tar", 2**34)  # takes no place on the disk
    with pytest.raises(InputError, match=named):
        opened(tmp_path)


def test_tars_that_change_or_are_none(tmp_path):
    path = tmp_path / "0.tar"
    shard(path, samples(range(2)))
    images = opened(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:600])
    with pytest.raises(Unreadable, match="0.tar/001"):
        images[1]
    path.unlink()
    with pytest.raises(Unreadable, match="0.tar/000"):
        images[0]
    for content in (gzip.compress(whole), b"no tar at all" * 100):
        path.write_bytes(content)
        with pytest.raises(InputError, match="0.tar"):
            opened(tmp_path)
