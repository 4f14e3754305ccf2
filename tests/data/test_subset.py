"""subset.py: lists of names and slices that restrict a set."""

import unicodedata

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.source import make_source
from ssl_jax.data.subset import Subset, boxes_like, numbered_alike, sliced
from tests.data.records import IMAGES, MASKS, same_record, save


@pytest.fixture
def images(tmp_path):
    """As ImageNet: the class is part of the name."""
    for i, name in enumerate(("n1/n1_1.JPEG", "n1/n1_2.JPEG", "n2/n2_1.JPEG", "n3/n3_7.JPEG")):
        save(tmp_path / "set" / "train" / name, IMAGES[i])
        save(tmp_path / "set" / "val" / name, IMAGES[i + 4])
    return tmp_path / "set"


def listed(images, *lines, **config):
    (images.parent / "list.txt").write_text("\n".join(lines) + "\n")
    config = dict(kind="folder", dir=str(images)) | config
    return make_source(config | dict(list=str(images.parent / "list.txt")))


@pytest.mark.parametrize(
    "lines", [("n3_7.JPEG", "n1_2.JPEG", "", "n1_2.JPEG"), ("n3/n3_7", "n1/n1_2  ")]
)
def test_a_list_restricts_a_folder(lines, images):
    records, whole = listed(images, *lines), make_source(dict(kind="folder", dir=str(images)))
    assert (len(records), len(whole)) == (2, 4)
    assert records.num_classes == 3 and records.class_names == whole.class_names
    for i, j in enumerate((1, 3)):
        same_record(records[i], whole[j])
    # The test part has a list of its own, or none.
    test = make_source(dict(kind="folder", dir=str(images), list="x"), split="val", list="")
    assert len(test) == 4


@pytest.mark.parametrize(
    "lines, config, named",
    [
        (("n1_1.JPEG", "n9_1.JPEG", "x"), {}, "n9_1.JPEG, x"),
        (("", " "), {}, "list.txt"),
        (("a",), dict(kind="photos", length=3), "photos"),
    ],
)
def test_lists_that_do_not_fit(lines, config, named, images):
    with pytest.raises(InputError, match=f"data.list: .*{named}"):
        listed(images, *lines, **config)
    with pytest.raises(InputError, match="data.list: .*gone.txt"):
        make_source(dict(kind="folder", dir=str(images), list=str(images / "gone.txt")))


def test_classes_of_boxes_are_numbered_as_in_another_part():
    def source(names, *labels, crowds=()):
        records = ArraySource(np.zeros((1, 8, 8, 3), np.uint8), boxes=[np.ones((len(labels), 4))])
        records._columns["box_labels"], records.box_names = [np.array(labels)], names
        records._columns["crowd_labels"] = [np.array(crowds, int)]
        return records

    ours = source(("cat", "dog", "tree"), 0)
    same = boxes_like(source(("cat", "tree"), 1, 0, 1, crowds=[1]), ours)
    assert same.box_names == ours.box_names and same.num_box_classes == 3
    assert same[0]["box_labels"].tolist() == [2, 0, 2]
    assert same[0]["crowd_labels"].tolist() == [2]
    other = source(("cat", "car"), 0)
    assert boxes_like(other, ours) is other


def test_other_records_of_a_set_without_names_have_another_digest():
    records = ArraySource(IMAGES)
    digests = {Subset(records, rows).names_digest() for rows in ([0, 1], [0, 2], [1, 0])}
    assert records.names_digest() == "" and len(digests) == 3


def test_names_must_be_unique(images):
    save(images / "train" / "n2" / "n1_1.JPEG", IMAGES[0])
    with pytest.raises(InputError, match="data.list: n1_1.JPEG"):
        listed(images, "n1_1.JPEG")
    assert len(listed(images, "n2/n1_1.JPEG")) == 1


def test_a_whole_name_is_no_part_of_another(images):
    for name in ("n1_1.JPEG", "n9/n3_7.JPEG"):
        save(images / "train" / name, IMAGES[5])
    for line in ("n1_1.JPEG", "n1/n1_1.JPEG"):
        assert listed(images, line).list_names() == [line]
    with pytest.raises(InputError, match="data.list: n3_7.JPEG"):
        listed(images, "n3_7.JPEG")


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_that_a_mac_wrote(form, tmp_path):
    """In the other of Unicode's two forms than the files beside them."""
    image, mask = (unicodedata.normalize(x, "caf\u00e9") for x in (form, "NFC"))
    save(tmp_path / "images" / f"{image}.png", IMAGES[0])
    save(tmp_path / "masks" / f"{mask}.png", MASKS[0])
    records = listed(tmp_path, f"{mask}.png", masks="masks")
    assert records.list_names() == [f"{image}.png"] and records.has_masks
    for part, name in (("train", image), ("val", mask)):
        for label in ("cafz", name):
            save(tmp_path / "parts" / part / label / "1.png", IMAGES[1])
    parts = [
        make_source(dict(kind="folder", dir=str(tmp_path / "parts"), split=x))
        for x in ("train", "val")
    ]
    parts = numbered_alike(*parts, False)
    labels = [{record_name(part, i): part[i]["label"] for i in range(2)} for part in parts]
    assert labels[0] == labels[1] and set(labels[0].values()) == {0, 1}


def record_name(source, i):
    return unicodedata.normalize("NFC", source.name(i).split("/")[-2])


# --- slices


@pytest.fixture
def numbered(tmp_path):
    """40 images of two classes, whose names are sorted by class; pixels are their numbers."""
    for i in range(40):
        place = tmp_path / "numbered" / "ab"[i // 20] / f"{i:02}.png"
        save(place, np.full((2, 2, 3), i, np.uint8))
    return tmp_path / "numbered"


def numbers(folder, split):
    records = make_source(dict(kind="folder", dir=str(folder), split=split))
    return [int(record["image"][0, 0, 0]) for record in records]


def test_slices_of_a_folder_are_apart_and_together_everything(numbered):
    for parts in (("train[:75%]", "train[75%:]"), ("train[:7]", "train[7:30]", "train[-10:]")):
        found = [numbers(numbered, split) for split in parts]
        assert sorted(sum(found, [])) == list(range(40))
    assert [len(x) for x in found] == [7, 23, 10]
    assert numbers(numbered, "train[:7]+train[-10:]") == sorted(found[0] + found[2])
    # Not the first of the sorted names, which are all of one class.
    records = make_source(dict(kind="folder", dir=str(numbered), split="train[:10]"))
    labels = [record["label"] for record in records]
    assert len(records) == 10 and 2 <= sum(labels) <= 8 and records.class_names == ("a", "b")
    first = numbers(numbered, "train[:10]")[0]
    assert records.list_names()[0] == f"{'ab'[labels[0]]}/{first:02}.png"
    named = listed(numbered, *records.list_names()[:1], split="train[:10]")
    assert len(named) == 1
    assert len(sliced(ArraySource(IMAGES), "my-set.1[:25%]")) == 3


def test_slices_stay_where_they_are_when_files_come_and_go(numbered):
    before = numbers(numbered, "train[:50%]")
    assert before == numbers(numbered, "train[:50%]")
    (numbered / "a" / "00.png").unlink()
    save(numbered / "b" / "99.png", np.full((2, 2, 3), 99, np.uint8))
    assert len(set(before) - set(numbers(numbered, "train[:50%]"))) <= 2


def test_what_is_no_slice(images):
    for split in ("[5]", "[:x%]", "[:20", "[:50%]+val[:50%]", "[:0%]"):
        with pytest.raises(InputError, match="data.split"):
            make_source(dict(kind="folder", dir=str(images), split=f"train{split}"))
