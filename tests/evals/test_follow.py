"""follow.py: evaluations of the training set, which of them it can carry, and what is scored."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssl_jax import api, evals, settings
from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.data.source import make_source
from tests.data.records import IMAGES, png, save, shard, write_tfds


@pytest.fixture
def config():
    """Trains on photographs, and evaluates on them."""
    c = settings.base_config("dino")
    c.model.patch, c.data.length = 4, 8
    evals.add(c, "knn", "linear", data=dict(kind="training", size=16), test_examples=7)
    evals.add(c, "dense", data=dict(kind="training"))
    return c


def own(config, folder, **data):
    """On a folder, from a config that names a TFDS set."""
    config.data.update(dict(kind="folder", name="imagenette96", dir=str(folder), size=8, **data))
    return config


def settled(config, given=()):
    settings.validate(config, 1)
    return evals.fit_to_data(config, make_source(config.data), given)


def write(root, *places, count=10):
    for place in places:
        for i in range(count):
            save(root / place / f"{i}.png", IMAGES[i])
    return root


def test_of_an_embedded_set(config):
    """Collages stand in for the masks that photographs lack."""
    result, notes = settled(config)
    kinds = {name: each.data.kind for name, each in evals.named(result).items()}
    assert kinds == dict(knn="photos", linear="photos", dense="photo_collages") and notes == []
    assert result.evals.knn.data.size == 16 and result.evals.knn.data.test_split == "test"
    assert config.evals.knn.data.kind == "training"  # the argument stays as it is
    assert config_lib.changed(settled(result)[0], result) == []
    plain = settings.resolve(config, num_records=2048, num_devices=1)
    assert plain.evals.dense.data.kind == "photo_collages"


def test_without_labels_rank_is_left(config, tmp_path):
    result, notes = settled(own(config, write(tmp_path, "."), max_pixels=1000))
    assert result.evals.tasks == ("rank",) and result.evals.rank.data.max_pixels == 1000
    rank = result.evals.rank
    assert (rank.type, rank.data.kind, rank.data.dir) == ("rank", "folder", str(tmp_path))
    assert (rank.data.size, rank.test_examples) == (16, 7)  # as knn
    assert (rank.data.split, rank.data.test_split) == ("train[:80%]", "train[80%:]")
    assert len(notes) == 2
    train, test = evals.sources(result)["rank"]
    assert (len(train), len(test)) == (8, 2)
    # What was asked for is an error; k says nothing of the images.
    config.evals.tasks = ("knn",)
    assert settled(config, ["evals.knn.k"])[0].evals.tasks == ("rank",)
    for given in ("evals.tasks", "evals.knn.data.test_split"):
        with pytest.raises(InputError, match="evals.knn.*labels"):
            settled(config, [given])


def test_with_labels_all_but_dense_are_run(config, tmp_path):
    write(tmp_path, "train/a", "train/b", "valid/a", "valid/b", count=3)
    result, notes = settled(own(config, tmp_path))
    assert result.evals.tasks == ("knn", "linear") and "rank" not in result.evals
    assert result.evals.knn.data.test_split == "valid" and result.evals.knn.data.split == "train"
    assert len(notes) == 1 and "dense" in notes[0]
    assert evals.sources(result)["knn"][1].class_names == ("a", "b")


def test_images_beside_classes_and_a_part_without_one_of_them(config, tmp_path):
    write(tmp_path, "Training/a", "Training/b", "Training/c", "Testing/b", "Testing/c", count=2)
    write(tmp_path, "Training", "Testing", count=1)
    result, notes = settled(own(config, tmp_path))
    assert result.evals.tasks == ("knn", "linear") and result.evals.knn.data.test_split == "Testing"
    assert any("1 images" in note for note in notes)
    train, test = evals.sources(result)["knn"]
    assert (len(train), train.num_classes, train.unlabelled) == (7, 3, [0])
    assert [test[i]["label"] for i in range(5)] == [-1, 1, 1, 2, 2]  # as in training
    case = evals.Case(None, result.evals.knn, train, test)
    assert case.records("train")[1].tolist() == [1, 2, 3, 4, 5, 6]
    write(tmp_path, "Testing/d", count=1)
    with pytest.raises(InputError, match="evals.knn.*Testing has d"):
        evals.sources(result)


def test_numbers_of_classes_are_those_of_both_parts(config, tmp_path):
    labels = dict(train=["7", "5000", "9999"], test=["9999", "12345"])
    for part, texts in labels.items():
        rows = {f"{i}.png": png(IMAGES[i]) for i in range(len(texts))}
        shard(tmp_path / f"{part}-0.tar", rows | {f"{i}.cls": t for i, t in enumerate(texts)})
    config.evals.knn.data.update(dict(kind="webdataset", dir=str(tmp_path), size=0))
    train, test = evals.sources(config, ["knn"])["knn"]
    assert train.class_names == test.class_names == ("7", "5000", "9999", "12345")
    assert [test[i]["label"] for i in range(2)] == [2, 3]


def test_what_a_slice_leaves_is_scored(config, tmp_path):
    """Without a folder `train` all folders are trained on."""
    own(config, write(tmp_path, "first", "other"), split="train[:70%]")
    result, _ = settled(config)
    data = result.evals.linear.data
    assert (data.split, data.test_split) == ("train[:70%]", "train[70%:]")
    trained = {make_source(config.data).name(i) for i in range(14)}
    train, test = evals.sources(result)["linear"]
    assert {train.name(i) for i in range(14)} == trained and len(test) == 6
    assert trained.isdisjoint(test.name(i) for i in range(6))
    with pytest.raises(InputError, match="data.split"):
        settled(own(config, tmp_path, split="train[5:9]"))  # leaves no slice
    config.evals.knn.data.test_split = "train[:5]"
    config.evals.tasks = ("knn",)
    result, _ = settled(config, ["evals.knn.data.test_split"])
    assert result.evals.knn.data.test_split == "train[:5]"
    assert result.evals.knn.data.split == "train[5:9]"
    config.data.split = "train"  # of which the first images would be in both parts
    result, _ = settled(config, ["evals.knn.data.test_split"])
    assert result.evals.knn.data.split == "train[5:]"


def test_masks_of_the_evaluation(config, tmp_path):
    for i in range(4):
        save(tmp_path / "images" / f"{i}.png", IMAGES[i])
        save(tmp_path / "labels" / f"{i}.png", np.full((8, 8), i % 2, np.uint8))
    own(config, tmp_path / "images").evals.dense.data.masks = str(tmp_path / "labels")
    result, notes = settled(config)
    assert result.evals.tasks == ("dense", "rank")
    assert evals.sources(result)["dense"][0].has_masks


def test_sets_of_their_own_are_left_alone(config, tmp_path):
    config.evals.knn.data.kind = "photos"
    result, _ = settled(own(config, write(tmp_path, ".")))
    assert result.evals.tasks == ("knn",) and result.evals.knn.data.kind == "photos"
    # An empty dir is that of training.
    config.evals.knn.data.update(dict(kind="folder", test_split="train[:50%]"))
    result, _ = settled(config)
    with pytest.raises(InputError, match="evals.knn.*labels"):
        evals.sources(settings.resolve(result, num_records=1024, num_devices=1))


def test_the_splits_of_a_tfds_set(config, tmp_path):
    write_tfds(tmp_path, "tiny_shapes", {"train": range(6), "validation": [7, 8]}, mask=False)
    config.data.update(dict(kind="tfds", name="tiny_shapes", dir=str(tmp_path)))
    result, notes = settled(config)
    assert result.evals.knn.data.test_split == "validation" and len(notes) == 1
    assert [len(s) for s in evals.sources(result)["knn"]] == [6, 2]
    write_tfds(tmp_path, "undivided", {"train": range(6)}, mask=False)
    config.data.name = "undivided"
    assert settled(config)[0].evals.knn.data.test_split == "train[80%:]"


def test_a_run_keeps_it(config, tmp_path):
    """From Python nothing is asked for by hand."""
    own(config, write(tmp_path, "."), crop_on="device")
    config.optim.batch_size, config.optim.epochs, config.optim.warmup_epochs = 8, 1.0, 0.0
    assert api.prepare(config).config.evals.tasks == ("rank",)
    with pytest.raises(InputError, match="evals.dense.*masks"):
        api.prepare(config, given=["evals.tasks"])


def test_neighbours_of_images_without_labels(config, tmp_path):
    """Image i + 5 is image i but for one pixel."""
    for i in range(5):
        save(tmp_path / "train" / f"{i}.png", IMAGES[i])
        image = IMAGES[i].copy()
        image[0, 0] = 0
        save(tmp_path / "val" / f"{i}.png", image)
    for name in ("knn", "linear"):
        config.evals[name].data.size = 8
    result, _ = settled(own(config, tmp_path))
    case = evals.cases(evals.raw_pixels(4), result)["rank"]
    picture = evals.TYPES["rank"].figures(case)["neighbours"]
    assert [len(row) for row in picture.rows] == [6] * 5 and picture.legend == ()
    for i, (query, nearest, *_) in enumerate(picture.rows):
        np.testing.assert_allclose(nearest.image, IMAGES[i] / 255, atol=1e-6)
        assert query.title == "query" and 0.9 < float(nearest.title) < 1


def _csv(place, parts):
    rows = [f"{part}/{i}.png,{i % 2},{part}" for part in parts for i in range(10)]
    write(place, *parts)
    (place / "all.csv").write_text("\n".join(["path,label,split", *rows]))


def _tars(place, parts):
    members = {f"{i}.png": png(IMAGES[i]) for i in range(10)}
    members |= {f"{i}.cls": str(i % 2) for i in range(10)}
    for part in parts:
        shard(place / f"{part}-0.tar", members)


def _parquet(place, parts):
    place.mkdir()
    table = dict(image=[png(image) for image in IMAGES[:10]], label=[i % 2 for i in range(10)])
    for part in parts:
        pq.write_table(pa.table(table), place / f"{part}.parquet")


@pytest.mark.parametrize(
    "kind, make", [("csv", _csv), ("webdataset", _tars), ("huggingface", _parquet)]
)
@pytest.mark.parametrize("parts, scored", [(("train", "val"), "val"), (("train",), "train[80%:]")])
def test_lists_tars_and_tables_are_followed(kind, make, parts, scored, config, tmp_path):
    make(tmp_path / "set", parts)
    config.data.update(dict(kind=kind, dir=str(tmp_path / "set")))
    result, notes = settled(config)
    assert result.evals.tasks == ("knn", "linear") and result.evals.knn.data.kind == kind
    assert result.evals.knn.data.test_split == scored and len(notes) == 3 - len(parts)
    train, test = evals.sources(result)["knn"]
    assert train.num_classes == test.num_classes == 2
    assert len(test) == (10 if scored == "val" else 2)


def test_lists_of_both_parts(config, tmp_path):
    write(tmp_path / "set", "train/a", "train/b", "val/a", "val/b", count=2)
    (tmp_path / "few.txt").write_text("a/0.png\nb/0.png\n")
    data = dict(kind="folder", dir=str(tmp_path / "set"), test_split="val")
    config.evals.knn.data.update(data | dict(list=str(tmp_path / "few.txt")))
    assert [len(s) for s in evals.sources(config, ("knn",))["knn"]] == [2, 4]
    config.evals.knn.data.test_list = str(tmp_path / "few.txt")
    assert [len(s) for s in evals.sources(config, ("knn",))["knn"]] == [2, 2]
