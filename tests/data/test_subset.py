"""subset.py: lists of names and slices that restrict a set."""

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data.arrays import ArraySource
from ssl_jax.data.source import make_source
from ssl_jax.data.subset import Subset, sliced
from tests.data.records import IMAGES, same_record, save, write_tfds


@pytest.fixture
def images(tmp_path):
    """As ImageNet: the class is part of the name."""
    for i, name in enumerate(("n1/n1_1.JPEG", "n1/n1_2.JPEG", "n2/n2_1.JPEG", "n3/n3_7.JPEG")):
        save(tmp_path / "set" / "train" / name, IMAGES[i])
        save(tmp_path / "set" / "val" / name, IMAGES[i + 4])
    return tmp_path / "set"


def listed(tmp_path, *lines):
    (tmp_path / "list.txt").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "list.txt")


@pytest.mark.parametrize(
    "lines",
    [
        ("n3_7.JPEG", "n1_2.JPEG", "", "n1_2.JPEG"),
        ("n1/n1_2.JPEG", "n3/n3_7.JPEG"),
        ("n1_2", "n3_7"),
        ("n3/n3_7", "n1/n1_2  "),
    ],
)
def test_a_list_restricts_a_folder(lines, images, tmp_path):
    config = dict(kind="folder", dir=str(images), list=listed(tmp_path, *lines))
    records, whole = make_source(config), make_source(config, list="")
    assert (len(records), len(whole)) == (2, 4)
    assert records.num_classes == 3 and records.class_names == whole.class_names
    for i, j in enumerate((1, 3)):
        same_record(records[i], whole[j])
        assert records.name(i) == whole.name(j) and records.shape(i) == (8, 8)
    with pytest.raises(IndexError):
        records[2]
    # The test part has a list of its own, or none.
    assert len(make_source(config, split="val", list="")) == 4
    assert make_source(config | dict(size=4))[0]["image"].shape == (4, 4, 3)


@pytest.mark.parametrize(
    "lines, message",
    [
        (
            ("n1_1.JPEG", "n9_1.JPEG", "x"),
            "2 of 3 names in .* are not in .*: n9_1.JPEG, x; .*n1/n1",
        ),
        (("", " "), "names no record"),
    ],
)
def test_lists_that_do_not_fit(lines, message, images, tmp_path):
    with pytest.raises(InputError, match=f"data.list: .*{message}"):
        make_source(dict(kind="folder", dir=str(images), list=listed(tmp_path, *lines)))


def test_names_must_be_unique(images, tmp_path):
    save(images / "train" / "n2" / "n1_1.JPEG", IMAGES[0])
    config = dict(kind="folder", dir=str(images))
    with pytest.raises(InputError, match="data.list: n1_1.JPEG .* several records"):
        make_source(config | dict(list=listed(tmp_path, "n1_1.JPEG")))
    assert len(make_source(config | dict(list=listed(tmp_path, "n2/n1_1.JPEG")))) == 1


def test_no_list_and_sets_without_names(images, tmp_path):
    with pytest.raises(InputError, match="data.list: .*gone.txt cannot be read"):
        make_source(dict(kind="folder", dir=str(images), list=str(tmp_path / "gone.txt")))
    with pytest.raises(InputError, match='cannot restrict data.kind="photos"'):
        make_source(dict(kind="photos", length=3, list=listed(tmp_path, "a")))
    write_tfds(tmp_path, "nameless", {"train": range(3)})
    config = dict(kind="tfds", name="nameless", dir=tmp_path, list=listed(tmp_path, "a"))
    with pytest.raises(InputError, match="nameless have no file name or id"):
        make_source(config)


def test_a_list_restricts_a_tfds_set(tmp_path):
    write_tfds(tmp_path, "named", {"train": range(6)}, file_name="pic_{}.png")
    config = dict(kind="tfds", name="named", dir=tmp_path)
    records = make_source(config | dict(list=listed(tmp_path, "pic_4.png", "pic_1.png")))
    assert len(records) == 2 and records.has_masks and records.size == (8, 8)
    np.testing.assert_array_equal(records[0]["image"], IMAGES[1])
    np.testing.assert_array_equal(records[1]["image"], IMAGES[4])


def test_image_ids_follow_the_records():
    source = ArraySource(IMAGES)
    source.image_ids = tuple(range(100, 112))
    assert Subset(source, [3, 1]).image_ids == (103, 101)


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
    assert (
        records.list_names()[0] == f"{'ab'[labels[0]]}/{numbers(numbered, 'train[:10]')[0]:02}.png"
    )


def test_slices_stay_where_they_are_when_files_come_and_go(numbered):
    before = numbers(numbered, "train[:50%]")
    assert before == numbers(numbered, "train[:50%]")
    (numbered / "a" / "00.png").unlink()
    save(numbered / "b" / "99.png", np.full((2, 2, 3), 99, np.uint8))
    assert len(set(before) - set(numbers(numbered, "train[:50%]"))) <= 2


def test_a_slice_is_of_a_part_and_of_other_kinds(images, tmp_path):
    config = dict(kind="folder", dir=str(images))
    assert len(make_source(config, split="val[:50%]")) == 2
    assert "split='val[:50%]', 2 images" in repr(make_source(config, split="val[:50%]"))
    named = listed(tmp_path, *make_source(config, split="val[:50%]").list_names()[:1])
    assert len(make_source(config, split="val[:50%]", list=named)) == 1
    assert len(sliced(ArraySource(IMAGES), "my-set.1[:25%]")) == 3


@pytest.mark.parametrize("split", ["train[5]", "train[:x%]", "train[:20", "train[:50%]+val[:50%]"])
def test_what_is_no_slice(split, images):
    with pytest.raises(InputError, match=r"data.split: .* write train\[:90%\], train\[100:200\]"):
        make_source(dict(kind="folder", dir=str(images), split=split))
    with pytest.raises(InputError, match="holds no record"):
        make_source(dict(kind="folder", dir=str(images), split="train[:0%]"))
    with pytest.raises(InputError, match="no subfolder 'test'"):
        make_source(dict(kind="folder", dir=str(images), split="test[:10%]"))
