"""How keys are declared and checked, config files, names, storing."""

import math
import sys

import pytest
from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import settings
from ssl_jax.config import InputError, Key, key
from tests import toy as toy_module

pytestmark = pytest.mark.usefixtures("toy_method")

SOURCE = """
from ssl_jax import settings

def get_config(arg="small"):
    config = settings.base_config("toy")
    config.optim.epochs = {"small": 10, "large": 300}[arg]
    config.expected = {"knn": "75.3 (paper)"}
    return config
"""


@pytest.fixture
def file(tmp_path) -> str:
    path = tmp_path / "toy.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.fixture
def toy(file) -> ConfigDict:
    return config_lib.load(file)


# --- keys

KEYS = {
    "above": Key(1.0, "", above=0),
    "least": Key(1, "", least=0),
    "two": Key(2, "", least=2),
    "share": Key(0.5, "", least=0, most=1),
    "decay": Key(0.5, "", least=0, below=1),
    "most": Key(1, "", above=0, most=1024),
    "choice": Key("block", "", choices=("none", "block")),
    "flag": Key(True, ""),
    "text": Key("", ""),
    "pair": Key((0.1, 0.2), "", above=0, most=1, ordered=True),
    "three": Key((0.0, 0.5, 1.0), "", least=0, most=1, length=3),
    "several": Key((10, 20), "", above=0),
    "names": Key(("knn",), "", choices=("knn", "dense")),
    "any": Key((), ""),
    "none": Key((), "", element=0.5),
}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("above", 0.0, "above is 0.0; it must be above 0"),
        ("above", -1, "above is -1; it must be above 0"),
        ("above", math.nan, "above is nan; it must be finite"),
        ("above", math.inf, "above is inf; it must be finite"),
        ("above", "high", "above is 'high'; it must be a number, for example 1.0"),
        ("above", True, "above is True; it must be a number, for example 1.0"),
        ("least", -1, "least is -1; it must be 0 or more"),
        ("least", 1.5, "least is 1.5; it must be an integer, for example 1"),
        ("two", 1, "two is 1; it must be 2 or more"),
        ("share", 1.1, "share is 1.1; it must be between 0 and 1"),
        ("decay", 1.0, "decay is 1.0; it must be at least 0 and below 1"),
        ("most", 10**9, "most is 1000000000; it must be above 0 and at most 1024"),
        (
            "choice",
            "blok",
            'choice is "blok"; it must be one of none, block; did you mean "block"?',
        ),
        ("flag", 1, "flag is 1; it must be true or false, for example True"),
        ("text", 1, "text is 1; it must be a string, for example ''"),
        (
            "pair",
            (0.5, 0.2),
            "pair is (0.5, 0.2); it must be (low, high) with low <= high, each above 0 and at"
            " most 1",
        ),
        ("pair", (0.0, 0.2), "pair is (0.0, 0.2); it must be (low, high) with low <= high, each"),
        ("pair", (0.1, 0.2, 0.3), "pair is (0.1, 0.2, 0.3); it must be (low, high)"),
        ("pair", 0.1, "pair is 0.1; it must be a tuple of numbers, for example (0.1, 0.2)"),
        ("pair", (0.1, math.nan), "pair is (0.1, nan); it must be finite"),
        ("three", (1, 1), "three is (1, 1); it must be 3 numbers, each between 0 and 1"),
        ("several", (0, 10), "several is (0, 10); it must be numbers, each above 0"),
        ("several", ("a", "b"), "several is ('a', 'b'); it must be a tuple of integers"),
        ("none", ("a",), "none is ('a',); it must be a tuple of numbers, for example (0.5,)"),
        (
            "names",
            ("knn", "denze"),
            'names is "denze"; it must be one of knn, dense; did you mean "dense"?',
        ),
        (
            "names",
            ("knn,dense",),
            "names is ('knn,dense',); for several write --config.names=\"('knn', 'dense')\"",
        ),
    ],
)
def test_a_key_refuses(name, value, message):
    with pytest.raises(InputError) as caught:
        KEYS[name].check(name, value)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("above", 1),
        ("above", 1e30),
        ("least", 0),
        ("two", 2),
        ("share", 0),
        ("share", 1.0),
        ("decay", 0.999),
        ("most", 1024),
        ("choice", "none"),
        ("flag", False),
        ("text", "a,b"),
        ("pair", [0.2, 0.2]),
        ("pair", (1, 1)),
        ("three", (0, 1, 0.5)),
        ("several", ()),
        ("several", (1, 2, 3)),
        ("names", ()),
        ("any", (1, "a")),
        ("none", ()),
        ("none", (1, 0.2)),
    ],
)
def test_a_key_accepts(name, value):
    KEYS[name].check(name, value)


def test_a_section_with_other_defaults():
    section = dict(lr=key(0.1, "step", "epochs", above=0), cls=dict(anchors=key(8, "of tokens")))
    other = config_lib.with_defaults(section, {"cls.anchors": 16, "lr": 0.2})
    assert other["lr"] == key(0.2, "step", "epochs", above=0) and section["lr"].default == 0.1
    assert other["cls"]["anchors"].default == 16 and section["cls"]["anchors"].default == 8
    free = config_lib.flatten(config_lib.free_on_resume(section))
    assert all(entry.free for entry in free.values())
    assert not any(entry.free for entry in config_lib.flatten(section).values())


def test_a_config_of_declared_keys_takes_no_others():
    config = config_lib.build(toy_module.defaults())
    assert config.to_dict() == {"temperature": 0.1, "head": {"width": 64}, "names": ("a", "b")}
    for section in (config, config.head):
        with pytest.raises((AttributeError, KeyError)):
            section.new = 1


