"""What sources of all kinds keep to."""

import concurrent.futures
import os
import pickle

import numpy as np
import pytest
from PIL import Image

from ssl_jax import cli
from ssl_jax import config as config_lib
from ssl_jax.config import InputError
from ssl_jax.data import base, source
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.prepared import Prepared
from ssl_jax.data.reduced import Reduced
from ssl_jax.data.source import make_source
from ssl_jax.data.subset import Subset
from tests.data import records
from tests.data.sets import MAKERS

FILES = [name for name in MAKERS if name not in (*source.EMBEDDED, "arrays")]
ENCODED = [name for name in FILES if name != "python"]
OF_FOLDERS = [name for name in ENCODED if " " not in name]
# Classes of masks can be changed.
RULED = ["folder with masks"]
RULED += [name for name in OF_FOLDERS if "class_map" in source.kinds.get(name).keys]
TYPES = dict(image=np.uint8, mask=np.uint8, boxes=np.float32, box_labels=np.int32)


def test_every_kind_has_a_case():
    assert {name.split()[0] for name in MAKERS} == {*source.kinds.names(), "python", "arrays"}


def opened(case, **changes):
    return make_source(case.config | changes) if isinstance(case.config, dict) else case.config


@pytest.fixture(scope="module", params=MAKERS)
def case(request, tmp_path_factory):
    return MAKERS[request.param](tmp_path_factory.mktemp("set"), False)


@pytest.fixture(scope="module")
def images(case):
    return opened(case)


def test_records(case, images):
    assert len(images) == len(case.records) == len(list(images))
    for i, expected in enumerate(case.records):
        record = images[np.int64(i)]
        records.same_record(record, expected)
        for key, dtype in TYPES.items():
            assert key not in record or record[key].dtype == dtype, key
        assert type(record.get("label", 0)) is int
        assert images.shape(i) == base.Source.shape(images, i) == expected["image"].shape[:2]
    for i in (-1, len(images)):
        with pytest.raises(IndexError):
            images[i]


def test_facts(case, images):
    expected = {fact: getattr(base.Source, fact) for fact in base.FACTS} | case.facts
    expected["place"] = images.place  # of a config: where its images are
    for wrapped, other in (
        (images, {}),
        (Prepared(images, cache=True), {}),
        (Prepared(images, size=16), dict(size=(16, 16))),
        (Subset(images, range(len(images))), dict(sequences=None)),
    ):
        for fact, value in (expected | other).items():
            found = getattr(wrapped, fact)
            assert (tuple(found) if isinstance(value, tuple) else found) == value, fact
    parts = dict(labels="label", masks="mask", boxes="boxes", sequences="sequence")
    for need, key in parts.items():
        assert source.has(images, need) == (key in images[0]) or key == "sequence"
        if isinstance(case.config, dict):
            section = config_lib.build(source.defaults())
            section.update(case.config | dict(dir=str(case.config.get("dir", ""))))
            assert source.may_have(section, need) or not source.has(images, need), need


def test_of_a_foreign_object_length_and_records_suffice():
    rows = [{"image": image} for image in records.IMAGES[:, :6]]
    bare = pickle.loads(pickle.dumps(base.adopt(rows)))
    assert {fact: getattr(bare, fact) for fact in base.FACTS} == {
        fact: getattr(base.Source, fact) for fact in base.FACTS
    }
    assert (len(bare), bare.name(3), bare.shape(3)) == (12, "list/3", (6, 8))
    assert bare.list_names() is None and bare.unresized is bare and base.adopt(bare) is bare
    records.same_record(bare[1], rows[1])

    class Rows(list):
        has_masks, name, shape, unresized = True, "a set".format, lambda s, i: (i, 1), rows
        list_names = lambda s: map(str, range(12))  # noqa: E731

    known = base.adopt(Rows(rows))
    assert (known.has_masks, known.name(3), known.shape(3)) == (True, "a set", (3, 1))
    assert known.list_names()[11] == "11" and len(known.unresized) == 12
    assert str(known) == str(rows) and repr(known) == repr(rows)
    with pytest.raises(InputError, match="generator"):
        base.adopt(image for image in rows)


