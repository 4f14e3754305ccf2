"""table.py: CSV and TSV files that list images."""

import pickle

import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.source import make_source
from tests.data.records import IMAGES, MASKS, save


@pytest.fixture
def folder(tmp_path):
    for i in range(6):
        save(tmp_path / "jpg" / f"{i}.png", IMAGES[i])
        save(tmp_path / "seg" / f"{i}.png", MASKS[i])
    return tmp_path


def listed(folder, text, name="set.csv"):
    (folder / name).write_text(text)
    return folder / name


def opened(place, **config):
    return make_source(dict(kind="csv", dir=str(place), **config))


ROWS = "file_name,Label,Mask\n" + "".join(
    f"jpg/{i}.png,{name},seg/{i}.png\n" for i, name in enumerate(("oak", "ash", "oak", "elm"))
)


def test_columns_by_convention(folder):
    records = opened(listed(folder, "\ufeff" + ROWS))
    assert len(records) == 4 and records.class_names == ("ash", "elm", "oak")
    assert [records[i]["label"] for i in range(4)] == [2, 0, 2, 1]
    np.testing.assert_array_equal(records[3]["image"], IMAGES[3])
    np.testing.assert_array_equal(records[1]["mask"], MASKS[1])
    assert records.has_masks and records.list_names()[0] == "jpg/0.png"
    assert records.shape(2) == (8, 8) and "list='set.csv'" in repr(records)
    copy = pickle.loads(pickle.dumps(records))
    assert repr(copy) == repr(records) and copy[2]["label"] == 2
    assert len(opened(folder)) == 4  # the only list in the folder
    assert len(opened(folder, split="train[:50%]")) == 2


def test_columns_by_name_other_delimiters_and_absolute_paths(folder):
    text = f"a;where;what;path\n1;{folder}/jpg/4.png;10;x\n2;jpg/1.png;9;x\n"
    records = opened(listed(folder, text), images="where", labels="what")
    np.testing.assert_array_equal(records[0]["image"], IMAGES[4])
    assert records.class_names == ("9", "10") and records[0]["label"] == 1 and not records.has_masks
    tabs = listed(folder, 'path\tnote\n"jpg/0.png"\t"a, b"\n', "tabs.tsv")
    assert opened(tabs).num_classes is None and opened(tabs)[0].keys() == {"image"}


def test_splits(folder):
    rows = "path,label,split\njpg/0.png,a,train\njpg/1.png,b,train\njpg/2.png,b,val\n"
    place = listed(folder, rows)
    train, val = opened(place), opened(place, split="val")
    assert (len(train), len(val)) == (2, 1) and val.class_names == ("a", "b")
    assert val[0]["label"] == 1
    with pytest.raises(
        InputError, match="no row of .* has 'test' .* 'split', which has train, val"
    ):
        opened(place, split="test")
    (folder / "set.csv").unlink()
    listed(folder, "path,label\njpg/0.png,a\n", "train.csv")
    listed(folder, "path,label\njpg/1.png,a\njpg/2.png,a\n", "test.csv")
    assert (len(opened(folder)), len(opened(folder, split="test"))) == (1, 2)
    with pytest.raises(InputError, match="no list val.csv; lists: test.csv, train.csv"):
        opened(folder, split="val")


@pytest.mark.parametrize(
    "text, config, message",
    [
        ("path,label\njpg/0.png,a\n,b\n", {}, "set.csv, row 3: no path of an image"),
        ("path,label\njpg/0.png,a\njpg/1.png,\n", {}, "data.labels: .*set.csv, row 3: no label in"),
        ("path,label\njpg/0.png,a,b\n", {}, "set.csv, row 2: 2 cells are wanted"),
        ("path,label\njpg/0.png\n", {}, "set.csv, row 2: 2 cells are wanted"),
        ("path,label\njpg/9.png,a\n", {}, "set.csv, row 2: .*jpg/9.png is no file; paths are"),
        ("jpg/0.png\njpg/1.png\n", {}, "has the columns jpg/0.png; name the one with the paths"),
        ("path,label\n", {}, "lists no image below its header"),
        ("path\njpg/0.png\n", dict(labels="path2"), "no column 'path2'; did you mean 'path'"),
        ("path\njpg/0.png\n", dict(split="val"), "its rows are the part train, not 'val'"),
        ('path\n"jpg/0.png\n', {}, "set.csv, row"),
    ],
)
def test_lists_that_cannot_be(text, config, message, folder):
    with pytest.raises(InputError, match=message) as caught:
        opened(listed(folder, text), **config)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="gone.csv does not exist"):
        opened(folder / "gone.csv")


def test_a_file_that_is_gone_is_named_with_its_row(folder):
    records = opened(listed(folder, ROWS))
    (folder / "jpg" / "2.png").unlink()
    with pytest.raises(Unreadable, match=r"jpg/2.png: no such file \(.*set.csv, row 4\)"):
        records[2]
