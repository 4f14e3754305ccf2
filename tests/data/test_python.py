"""python.py: records that a function of the user's returns."""

import numpy as np
import pytest
from ml_collections import FrozenConfigDict
from PIL import Image

from ssl_jax import config as config_lib
from ssl_jax import settings
from ssl_jax.config import InputError
from ssl_jax.data import base
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.source import make_source
from tests.data.records import IMAGES, MASKS

HERE = "python:tests.data.test_python"


class Records:
    num_classes, has_masks, size = None, True, (8, 8)

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return {"image": IMAGES[i], "label": 7, "mask": MASKS[i]}

    def name(self, i):
        return f"mine {i}"


of_records, of_levels, of_floats, of_gray, of_wrong, of_nothing, of_none = (
    Records,
    lambda: [(Image.fromarray(np.full((4, 4), 257 * 99, np.uint16)), 0)],
    lambda: [(Image.fromarray(np.full((4, 4), 0.5, np.float32)), 0)],
    lambda: [(IMAGES[0][..., 0], 0)],
    lambda: [(IMAGES[0].astype(np.int64), 0)],
    lambda: iter(()),
    lambda **anything: [],
)
number = 3


def of_splits(split):
    return {"train": [1, 2]}[split]


def made(function, **config):
    return make_source(dict(kind=f"{HERE}.{function}", **config))


def test_records_and_what_they_say_of_themselves(monkeypatch):
    small, records = made("of_records", size=4), made("of_records")
    assert small.has_masks and small[0]["mask"].shape == (4, 4) and small.name(2) == "mine 2"
    assert records[1].keys() == {"image", "mask"}  # nobody knows how many labels there are
    np.testing.assert_array_equal(records[1]["mask"], MASKS[1])
    assert records.shape(0) == (8, 8)
    np.testing.assert_array_equal(made("of_gray")[0]["image"][..., 2], IMAGES[0][..., 0])
    assert (made("of_levels")[0]["image"] == 99).all()  # of 16 bits
    monkeypatch.setitem(globals(), "of_wide", lambda: [(Image.new("I", (4, 4), 99), 0)])
    assert (made("of_wide")[0]["image"] == 99).all()  # bytes in wide numbers
    for name, wrong in {"of_wrong": "int64", "of_floats": "range"}.items():
        with pytest.raises(Unreadable, match=wrong):
            made(name)[0]


@pytest.mark.parametrize(
    "attributes, names",
    [
        (dict(classes=np.array(["a", "b"])), ("a", "b")),
        (dict(class_names=np.array([3, 4])), ("3", "4")),
        (dict(class_names={"b": 1, "a": 0}), ("a", "b")),
        (dict(classes=2), None),
        (dict(classes=[("tench", "Tinca"), ("shark",)]), ("('tench', 'Tinca')", "('shark',)")),
        (dict(classes=("a", "b"), size=224, sequences=3, unlabelled=np.array([0])), ("a", "b")),
    ],
)
def test_attributes_of_other_types_are_no_facts(attributes, names, monkeypatch):
    kind = type("Labelled", (list,), attributes)
    monkeypatch.setitem(globals(), "of_kind", lambda: kind([(IMAGES[0], 1), (IMAGES[1], 0)]))
    records = made("of_kind")
    assert records.class_names == names and records.num_classes == 2
    assert records.size is None and records.sequences is None and records[0]["label"] == 1


def test_floats_that_are_not_in_0_1_are_refused(monkeypatch):
    image = 255 * np.ones((8, 8, 3), np.float32)
    kind = type("Floats", (list,), dict(floats=True))
    monkeypatch.setitem(globals(), "of_range", lambda: kind([(image, 0)]))
    with pytest.raises(InputError, match="255"):
        made("of_range", size=4)[0]  # resizing would clip
    assert made("of_range")[0]["image"].max() == 255  # of which `ssl-jax stats` tells


def test_a_source_gives_what_other_objects_give(monkeypatch):
    class Mine(base.Source):
        classes, __len__ = ("a", "b"), lambda self: 2
        name = "no {}".format

        def __getitem__(self, i):
            return [(Image.fromarray(IMAGES[0]), None), None][i]

    monkeypatch.setitem(globals(), "of_source", Mine)
    records = made("of_source")
    assert records.num_classes == 2 and records[0]["label"] == -1
    np.testing.assert_array_equal(records[0]["image"], IMAGES[0])
    with pytest.raises(Unreadable, match="no 1"):
        records[1]


def test_labels_are_whole_numbers_below_that_of_classes(monkeypatch):
    labels = [1.0, -1, None, 2, 0.5, "b"]
    labelled = type("Labelled", (list,), dict(classes={"b": 1, "a": 0}))
    monkeypatch.setitem(globals(), "of_labels", lambda: labelled((IMAGES[0], x) for x in labels))
    records = made("of_labels")
    assert records.class_names == ("a", "b")
    assert [records[i]["label"] for i in range(3)] == [1, -1, -1] and records.unlabelled == ()
    labelled.targets = [1, -1, None, 1, [0, 1], "b"]
    assert made("of_labels").unlabelled == [1, 2]
    for i in range(3, 6):
        with pytest.raises(InputError, match=f"of_labels/{i} .*label"):
            records[i]


@pytest.mark.parametrize(
    "kind, named, split",
    [
        ("python:of_splits", "python:module.function", "train"),
        ("python:no_such_module.pairs", "no_such_module", "train"),
        (f"{HERE}.of_splitz", "of_splits", "train"),
        (f"{HERE}.number", "number", "train"),
        (f"{HERE}.of_nothing", "of_nothing", "train"),
        (f"{HERE}.of_none", "of_none", "train"),
        *((f"{HERE}.of_splits", "KeyError", "val"), (f"{HERE}.of_records", "'val'", "val")),
    ],
)
def test_functions_and_splits_that_cannot_be(kind, named, split):
    with pytest.raises(InputError, match=f"data.(kind|split).*{named}") as caught:
        make_source(dict(kind=kind, split=split))
    assert "\n" not in str(caught.value)


def test_a_config_keeps_it():
    config = settings.base_config("dino")
    config.data.kind = f"{HERE}.of_records"
    settings.validate(config, None)
    stored = config_lib.from_json(config_lib.to_json(config))
    assert settings.completed(FrozenConfigDict(stored)).data.kind == config.data.kind