IMAGE = records.IMAGES[0]
GRAY = np.repeat(IMAGE[..., :1], 3, axis=2)


@pytest.mark.parametrize(
    "given, image, label",
    [
        ({"image": IMAGE, "label": np.int64(1)}, IMAGE, 1),
        ({"image": Image.fromarray(IMAGE), "label": None}, IMAGE, -1),
        ((Image.fromarray(IMAGE), 1), IMAGE, 1),
        ([IMAGE[..., 0], 0], GRAY, 0),
        (Image.fromarray(IMAGE[..., 0]), GRAY, None),
        (IMAGE, IMAGE, None),
        ((IMAGE, np.nan), IMAGE, -1),
        ((IMAGE, "b"), IMAGE, None),  # of no use to those who read labels
        ((IMAGE, [[1, 2], [3]]), IMAGE, None),
        ((IMAGE, 2), IMAGE, 2),  # which they refuse
        (np.array([Image.fromarray(IMAGE), 1], object), IMAGE, 1),
        ((IMAGE / 255.0).astype(np.float16), np.float32(np.float16(IMAGE / 255.0)), None),
    ],
)
def test_records_of_a_foreign_object(given, image, label):
    rows = base.adopt(type("Rows", (list,), dict(classes=("a", "b")))([given]))
    assert rows.num_classes == 2 and rows[0].get("label") == label
    np.testing.assert_array_equal(rows[0]["image"], image)
    unknown = base.adopt([given])[0]  # how many classes there are
    assert unknown.get("label") == (label if label != -1 else None)


@pytest.mark.parametrize("given", ["a.png", {"label": 1}, IMAGE.astype(int), (IMAGE, 1, 2)])
def test_a_record_of_a_foreign_object_that_is_none(given):
    with pytest.raises(Unreadable, match="list/0"):
        base.adopt([given])[0]


def test_an_error_of_a_foreign_object_costs_one_record():
    class Rows(list):
        def __getitem__(self, i):
            raise OSError("image file is\ntruncated")

    with pytest.raises(Unreadable, match="Rows/1: OSError: image file is truncated"):
        base.adopt(Rows(range(2)))[1]


OUTSIDE = """
from pathlib import Path

import numpy as np
from ssl_jax import data


def opened(section, split):
    count = int(Path(section["dir"]).name) // {"train": 1, "test": 2}[split]
    return [{"image": np.full((8, 8, 3), i, np.uint8), "mask": np.eye(8)} for i in range(count)]


parts = lambda section: ("train", "test")
required = {"dir": "the number of records"}
data.register("mine", opened, parts=parts, keys=["dir"], has=["masks"], required=required)
"""


