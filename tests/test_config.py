"""Keys, config files, names, storing, and what may change when a run is continued."""

import inspect
import json
import re
import sys

import pytest
from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import validate
from ssl_jax.config import InputError

SOURCE = """
import ml_collections
from ssl_jax import config as config_lib

def get_config(arg="small"):
    config = config_lib.base()
    config.method = "toy"
    toy = dict(temperature=0.1, head=dict(width=64), names=("a", "b"))
    config.toy = ml_collections.ConfigDict(toy)
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


def resolved(config, **changes):
    config = ConfigDict(config.to_dict())
    config.update_from_flattened_dict(changes)
    return validate.resolve(config, num_records=10_240, num_devices=8)


# --- base and load


def test_every_key_has_a_comment():
    source = inspect.getsource(config_lib.base) + inspect.getsource(config_lib._data_section)
    keys = [
        line
        for line in source.splitlines()
        if re.match(r"    [a-z]\.[a-z_0-9.]+ = (?!.*(ConfigDict|_data_section)\()", line)
    ]
    assert len(keys) > 80
    assert not [line for line in keys if "  # " not in line]


def test_base_is_valid_but_for_its_method(toy):
    with pytest.raises(InputError, match='method is ""'):
        validate.validate(config_lib.base(), 8)
    validate.validate(toy, 8)


def test_base_gives_a_new_config_each_time():
    config_lib.base().optim.lr = 1.0
    assert config_lib.base().optim.lr == 5e-4


@pytest.mark.parametrize(("section", "key"), [("optim", "lrr"), ("model", "widht")])
def test_no_key_can_be_added_to_a_section(section, key):
    with pytest.raises((AttributeError, KeyError)):
        config_lib.base()[section][key] = 1
    with pytest.raises((AttributeError, KeyError)):
        config_lib.base()[section].update({key: 1})


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
            SOURCE.replace("config.optim.epochs", "config.optim.knn_k"),
            r'"knn_k"; did you mean "eval.knn_k"\?',
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
        config_lib.load(str(tmp_path / "bad.py"))
    assert "\n" not in str(caught.value)


def test_a_missing_config_file_names_the_nearest(file):
    with pytest.raises(
        InputError, match=r'unknown config file ".*toyy.py"; did you mean ".*toy.py"\?'
    ):
        config_lib.load(file.replace("toy.py", "toyy.py"))


def test_a_variant_for_a_file_without_variants(tmp_path):
    (tmp_path / "plain.py").write_text(
        SOURCE.replace('arg="small"', "").replace("[arg]", '["small"]')
    )
    assert config_lib.load(str(tmp_path / "plain.py")).optim.epochs == 10.0
    with pytest.raises(InputError, match="has no variants"):
        config_lib.load(str(tmp_path / "plain.py:large"))


# --- names, storing, resume


def test_json_round_trip(toy):
    config = resolved(toy, **{"eval.tasks": (), "optim.lr": 0.1 + 0.2})
    again = config_lib.from_json(config_lib.to_json(config))
    assert again == config and hash(again) == hash(config)
    flat, kept = config_lib.flatten(again), config_lib.flatten(config)
    assert {k: type(v) for k, v in flat.items()} == {k: type(v) for k, v in kept.items()}
    validate.validate(again, 8)


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_broken_json(text):
    with pytest.raises(InputError, match="stored config"):
        config_lib.from_json(text)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.patch", 8),
        ("model.dtype", "bfloat16"),
        ("toy.temperature", 0.2),
        ("toy.names", ("a",)),
        ("views.local_count", 2),
        ("optim.batch_size", 512),
        ("optim.lr", 1e-4),
        ("optim.epochs", 20.0),
        ("seed", 1),
        ("data.split", "test"),
        ("teacher.momentum", 0.9),
        ("data.crop_on", "device"),
        ("optim.clip_by", "global"),
    ],
)
def test_what_must_agree_to_resume(toy, key, value):
    saved, current = resolved(toy), resolved(toy, **{key: value})
    old = config_lib.flatten(saved)[key]
    assert config_lib.compare_for_resume(saved, current) == [
        f"{key} is {old!r} there, {value!r} here"
    ]
    assert (
        config_lib.compare_for_resume(config_lib.from_json(config_lib.to_json(saved)), saved) == []
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("log.every_steps", 1),
        ("eval.tasks", ("knn",)),
        ("eval.image.length", 50),
        ("checkpoint.keep", 5),
        ("data.workers", 3),
        ("mesh.fsdp", 2),
        ("data.dir", "/elsewhere"),
        ("data.cache", True),
        ("model.remat", True),
        ("model.scan", True),
        ("optim.chunks", 2),
        ("max_nonfinite", 5),
        ("expected.knn", "1"),
    ],
)
def test_what_may_change_on_resume(toy, key, value):
    assert config_lib.compare_for_resume(resolved(toy), resolved(toy, **{key: value})) == []


def test_the_same_model_by_another_name_can_be_resumed(toy):
    custom = {"model.size": "custom", "model.width": 384, "model.depth": 12, "model.heads": 6}
    assert config_lib.compare_for_resume(resolved(toy), resolved(toy, **custom)) == []
    deeper = resolved(toy, **custom | {"model.depth": 13})
    assert config_lib.compare_for_resume(resolved(toy), deeper) == [
        "model.depth is 12 there, 13 here"
    ]


def test_another_data_set_size_or_a_key_that_is_gone(toy):
    saved = resolved(toy)
    larger = validate.resolve(toy, num_records=20_000, num_devices=8)
    assert config_lib.compare_for_resume(saved, larger) == [
        "run.num_records is 10240 there, 20000 here"
    ]
    values = saved.to_dict()
    del values["optim"]["clip"]
    older = config_lib.from_json(json.dumps(values))
    assert config_lib.compare_for_resume(older, saved) == ["optim.clip is absent there, 3.0 here"]


def test_changed_keys(toy):
    other = ConfigDict(toy.to_dict())
    other.update_from_flattened_dict({"eval.knn_k": (7,), "toy.head.width": 8})
    assert config_lib.changed(toy, other) == ["eval.knn_k", "toy.head.width"]
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
