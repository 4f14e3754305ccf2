"""huggingface.py: parquet and Arrow files as the hub and `datasets` write them."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssl_jax.config import InputError
from ssl_jax.data import huggingface
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.source import make_source
from tests.data.records import IMAGES, LABELS, MASKS, png

NAMES = ["angular leaf spot", "bean rust", "healthy"]


def table(rows, *, labels=None, masks=False, names=True, image="image"):
    """As `Dataset.to_parquet` writes it."""
    labels = [int(LABELS[i]) for i in rows] if labels is None else labels

    def images(arrays):
        return [{"bytes": png(arrays[i]), "path": f"{i}.png"} for i in rows]

    columns = {image: images(IMAGES), "labels": labels}
    features = {image: {"_type": "Image"}, "labels": {"_type": "Value", "dtype": "int64"}}
    if names:
        features["labels"] = {"names": NAMES, "_type": "ClassLabel"}
    if masks:
        columns["annotation"] = images(MASKS)
    made = pa.table(columns)
    return made.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )


def parquet(path, *arguments, **words):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(*arguments, **words), path, row_group_size=2)


def arrow(folder, *tables):
    """As `Dataset.save_to_disk` writes it."""
    folder.mkdir(parents=True)
    files = [f"data-{i:05}-of-{len(tables):05}.arrow" for i in range(len(tables))]
    for name, one in zip(files, tables):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, one.schema) as w:
            w.write_table(one, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in files]}
    (folder / "state.json").write_text(json.dumps(state))


def opened(place, **config):
    return make_source(dict(kind="huggingface", dir=str(place), **config))


def check(records):
    assert len(records) == 7 and records.num_classes == 3 and list(records.class_names) == NAMES
    for i in (6, 0, 4):
        np.testing.assert_array_equal(records[i]["image"], IMAGES[i])
        assert records[i]["label"] == LABELS[i] and records.shape(i) == (8, 8)
    copy = pickle.loads(pickle.dumps(records))
    assert repr(copy) == repr(records) and copy[5]["label"] == LABELS[5]


def test_parquet_of_the_hub(tmp_path):
    parquet(tmp_path / "data" / "train-00000-of-00002.parquet", range(4))
    parquet(tmp_path / "data" / "train-00001-of-00002-1a2b3c.parquet", range(4, 7))
    parquet(tmp_path / "data" / "validation-00000-of-00001.parquet", range(7, 9))
    check(opened(tmp_path))
    assert opened(tmp_path).name(5).endswith("train-00001-of-00002-1a2b3c.parquet, row 1")
    assert opened(tmp_path, split="validation")[1]["label"] == LABELS[8]
    assert len(opened(tmp_path, split="train[:3]")) == 3
    assert huggingface.parts(tmp_path) == ["train", "validation"]
    with pytest.raises(InputError, match="files of 'test'; splits: train, validation"):
        opened(tmp_path, split="test")


def test_folders_of_splits_and_single_files(tmp_path):
    parquet(tmp_path / "default" / "train" / "0000.parquet", range(4))
    parquet(tmp_path / "default" / "train" / "0001.parquet", range(4, 7))
    check(opened(tmp_path))
    parquet(tmp_path / "one" / "test.parquet", range(2))
    assert len(opened(tmp_path / "one", split="test")) == 2
    assert len(opened(tmp_path / "one" / "test.parquet")) == 2


def test_arrow_of_save_to_disk(tmp_path):
    arrow(tmp_path / "divided" / "train", table(range(4)), table(range(4, 7)))
    arrow(tmp_path / "whole", table(range(7)))
    check(opened(tmp_path / "divided"))
    check(opened(tmp_path / "whole"))
    assert huggingface.parts(tmp_path / "divided") == ["train"]
    assert huggingface.parts(tmp_path / "whole") == []


def test_masks_columns_by_name_and_hidden_labels(tmp_path):
    hidden = [-1] * 3
    parquet(tmp_path / "a" / "train.parquet", range(3), labels=hidden, masks=True, image="scene")
    with pytest.raises(
        InputError, match="data.images: .*columns scene, labels, annotation; name the"
    ):
        opened(tmp_path / "a")
    records = opened(tmp_path / "a", images="scene")
    assert records.num_classes is None and records.has_masks
    assert records[1].keys() == {"image", "mask"}
    np.testing.assert_array_equal(records[1]["mask"], MASKS[1])
    texts = ["oak", "ash", "oak"]
    parquet(tmp_path / "b" / "train.parquet", range(3), labels=texts, names=False)
    assert opened(tmp_path / "b").class_names == ("ash", "oak")
    assert opened(tmp_path / "b")[0]["label"] == 1
    with pytest.raises(InputError, match="data.labels: no column 'label'; did you mean 'labels'"):
        opened(tmp_path / "b", labels="label")


def test_rows_that_are_wrong_are_named(tmp_path):
    parquet(tmp_path / "train.parquet", range(3), labels=[0, -1, 2])
    with pytest.raises(InputError, match="data.labels: .*train.parquet, row 1: the label .* is -1"):
        opened(tmp_path)
    broken = {"image": [{"bytes": b"no", "path": ""}, {"bytes": None, "path": "gone.png"}]}
    pq.write_table(pa.table(broken), tmp_path / "train.parquet")
    records = opened(tmp_path)
    with pytest.raises(Unreadable, match="train.parquet, row 0: not an image"):
        records[0]
    with pytest.raises(Unreadable, match="train.parquet, row 1: gone.png: No such file"):
        records[1]
    (tmp_path / "train.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="data.dir: .*train.parquet cannot be read"):
        opened(tmp_path)


def test_what_needs_more_memory_than_there_is(tmp_path, monkeypatch):
    parquet(tmp_path / "train.parquet", range(7))
    monkeypatch.setattr(huggingface, "_free_memory", lambda: 2000)
    with pytest.raises(InputError, match="GiB of memory, half of .*save_to_disk"):
        opened(tmp_path)
    monkeypatch.setattr(huggingface, "_free_memory", lambda: 2**40)
    check(opened(tmp_path))