def test_a_kind_from_outside(tmp_path, monkeypatch, capsys):
    (tmp_path / "outside_kind.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(source.kinds, "KINDS", dict(source.kinds.KINDS))
    arguments = ["--config=quickstart", "--config.data.kind=mine", "--config.optim.batch_size=8"]
    for more, code, named in (
        ([], 2, "data.kind"),
        (["--import=outside_kind"], 2, "data.dir"),
        (["--import=outside_kind", "--config.data.dir=12", "--config.data.list=x"], 2, "data.list"),
        (["--import=outside_kind", "--config.data.dir=12"], 0, "12 has no labels"),
    ):
        assert cli.main(["ssl-jax", "show", *more, *arguments]) == code
        assert named in "".join(capsys.readouterr()), more
    half = make_source(dict(kind="mine", dir="12", split="train[:50%]", size=4))
    assert len(half) == 6 and half[0]["image"].shape == (4, 4, 3) and half.num_classes is None


def test_names(case, images, tmp_path):
    assert len({images.name(i) for i in range(len(images))}) == len(images)
    if images.list_names() and case.config["kind"] != "davis":
        names = images.list_names()
        assert len(set(names)) == len(names) == len(images)
        (tmp_path / "list.txt").write_text(f"{names[-1]}\n")
        one = opened(case, list=str(tmp_path / "list.txt"))
        assert len(one) == 1 and one.name(0) == images.name(len(images) - 1)


def test_copies_and_threads_read_the_same(case, images):
    copy = pickle.loads(pickle.dumps(images))
    assert repr(copy) == repr(images) == repr(opened(case))
    assert " at 0x" not in repr(images) and "\n" not in repr(images)
    assert len(copy) == len(images) and copy.name(1) == images.name(1)
    rows = [*range(len(images))] * 4
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for i, record in zip(rows, pool.map(copy.__getitem__, rows), strict=True):
            records.same_record(record, case.records[i])


def test_subsets_and_what_is_kept_in_memory(case, images):
    last, ids = len(images) - 1, images.image_ids
    for some in (
        Subset(images, [last, 0]),
        Prepared(Subset(images, [last, 0]), cache=True),
        Subset(Prepared(images, cache=True), [last, 0]),
    ):
        assert [some.name(i) for i in range(2)] == [images.name(last), images.name(0)]
        for i, row in enumerate((last, 0, last)):
            records.same_record(some[i % 2], case.records[row])
        assert some.shape(0) == case.records[last]["image"].shape[:2]
        assert some.image_ids == (ids and (ids[last], ids[0]))
        assert repr(pickle.loads(pickle.dumps(some))) == repr(some)
    assert repr(Subset(images, [last, 0])) != repr(Subset(images, [0, last]))
    small = Prepared(images, size=4)[last]
    assert small["image"].shape == (4, 4, 3)
    assert small.get("mask", small["image"]).shape[:2] == (4, 4)
    fitted, old = Reduced(images, 5), case.records[last]
    size = tuple(side // 5 * 5 for side in old["image"].shape[:2])
    new = fitted[last]
    assert new["image"].shape[:2] == fitted.shape(last) == new.get("mask", new["image"]).shape[:2]
    assert fitted.shape(last) == size and fitted.size in (None, size)
    if "boxes" in old:
        scale = np.divide(size, old["image"].shape[:2])
        np.testing.assert_allclose(
            new["boxes"], np.asarray(old["boxes"]) * [*scale, *scale], rtol=1e-5
        )
    assert set(new) == set(old) and repr(fitted) != repr(images)


@pytest.mark.parametrize("name", [name for name in FILES if name != "davis"])
def test_slices_are_apart_and_together_everything(name, tmp_path):
    case = MAKERS[name](tmp_path, False)
    parts = [opened(case, split=f"train[{part}]") for part in (":1", "1:")]
    whole = opened(case)
    assert [len(part) for part in parts] == [1, len(whole) - 1]
    where = {record["image"].tobytes(): i for i, record in enumerate(case.records)}
    found = [where[record["image"].tobytes()] for part in parts for record in part]
    assert sorted(found) == list(range(len(whole)))
    for part in parts:
        assert part.class_names == whole.class_names and part.mask_names == whole.mask_names
    with pytest.raises(InputError, match="data.split"):
        opened(case, split="train[:x%]")


@pytest.mark.parametrize("name", FILES)
def test_an_image_that_cannot_be_read_is_named(name, tmp_path):
    case = MAKERS[name](tmp_path, True)
    images, last = opened(case), len(case.records) - 1
    wrapped = (Prepared(images, cache=True), last), (Subset(images, [last]), 0)
    for some, i in ((images, last), *wrapped):
        with pytest.raises(Unreadable) as caught:
            some[i]
        assert caught.value.name == images.name(last) and caught.value.reason
        assert "\n" not in str(caught.value)
    records.same_record(images[0], case.records[0])


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_among_the_files_is_not_waited_for(name, tmp_path):
    case = MAKERS[name](tmp_path / "set", False)
    if name == "folder with masks":
        for key in ("list", "class_names"):
            case.config[key] = str(tmp_path / "set" / key)
            (tmp_path / "set" / key).write_text("a\nb\nc\nd\n")
    for path in [path for path in (tmp_path / "set").rglob("*") if path.is_file()]:
        path.rename(tmp_path / "kept")
        os.mkfifo(path)
        try:
            list(opened(case))  # most sets have files that are not read
        except (InputError, Unreadable) as error:
            assert "\n" not in str(error)
        path.unlink()
        (tmp_path / "kept").rename(path)


@pytest.mark.parametrize("name", ENCODED)
def test_an_image_that_is_too_large_is_named(name, tmp_path):
    case = MAKERS[name](tmp_path, False)
    height, width = case.records[0]["image"].shape[:2]
    images = opened(case, max_pixels=height * width - 1)
    for read in (images.__getitem__, *[images.shape] * (images.size is None)):
        with pytest.raises(Unreadable, match=f"{width}x{height}.*data.max_pixels") as caught:
            read(1)
        assert caught.value.name == images.name(1)
    for limit in (height * width, 0):
        records.same_record(opened(case, max_pixels=limit)[1], case.records[1])


@pytest.mark.parametrize("name", OF_FOLDERS + ["folder of classes"])
def test_places_and_parts_that_are_not_there_are_named(name, tmp_path):
    case = MAKERS[name](tmp_path / "set", False)
    (tmp_path / "empty").mkdir()
    dirs = [tmp_path / "gone", tmp_path / "empty", *[""] * (name != "tfds")]
    for change, key in [(dict(dir=str(path)), "data.(dir|name|split)") for path in dirs] + [
        (dict(split="nosuch"), "data.split")
    ]:
        with pytest.raises(InputError, match=key) as caught:
            opened(case, **change)
        assert "\n" not in str(caught.value), change
    for path in ("~nobody-of-that-name/x", "a\0b"):
        with pytest.raises(InputError):
            opened(case, dir=path)


@pytest.mark.parametrize("name", RULED)
def test_what_reads_masks_otherwise_prints_otherwise(name, tmp_path):
    """Kept features, and the masks beside them, are found by what a source prints."""
    case = MAKERS[name](tmp_path, False)
    class_map = (1, 0, *range(2, 182))
    rules = ({}, dict(reduce_zero_label=True), dict(class_map=class_map), dict(ignore=3))
    images = [opened(case, **rule) for rule in rules]
    assert len(set(map(repr, images))) == len(rules)
    classes = case.records[0]["mask"]
    if name not in ("ade20k", "cityscapes", "coco_stuff"):  # whose files hold other numbers
        swapped = np.array([*class_map, *range(182, 256)])[classes]
        ignored = np.where(classes == 3, 255, classes)
        for found, expected in zip(images[1:], (classes - np.uint8(1), swapped, ignored)):
            expected = np.where(classes == 255, 255, expected)
            np.testing.assert_array_equal(found[0]["mask"], expected)


@pytest.mark.parametrize("name", ["csv", "webdataset", "huggingface"])
def test_other_labels(name, tmp_path):
    case = MAKERS[name](tmp_path, False)
    images = opened(case, labels="other")
    assert [record["label"] for record in images] == [0, 1, 0, 1] and images.num_classes == 2
    assert repr(images) != repr(opened(case))
    for key in ("images", "labels", "masks"):
        with pytest.raises(InputError, match=f"data.{key}"):
            opened(case, **{key: "nosuch"})


def test_other_masks_and_records_print_otherwise(tmp_path):
    case = MAKERS["folder with masks"](tmp_path, False)
    (tmp_path / "other").symlink_to(tmp_path / "masks")
    assert repr(opened(case)) != repr(opened(case, masks="other"))
    alone = make_source(case.config, truth=False)
    assert repr(alone) != repr(opened(case))
    rows = [repr(Subset(alone, rows)) for rows in ([0, 1], [0, 2], [1, 0])]
    assert len(set(rows)) == 3


def test_a_decode_size_is_for_images_alone(tmp_path):
    records.save(tmp_path / "0.jpg", np.zeros((48, 64, 3), np.uint8))
    section = dict(kind="folder", dir=str(tmp_path), decode_size=24)
    images = make_source(section, truth=False)
    assert images[0]["image"].shape == (24, 32, 3) and images.shape(0) == (24, 32)
    assert make_source({**section, "size": 16})[0]["image"].shape == (16, 16, 3)
    records.save(tmp_path / "0_mask.png", np.zeros((48, 64), np.uint8))
    (tmp_path / "list.csv").write_text("path,mask\n0.jpg,0_mask.png\n")
    masked = {**section, "kind": "csv"}
    assert make_source(masked)[0]["image"].shape == (48, 64, 3)  # as an evaluation has it
    trained = make_source(masked, truth=False)[0]
    assert trained["image"].shape == (24, 32, 3) and "mask" not in trained
