"""table.py: CSV and TSV files that list images."""

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data.source import make_source
from tests.data.sets import PICTURES, put, put_images


@pytest.fixture
def folder(tmp_path):
    put_images(tmp_path / "jpg", [f"{i}.png" for i in range(5)])
    return tmp_path


def opened(folder, text, name="set.csv", **config):
    put(folder / name, text)
    return make_source(dict(kind="csv", dir=str(folder / name), **config))


def test_columns_by_name_other_delimiters_and_absolute_paths(folder):
    text = f"a;where;what;path\n1;{folder}/jpg/4.png;10;x\n2;jpg/1.png;9;x\n"
    images = opened(folder, text, images="where", labels="what")
    np.testing.assert_array_equal(images[0]["image"], PICTURES[4])
    assert images.class_names == ("9", "10") and images[0]["label"] == 1 and not images.has_masks
    tabs = opened(folder, 'path\tnote\n"jpg/0.png"\t"a, b"\n', "tabs.tsv")
    assert tabs.num_classes is None and tabs[0].keys() == {"image"}


def test_splits(folder):
    rows = "path,label,split\njpg/0.png,a,train\njpg/1.png,b,train\njpg/2.png,b,val\n"
    train, val = opened(folder, rows), opened(folder, rows, split="val")
    assert (len(train), len(val)) == (2, 1) and val.class_names == ("a", "b")
    assert val[0]["label"] == 1
    with pytest.raises(InputError, match="data.split"):
        opened(folder, rows, split="test")
    (folder / "set.csv").unlink()
    put(folder / "train.csv", "path,Split\njpg/0.png,TRAIN\njpg/1.png,val\n")
    put(folder / "Testing.csv", "path,label\njpg/1.png,a\njpg/2.png,a\n")
    config = dict(kind="csv", dir=str(folder))
    assert [len(make_source(config, split=split)) for split in ("train", "test")] == [1, 2]
    with pytest.raises(InputError, match="data.split: .*val.csv"):
        make_source(config, split="val")


def test_rows_without_a_label(folder):
    images = opened(folder, "path,label\njpg/0.png,b\njpg/1.png,\njpg/2.png,-1\njpg/3.png,a\n")
    assert [record["label"] for record in images] == [1, -1, -1, 0] and images.unlabelled == [1, 2]
    assert images.class_names == ("a", "b")
    assert opened(folder, "path,label\njpg/0.png,\n").num_classes is None
    two = opened(folder, "path,label\njpg/0.png,-1\njpg/1.png,1\n")
    assert two.class_names == ("-1", "1")  # as attributes are often written
    hidden = "path,label,split\njpg/0.png,a,train\njpg/1.png,b,train\njpg/2.png,,val\n"
    assert opened(folder, hidden, split="val").num_classes is None


def test_texts_that_may_mean_no_label_are_told(folder):
    images = opened(folder, "path,label\njpg/0.png,NA\njpg/1.png,None\njpg/2.png,nano\n")
    assert images.class_names == ("NA", "None", "nano") and "NA, None" in images.left_out
    assert opened(folder, "path,label\njpg/0.png,a\njpg/1.png,\n").left_out == ""


def test_a_split_in_other_letters_is_the_same(folder):
    rows = "path,split\njpg/0.png,train\njpg/1.png,Train\njpg/2.png,VAL\njpg/3.png,val\n"
    for split in ("train", "val", "Train"):
        assert len(opened(folder, rows, split=split)) == 2
    with pytest.raises(InputError, match="data.split: .*train, val$|data.split: .*Train, VAL$"):
        opened(folder, rows, split="test")


def test_files_as_systems_write_them(folder):
    """A byte-order mark, hidden files and a line separator in a cell; a part alone is no set."""
    put(folder / "lists" / "._x.csv", "")
    text = "\ufeffpath,note\n../jpg/0.png,a\u2028b\n"
    assert len(opened(folder / "lists", text)) == 1
    assert len(make_source(dict(kind="csv", dir=str(folder / "lists")))) == 1
    put(folder / "part" / "test.csv", text)
    with pytest.raises(InputError, match="data.split: .*train.csv"):
        make_source(dict(kind="csv", dir=str(folder / "part")))
    put(folder / "both" / "train.csv", "path,split\n../jpg/0.png,train\n../jpg/1.png,val\n")
    assert len(make_source(dict(kind="csv", dir=str(folder / "both")), split="val")) == 1


def test_a_column_that_is_called_as_masks_are(folder):
    text = "path,annotation\njpg/0.png,a cat\n"
    images = opened(folder, text)
    assert not images.has_masks and "a cat" in images.left_out
    with pytest.raises(InputError, match="data.masks: .*a cat"):
        opened(folder, text, masks="annotation")


@pytest.mark.parametrize(
    "text, named",
    [
        ("path,label\njpg/0.png,a\n,b\n", "row 3"),
        ("path,label\njpg/0.png,a,b\n", "row 2"),
        ("path,label\njpg/0.png\n", "row 2"),
        ("path,label\njpg/9.png,a\n", "row 2: .*jpg/9.png"),
        ("jpg/0.png\njpg/1.png\n", "data.images: .*jpg/0.png"),
        ("path,label\n", "set.csv"),
        ("path,label,label\njpg/0.png,a,b\n", "data.labels: .*'label'"),
        ('path\n"jpg/0.png\n', "row"),
    ],
)
def test_lists_that_cannot_be(text, named, folder):
    with pytest.raises(InputError, match=named) as caught:
        opened(folder, text)
    assert "set.csv" in str(caught.value) and "\n" not in str(caught.value)
