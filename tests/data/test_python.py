"""python.py: records that a function of the user's returns."""

import pickle
import sys

import numpy as np
import pytest
from ml_collections import FrozenConfigDict

from ssl_jax import config as config_lib
from ssl_jax import settings
from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.data.python import Called
from ssl_jax.data.source import make_source
from tests.data.records import IMAGES, LABELS, MASKS

MODULE = '''
import numpy as np
from PIL import Image
from tests.data.records import IMAGES, LABELS, MASKS

class Pairs:
    """As torchvision's data sets."""
    classes = ["oak", "ash", "elm"]

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if i == 5:
            raise OSError("the disk is gone")
        return Image.fromarray(IMAGES[i]), LABELS[i]

class Records:
    num_classes, has_masks, size = None, True, (8, 8)

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return {"image": IMAGES[i], "label": 7, "mask": MASKS[i]}

    def name(self, i):
        return f"mine {i}"

def pairs(dir, split):
    return Pairs({"train": 12, "test": 3}[split])

def records():
    return Records()

def gray():
    return [(IMAGES[0][..., 0], 0)]

def wrong():
    return [(IMAGES[0].astype(np.float64), 0)]

def nothing():
    return iter(())

def empty(**anything):
    return []

number = 3
'''


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_of_tests.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("mine_of_tests", None)


def made(function, **config):
    return make_source(dict(kind=f"python:mine_of_tests.{function}", **config))


def test_pairs_with_names_of_classes():
    train, test = made("pairs", dir="x"), made("pairs", dir="x", split="test")
    assert (len(train), len(test), train.num_classes) == (12, 3, 3)
    assert list(train.class_names) == ["oak", "ash", "elm"]
    np.testing.assert_array_equal(train[4]["image"], IMAGES[4])
    assert train[4]["label"] == LABELS[4] and train.name(4) == "python:mine_of_tests.pairs/4"
    assert len(made("pairs", split="train[75%:]")) == 3
    with pytest.raises(Unreadable, match="pairs/5: OSError: the disk is gone"):
        train[5]
    with pytest.raises(IndexError):
        train[12]


def test_records_and_what_they_say_of_themselves():
    records = made("records", size=4)
    assert records.has_masks and records[0]["mask"].shape == (4, 4) and records.name(2) == "mine 2"
    assert made("records")[1].keys() == {"image", "mask"}  # nobody knows how many labels there are
    np.testing.assert_array_equal(made("records")[1]["mask"], MASKS[1])
    assert made("records").shape(0) == (8, 8)
    np.testing.assert_array_equal(made("gray")[0]["image"][..., 2], IMAGES[0][..., 0])
    with pytest.raises(Unreadable, match=r"must be uint8 \[H,W,3\].* not float64 \[8, 8, 3\]"):
        made("wrong")[0]


def test_it_pickles_and_prints_stably():
    train = made("pairs", dir="x")
    copy = pickle.loads(pickle.dumps(train))
    assert repr(copy) == repr(train) and " at 0x" not in repr(train)
    assert "python:mine_of_tests.pairs', dir='x', split='train', images=12" in repr(train)
    np.testing.assert_array_equal(copy[1]["image"], train[1]["image"])


@pytest.mark.parametrize(
    "kind, message",
    [
        ("python:pairs", 'write "python:module.function"'),
        ("python:no_such_module.pairs", "no module 'no_such_module'.* in PYTHONPATH"),
        ("python:mine_of_tests.pair", "no function 'pair'; did you mean 'pairs'"),
        ("python:mine_of_tests.number", "no function 'number'"),
        ("python:mine_of_tests.nothing", "must return an object with len"),
        ("python:mine_of_tests.empty", "returned no record"),
        ("pyhton:mine_of_tests.pairs", "data.kind: one of"),
    ],
)
def test_functions_that_cannot_be(kind, message):
    with pytest.raises(InputError, match=message) as caught:
        make_source(dict(kind=kind))
    assert "\n" not in str(caught.value)


def test_splits_that_it_does_not_have():
    with pytest.raises(InputError, match="pairs called with .*'val'.* raised KeyError"):
        made("pairs", split="val")
    with pytest.raises(InputError, match="takes no argument `split`.* not 'val'"):
        made("records", split="val")
    assert isinstance(made("records"), Called)


def test_a_config_keeps_it():
    config = settings.base_config("dino")
    config.data.kind = "python:mine_of_tests.pairs"
    settings.validate(config, None)
    stored = config_lib.from_json(config_lib.to_json(config))
    assert settings.completed(FrozenConfigDict(stored)).data.kind == config.data.kind
    config.data.masks = "m"
    with pytest.raises(InputError, match="data.masks is 'm', which means nothing for"):
        settings.validate(config, None)
