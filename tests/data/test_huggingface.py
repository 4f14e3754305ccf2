"""huggingface.py: parquet and Arrow files as the hub and `datasets` write them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssl_jax.config import InputError
from ssl_jax.data import huggingface
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.source import make_source
from tests.data.sets import MAKERS, TRUTH, arrow, parquet, table


def opened(place, **config):
    return make_source(dict(kind="huggingface", dir=str(place), **config))


def test_files_and_folders_of_splits(tmp_path):
    MAKERS["huggingface"](tmp_path / "files", False)
    files = opened(tmp_path / "files")
    assert files.name(3).endswith("train-00001-of-00002-1a2b3c.parquet, row 0")
    assert len(opened(tmp_path / "files", split="validation")) == 2
    with pytest.raises(InputError, match="train, validation"):
        opened(tmp_path / "files", split="test")
    parquet(tmp_path / "hub" / "default" / "train" / "0000.parquet", range(4))
    parquet(tmp_path / "hub" / "default" / "train" / "0001.parquet", range(4, 7))
    assert len(opened(tmp_path / "hub")) == 7
    parquet(tmp_path / "one" / "test.parquet", range(2))
    assert len(opened(tmp_path / "one", split="test")) == 2
    assert len(opened(tmp_path / "one" / "test.parquet", split="test")) == 2
    for name in ("test.parquet", "train-0.parquet"):
        parquet(tmp_path / "one" / name, range(2))
        with pytest.raises(InputError, match="data.split: .*'val'"):
            opened(tmp_path / "one" / name, split="val")
    parquet(tmp_path / "hub" / "mini" / "train" / "0000.parquet", range(2))
    with pytest.raises(InputError, match="data.dir: .*default, mini"):
        opened(tmp_path / "hub")
    assert len(opened(tmp_path / "hub" / "mini")) == 2
    assert len(opened(tmp_path / "one" / "test.parquet")) == 2
    arrow(tmp_path / "divided" / "train", table(range(4)), table(range(4, 7)))
    arrow(tmp_path / "whole", table(range(7)))
    assert len(opened(tmp_path / "divided")) == len(opened(tmp_path / "whole")) == 7


@pytest.mark.parametrize(
    "names, named",
    [
        (["train-00001-of-00003"], "2 of the 3 .*number 0"),
        (
            ["train-00000-of-00001", "train-00000-of-00002-1a", "train-00001-of-00002-2b"],
            "two versions",
        ),
        (["train-00000-of-00001", "train"], "two versions"),
        (["train-00000-of-00001", "data/train-00000-of-00001"], "two versions"),
        (["train-00000-of-00001-1a", "train-00000-of-00001-2b"], "two versions"),
        (["train-00000-of-00002-1a", "train-00001-of-00002-2b"], None),
        (["train-1-of-2", "train-2-of-2"], None),
        (["train-0", "train-5"], None),
        (["train-0-of-1", "train-1-of-1"], None),  # by the number of the last one
    ],
)
def test_shards_that_are_missing_or_there_twice(names, named, tmp_path):
    for name in names:
        parquet(tmp_path / f"{name}.parquet", range(2))
    parquet(tmp_path / "val-00000-of-00001.parquet", range(2))
    assert len(opened(tmp_path, split="val")) == 2
    if named is None:
        assert len(opened(tmp_path)) == 4
    else:
        with pytest.raises(InputError, match=f"data.dir: (.* )?{named}"):
            opened(tmp_path)


def test_columns_by_name_and_hidden_labels(tmp_path):
    hidden = dict(labels=[-1] * 3, scene=table(range(3))["image"], image=None)
    parquet(tmp_path / "a" / "train.parquet", range(3), **hidden)
    with pytest.raises(InputError, match="data.images: .*scene"):
        opened(tmp_path / "a")
    images = opened(tmp_path / "a", images="scene")
    assert images.num_classes is None and images.has_masks
    assert images[1].keys() == {"image", "mask"}
    np.testing.assert_array_equal(images[1]["mask"], TRUTH[1])
    texts = {"label": ["oak", "ash", "oak"], "labels": None, "annotation": None}
    parquet(tmp_path / "b" / "train.parquet", range(3), **texts)
    assert opened(tmp_path / "b").class_names == ("ash", "oak")
    assert [record["label"] for record in opened(tmp_path / "b")] == [1, 0, 1]


@pytest.mark.parametrize("values", [["a cat"] * 3, [{"cat": 1}] * 3, [[1, 2]] * 3])
def test_a_column_that_is_called_as_masks_are(values, tmp_path):
    parquet(tmp_path / "train.parquet", range(3), annotation=values)
    images = opened(tmp_path)
    assert not images.has_masks and "mask" in images.left_out and images[0].keys() >= {"image"}
    with pytest.raises(InputError, match="data.masks"):
        opened(tmp_path, masks="annotation")


def test_images_without_a_mask(tmp_path):
    """As MVTec AD: good images have none."""
    some = [None, *table(range(1, 3))["annotation"].to_pylist()]
    parquet(tmp_path / "train.parquet", range(3), annotation=some)
    images = opened(tmp_path)
    assert images.has_masks and images.unmasked == [0] and "mask" not in images[0]
    np.testing.assert_array_equal(images[1]["mask"], TRUTH[1])
    assert "mask" not in make_source(dict(kind="huggingface", dir=str(tmp_path)), truth=False)[1]


@pytest.mark.parametrize(
    "values, labels",
    [
        (pa.array(["b", "a", "b"]).dictionary_encode(), [1, 0, 1]),
        (pa.array(["b", "a", "b"], pa.string_view()), [1, 0, 1]),
        (pa.array([True, False, True]), [1, 0, 1]),
        (pa.array([5, 3, 5]).dictionary_encode(), [5, 3, 5]),
        (pa.array([1, 0, 1], pa.decimal128(3)), None),
        (pa.array([[1], [0], [1]]), None),
    ],
)
def test_types_of_labels(values, labels, tmp_path):
    contents = table(range(3), labels=None, annotation=None).append_column("label", values)
    pq.write_table(contents, tmp_path / "train.parquet")
    arrow(tmp_path / "saved", contents)
    for place in (tmp_path, tmp_path / "saved"):
        if labels is None:
            assert opened(place).num_classes is None
            with pytest.raises(InputError, match="data.labels: .*'label'"):
                opened(place, labels="label")
        else:
            assert [record["label"] for record in opened(place, labels="label")] == labels


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '{"_data_files": []}', "[" * 10**5])
def test_a_state_that_names_no_files(text, tmp_path):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(InputError, match="data.dir: .*state.json"):
        opened(tmp_path)


def test_rows_that_are_wrong_are_named(tmp_path):
    parquet(tmp_path / "train.parquet", range(3), labels=[0, -1, 2])
    assert opened(tmp_path).unlabelled == [1] and opened(tmp_path)[2]["label"] == 2
    parquet(tmp_path / "train.parquet", range(3), labels=[1, -1, 1])
    with pytest.raises(InputError, match="data.labels: .*only one class"):
        opened(tmp_path)
    broken = {"image": [{"bytes": b"no", "path": ""}, {"bytes": None, "path": "gone.png"}]}
    pq.write_table(pa.table(broken), tmp_path / "train.parquet")
    images = opened(tmp_path)
    for i, named in enumerate(("train.parquet, row 0", "train.parquet, row 1: gone.png")):
        with pytest.raises(Unreadable, match=named):
            images[i]
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="data.dir: .*train.parquet"):
        opened(tmp_path)


def test_what_needs_more_memory_than_there_is(tmp_path, monkeypatch):
    parquet(tmp_path / "train.parquet", range(7))
    # One value that a dictionary holds once stands for all rows.
    one = pa.DictionaryArray.from_arrays(np.zeros(99, np.int32), pa.array([bytes(2000)]))
    (tmp_path / "b").mkdir()
    pq.write_table(pa.table({"image": one}), tmp_path / "b/train.parquet", store_schema=False)
    for place, free in ((tmp_path, 2000), (tmp_path / "b", 99 * 2000)):
        monkeypatch.setattr(huggingface.reading, "free_memory", lambda free=free: free)
        with pytest.raises(InputError, match="memory"):
            opened(place / "train.parquet")
    monkeypatch.setattr(huggingface.reading, "free_memory", lambda: 2**40)
    assert len(opened(tmp_path / "train.parquet")) == 7