def test_multiples():
    config_lib.check_multiple("a.b", 32, 16, "c")
    for value, message in (
        (30, "a.b is 30, not a multiple of 16 (c); use 16 or 32"),
        (8, "use 16"),
    ):
        with pytest.raises(InputError) as caught:
            config_lib.check_multiple("a.b", value, 16, "c")
        assert message in str(caught.value)


# --- load


def test_load_calls_get_config_with_the_argument(file):
    assert config_lib.load(file).optim.epochs == 10.0
    config = config_lib.load(f"{file}:large")
    assert (config.optim.epochs, config.toy.head.width) == (300.0, 64)
    with pytest.raises(AttributeError):
        config.toy.new = 1


def test_load_lets_a_config_import_its_neighbours(tmp_path):
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "toy_neighbour_of_test.py").write_text(SOURCE)
    (folder / "toy.py").write_text("from .toy_neighbour_of_test import get_config\n")
    assert config_lib.load(str(folder / "toy.py:large")).optim.epochs == 300.0
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", r"defines no get_config"),
        ("def get_config(arg): return {}", r"needs a variant: --config=.*NAME"),
        ("def get_config(): return {}", r"must return an ml_collections.ConfigDict, got dict"),
        (
            SOURCE.replace("optim.epochs", "optim.epoch"),
            r'unknown config key "epoch"; did you mean "epochs"\?',
        ),
        (
            SOURCE.replace("config.optim.epochs", "config.toy.lock().tempratur"),
            r'"tempratur"; did you mean "temperature"\?',
        ),
        (
            SOURCE.replace("config.optim.epochs", "config.optim.max_unreadabl"),
            r'"max_unreadabl"; did you mean "data.max_unreadable"\?',
        ),
        (
            SOURCE.replace("config.optim.epochs", "config.sed"),
            r'unknown config key "sed"; did you mean "seed"\?',
        ),
        (
            SOURCE.replace("config.expected", "config.expectd"),
            r'unknown config key "expectd"; did you mean "expected"\?',
        ),
        (SOURCE.replace("[arg]", '["medium"]'), r"KeyError: medium"),
        (
            SOURCE.replace("config.expected =", 'config.optim.lr = "high"; config.expected ='),
            r"'lr'.*high.*str.*float",
        ),
    ],
)
def test_a_config_file_that_cannot_be_used(tmp_path, source, message):
    (tmp_path / "bad.py").write_text(source)
    with pytest.raises(InputError, match=message) as caught:
        config_lib.load(str(tmp_path / "bad.py"), settings.keys())
    assert "\n" not in str(caught.value)


def test_a_missing_config_file_names_the_nearest(file):
    with pytest.raises(
        InputError, match=r'unknown config file ".*toyy.py"; did you mean ".*toy.py"\?'
    ):
        config_lib.load(file.replace("toy.py", "toyy.py"))


def test_a_config_file_is_python(tmp_path):
    with pytest.raises(InputError, match="toy.toml is no Python file"):
        config_lib.read_module(tmp_path / "toy.toml")


def test_a_variant_for_a_file_without_variants(tmp_path):
    (tmp_path / "plain.py").write_text(
        SOURCE.replace('arg="small"', "").replace("[arg]", '["small"]')
    )
    assert config_lib.load(str(tmp_path / "plain.py")).optim.epochs == 10.0
    with pytest.raises(InputError, match="has no variants"):
        config_lib.load(str(tmp_path / "plain.py:large"))


# --- names, storing


def test_json_round_trip(toy):
    toy.update_from_flattened_dict({"evals.tasks": (), "optim.lr": 0.1 + 0.2})
    config = settings.resolve(toy, num_records=10_240, num_devices=8)
    again = config_lib.from_json(config_lib.to_json(config))
    assert again == config and hash(again) == hash(config)
    flat, kept = config_lib.flatten(again), config_lib.flatten(config)
    assert {k: type(v) for k, v in flat.items()} == {k: type(v) for k, v in kept.items()}
    settings.validate(again, 8)


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_broken_json(text):
    with pytest.raises(InputError, match="stored config"):
        config_lib.from_json(text)


def test_changed_keys(toy):
    other = ConfigDict(toy.to_dict())
    other.update_from_flattened_dict({"evals.batch_size": 7, "toy.head.width": 8})
    assert config_lib.changed(toy, other) == ["evals.batch_size", "toy.head.width"]
    assert config_lib.changed(toy, toy) == []
    assert config_lib.changed({"a": None}, {"b": 1}) == ["a", "b"]


def test_unknown_names_the_nearest_and_lists_a_few():
    assert (
        config_lib.unknown("method", "sopp", ("dino", "sop"))
        == 'unknown method "sopp"; did you mean "sop"? (known: dino, sop)'
    )
    assert (
        config_lib.unknown("method", "zzz", ("dino", "sop"))
        == 'unknown method "zzz" (known: dino, sop)'
    )
    assert config_lib.unknown("key", "zzz", [f"k{i}" for i in range(20)]) == 'unknown key "zzz"'


@pytest.mark.parametrize(
    "text, message",
    [
        ("def get_config(:", r"mine.py, line 1: invalid syntax"),
        ("import no_such_module", r"mine.py: No module named 'no_such_module'; install it, or"),
        ("from math import nothing", r"mine.py: cannot import name 'nothing' from 'math'"),
        ("x = 1", "defines no get_config"),
        ("\0", r"mine.py: source code .*null bytes"),
    ],
)
def test_a_config_file_that_is_none_is_named(text, message, tmp_path):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(InputError, match=message):
        config_lib.load(str(tmp_path / "mine.py"))
