"""Loading, overriding, refusing, resolving, comparing and storing configs."""

import inspect
import json
import math
import re
import sys

import pytest
from absl import flags
from ml_collections import ConfigDict, config_flags

from ssl_jax import config as config_lib
from ssl_jax.config import InputError

SOURCE = """
import ml_collections
from ssl_jax import config as config_lib

def get_config(arg="small"):
    config = config_lib.base()
    config.method = "toy"
    config.toy = ml_collections.ConfigDict(dict(temperature=0.1, head=dict(width=64), names=("a", "b")))
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
    return config_lib.resolve(config_lib.apply_overrides(config, changes), num_records=10_240, num_devices=8)


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
        config_lib.validate(config_lib.base(), 8)
    config_lib.validate(toy, 8)


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
    config = config_lib.load(f"{file}:large", {"optim.lr": "1e-3", "toy.head.width": "32"})
    assert (config.optim.epochs, config.optim.lr, config.toy.head.width) == (300.0, 1e-3, 32)
    with pytest.raises(AttributeError):
        config.toy.new = 1


def test_load_lets_a_config_import_its_neighbours(tmp_path):
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "toy_neighbour_of_test.py").write_text(SOURCE)
    (folder / "toy.py").write_text("from configs.toy_neighbour_of_test import get_config\n")
    loaded = {name for name in sys.modules if name.split(".")[0] == "configs"}
    kept = {name: sys.modules.pop(name) for name in loaded}
    try:
        assert config_lib.load(str(folder / "toy.py:large")).optim.epochs == 300.0
        assert str(tmp_path) not in sys.path
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "configs"]:
            del sys.modules[name]
        sys.modules.update(kept)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", r"defines no get_config"),
        ("def get_config(arg): return {}", r"needs a variant: --config=.*NAME"),
        ("def get_config(): return {}", r"must return an ml_collections.ConfigDict, got dict"),
        (SOURCE.replace("optim.epochs", "optim.epoch"), r'unknown config key "epoch"; did you mean "optim.epochs"\?'),
        (SOURCE.replace("config.expected =", 'config.optim.lr = "high"; config.expected ='), r"'lr'.*high.*str.*float"),
        (
            SOURCE.replace("config.expected", "config.expectd"),
            r'unknown config section "expectd"; did you mean "expected"',
        ),
        (
            SOURCE.replace("config.expected =", "config.views.jitter = (1, 'x'); config.expected ="),
            r"views.jitter is .*tuple of numbers",
        ),
    ],
)
def test_a_config_file_that_cannot_be_used(tmp_path, source, message):
    (tmp_path / "bad.py").write_text(source)
    with pytest.raises(InputError, match=message) as caught:
        config_lib.load(str(tmp_path / "bad.py"))
    assert "\n" not in str(caught.value)


def test_a_missing_config_file_names_the_nearest(file):
    with pytest.raises(InputError, match=r'unknown config file ".*toyy.py"; did you mean ".*toy.py"\?'):
        config_lib.load(file.replace("toy.py", "toyy.py"))


def test_a_variant_for_a_file_without_variants(tmp_path):
    (tmp_path / "plain.py").write_text(SOURCE.replace('arg="small"', "").replace("[arg]", '["small"]'))
    assert config_lib.load(str(tmp_path / "plain.py")).optim.epochs == 10.0
    with pytest.raises(InputError, match="has no variants"):
        config_lib.load(str(tmp_path / "plain.py:large"))


# --- overrides


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("optim.lr", "1e-3", 1e-3),
        ("optim.epochs", "3", 3.0),
        ("optim.batch_size", "64", 64),
        ("model.cls", "false", False),
        ("model.scan", "1", True),
        ("data.split", "train[:10%]", "train[:10%]"),
        ("data.name", "123", "123"),
        ("views.global_scale", "(0.3, 1)", (0.3, 1.0)),
        ("views.global_scale", "0.3,1", (0.3, 1.0)),
        ("eval.tasks", "knn", ("knn",)),
        ("eval.tasks", "knn,dense", ("knn", "dense")),
        ("eval.tasks", "('knn','dense')", ("knn", "dense")),
        ("eval.tasks", "()", ()),
        ("eval.knn_k", "5", (5,)),
        ("toy.names", "c,d,e", ("c", "d", "e")),
        ("toy.head.width", "128", 128),
        ("seed", 7, 7),
    ],
)
def test_overrides_take_the_type_of_the_key(toy, key, text, value):
    got = config_lib.flatten(config_lib.apply_overrides(toy, {key: text}))[key]
    assert got == value and type(got) is type(value)
    if isinstance(value, tuple):
        assert [type(x) for x in got] == [type(x) for x in value]


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("optim.lrr", "1", r'unknown config key "optim.lrr"; did you mean "optim.lr"\?'),
        ("optim.learning_rate", "1", r'unknown config key "optim.learning_rate"'),
        ("batch_size", "1", r'did you mean "\w+.batch_size"\?'),
        ("toy.temprature", "1", r'did you mean "toy.temperature"\?'),
        ("optimizer.weight_decay", "1", r'did you mean "optim.weight_decay"\?'),
        ("mesh", "1", r'"mesh" is a section; set one of its keys: mesh.data, mesh.fsdp'),
        ("run.total_steps", "5", r'"run.total_steps" is computed'),
        ("optim.batch_size", "64.5", r"optim.batch_size is '64.5'; it must be an integer, for example 1024"),
        ("optim.batch_size", "many", r"optim.batch_size is 'many'; it must be an integer"),
        ("optim.lr", "fast", r"optim.lr is 'fast'; it must be a number, for example 0.0005"),
        ("optim.lr", "True", r"optim.lr is 'True'; it must be a number"),
        ("model.cls", "perhaps", r"model.cls is 'perhaps'; it must be true or false"),
        (
            "views.global_scale",
            "(0.3, 'x')",
            r"views.global_scale is .*; it must be a tuple of numbers, for example \(0.25, 1.0\)",
        ),
        ("eval.knn_k", "1.5", r"eval.knn_k is '1.5'; it must be a tuple of integers"),
        ("data.split", 5, r"data.split is 5; it must be a string"),
    ],
)
def test_wrong_overrides_say_what_would_be_right(toy, key, text, message):
    with pytest.raises(InputError, match=message) as caught:
        config_lib.apply_overrides(toy, {key: text})
    assert "\n" not in str(caught.value)


def test_the_command_line_equals_config_flags(file):
    """Same syntax, same result as ml_collections' own flag; all other arguments are handed on in order."""
    ours = [
        f"--config={file}:large",
        "--config.optim.lr=1e-3",
        "--config.model.cls=false",
        "-config.optim.batch_size",
        "64",
        "--config.views.global_scale=(0.3, 0.9)",
        "--config.log.tensorboard",
        "--noconfig.model.scan",
        "--config.data.split=train[:10%]",
    ]
    line = config_lib.parse_argv(
        ["ssl-jax", "train", *ours[:5], "--workdir=x", *ours[5:], "CHECKPOINT", "--", "--config.seed=3"]
    )
    assert line.rest == ["ssl-jax", "train", "--workdir=x", "CHECKPOINT", "--", "--config.seed=3"]
    assert line.file.optim.lr == 5e-4 and line.config.optim.lr == 1e-3
    assert list(line.overrides) == [
        "optim.lr",
        "model.cls",
        "optim.batch_size",
        "views.global_scale",
        "log.tensorboard",
        "model.scan",
        "data.split",
    ]

    values = flags.FlagValues()
    argv = ["program", *ours]
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
    values(argv)
    assert config_lib.flatten(values.config) == config_lib.flatten(line.config)


def test_a_separate_file_argument(file):
    line = config_lib.parse_argv(["train", "--config", file, "--workdir", "x"])
    assert line.rest == ["train", "--workdir", "x"] and line.config.optim.epochs == 10.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.optim.lr=1"], "--config=FILE is missing"),
        (["--config"], "--config=FILE is missing"),
        (["--config=FILE", "--config.optim.lrr=1"], 'did you mean "optim.lr"'),
        (["--config=FILE", "--config.optim.lr"], "--config.optim.lr has no value"),
        (["--config=FILE", "--config.optim.lr", "--workdir=x"], "--config.optim.lr has no value"),
        (["--config=FILE", "--noconfig.optim.lr"], "optim.lr is no boolean"),
    ],
)
def test_a_command_line_that_cannot_be_read(file, arguments, message):
    with pytest.raises(InputError, match=message):
        config_lib.parse_argv([a.replace("FILE", file) for a in arguments])


def test_a_command_line_without_config():
    assert config_lib.parse_argv(["eval", "runs/a", "--configure=1"]) is None


# --- validation

REFUSED = [
    ({"data.kind": "folders"}, r'data.kind is "folders"; it must be one of .*did you mean "folder"'),
    ({"data.kind": "folder"}, r'data.dir is ""'),
    ({"data.kind": "tfds"}, r'data.name is ""'),
    ({"data.max_unreadable": 1.5}, r"data.max_unreadable is 1.5; it must lie between 0 and 1"),
    ({"data.workers": -1}, r"data.workers is -1; it must be 0 or more"),
    ({"views.global_size": 230}, r"views.global_size is 230, not a multiple of 16 \(model.patch\); use 224 or 240"),
    ({"views.local_size": 100}, r"views.local_size is 100, not a multiple of 16 \(model.patch\); use 96 or 112"),
    ({"views.local_size": 8}, r"views.local_size is 8, not a multiple of 16 \(model.patch\); use 16"),
    ({"views.global_scale": (0.5, 0.2)}, r"views.global_scale is \(0.5, 0.2\); it must be \(low, high\)"),
    ({"views.global_scale": (0.0, 1.0)}, r"a crop needs an area above 0"),
    ({"views.local_scale": (0.1, 0.2, 0.3)}, r"views.local_scale is"),
    ({"views.mask_ratio": (0.1, 1.2)}, r"views.mask_ratio is"),
    ({"views.jitter": (0.4, 0.4, 0.2)}, r"views.jitter is .* 4 numbers"),
    ({"views.jitter": (0.4, 0.4, 0.2, 0.6)}, r"hue .* at most 0.5"),
    ({"views.blur_prob": (1.0, 0.1)}, r"views.blur_prob is .* 3 numbers"),
    ({"views.flip": 1.1}, r"views.flip is 1.1; it must lie between 0 and 1"),
    ({"views.mask": "blocks"}, r'did you mean "block"'),
    ({"model.size": "S"}, r'model.size is "S"; it must be one of ti, s, b, l, h, custom'),
    ({"model.width": 256}, r'model.width is 256 but model.size "s" has 384'),
    ({"model.size": "custom"}, r'model.width is 0; model.size="custom" needs'),
    (
        {"model.size": "custom", "model.width": 100, "model.depth": 2, "model.heads": 3},
        r"model.width is 100, not a multiple of 3 \(model.heads",
    ),
    (
        {"model.size": "custom", "model.width": 90, "model.depth": 2, "model.heads": 3, "model.position": "sincos"},
        r"90, not a multiple of 4",
    ),
    ({"model.image_size": 225}, r"model.image_size is 225, not a multiple of 16"),
    ({"model.drop_path": 1.0}, r"model.drop_path is 1.0; it must lie in \[0, 1\)"),
    ({"optim.batch_size": 100}, r"optim.batch_size is 100, not a multiple of 8 \(number of devices\); use 96 or 104"),
    ({"optim.batch_size": 72, "optim.chunks": 2}, r"multiple of 16 \(8 devices x optim.chunks 2\); use 64 or 80"),
    ({"optim.lr": 0.0}, r"optim.lr is 0.0; it must be above 0"),
    ({"optim.lr": math.nan}, r"optim.lr is nan; it must be finite"),
    ({"optim.epochs": 0.0}, r"optim.epochs and optim.steps are both 0"),
    ({"optim.epochs": 5.0}, r"optim.warmup_epochs is 10.0, longer than the run; use at most optim.epochs = 5.0"),
    ({"optim.clip": 0.0}, r'optim.clip is 0.0; it must be above 0 \(optim.clip_by="none"'),
    ({"optim.clip_by": "norm"}, r"optim.clip_by is"),
    ({"optim.beta2": 1.0}, r"optim.beta2 is 1.0"),
    ({"teacher.momentum": 1.01}, r"teacher.momentum is 1.01; it must lie between 0 and 1"),
    ({"mesh.fsdp": 3}, r"mesh.fsdp is 3, which does not divide 8 devices; use one of \[1, 2, 4, 8\]"),
    ({"mesh.data": 16}, r"16 x 1 = 16, but there are 8 devices"),
    ({"checkpoint.every_steps": 0}, r"checkpoint.every_steps is 0; it must be above 0"),
    ({"eval.tasks": ("knn", "denze")}, r'eval.tasks is "denze".*did you mean "dense"'),
    ({"eval.dense.kind": "digits"}, r'eval.dense.kind is "digits", which has no masks'),
    ({"eval.image.kind": "digit_scenes"}, r'eval.image.kind is "digit_scenes", which has no image labels'),
    ({"eval.image.kind": "folder"}, r'eval.image.dir is ""'),
    ({"eval.knn_temperature": 0.0}, r"eval.knn_temperature is 0.0; it must be above 0"),
    ({"eval.knn_k": (0, 10)}, r"eval.knn_k is"),
    ({"seed": -1}, r"seed is -1"),
    ({"seed": 2**31}, r"seed is .* below"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[",".join(c) for c, _ in REFUSED])
def test_impossible_configs_are_refused(toy, changes, message):
    config = config_lib.apply_overrides(toy, changes)
    with pytest.raises(InputError, match=message) as caught:
        config_lib.validate(config, 8)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"views.local_size": 100, "views.local_count": 0},  # no local views: their size does not matter
        {"optim.epochs": 0.0, "optim.steps": 5000},
        {"optim.clip": 0.0, "optim.clip_by": "none"},
        {"mesh.fsdp": 4},
        {"mesh.data": 1},
        {"mesh.data": 3, "optim.batch_size": 99},
        {"eval.tasks": (), "eval.dense.kind": "folder", "eval.image.kind": "folder"},
        {"model.size": "custom", "model.width": 192, "model.depth": 6, "model.heads": 6},
        {"model.width": 384},  # the same as the size
    ],
    ids=str,
)
def test_possible_configs_are_not(toy, changes):
    config_lib.validate(config_lib.apply_overrides(toy, changes), 8)


def test_a_method_without_its_section(toy):
    toy.method = "toi"
    with pytest.raises(InputError, match='no section "toi" for its method'):
        config_lib.validate(toy, 8)


def test_a_section_that_lacks_keys(toy):
    values = toy.to_dict()
    del values["optim"]["clip"]
    with pytest.raises(InputError, match="lacks optim.clip"):
        config_lib.validate(ConfigDict(values), 8)


def test_sizes_agree_with_the_zoo():
    from ssl_jax.models import zoo

    assert {name: tuple(size)[:3] for name, size in zoo.SIZES.items()} == config_lib.MODEL_SIZES


# --- resolving, origins, storing, resume


def test_resolve(toy):
    config = config_lib.apply_overrides(toy, {"optim.batch_size": 512, "optim.warmup_epochs": 1.5, "mesh.fsdp": 2})
    assert toy.optim.batch_size == 1024  # the argument is left alone
    run = config_lib.resolve(config, num_records=10_300, num_devices=8).run
    assert run.to_dict() == dict(
        num_records=10_300,
        steps_per_epoch=20,
        total_steps=200,
        epochs=10.0,
        warmup_steps=30,
        peak_lr=1e-3,
        batch_per_device=64,
    )
    assert "run" not in config and config.model.width == 0  # and here too


def test_resolve_fills_the_model_and_is_idempotent_and_hashable(toy):
    config = resolved(toy)
    assert (config.model.width, config.model.depth, config.model.heads) == (384, 12, 6)
    assert resolved(config) == config and hash(resolved(config)) == hash(config)
    config_lib.validate(config, 8)


def test_resolve_with_steps(toy):
    run = resolved(toy, **{"optim.steps": 25, "optim.warmup_epochs": 0}).run
    assert (run.total_steps, run.steps_per_epoch, run.epochs) == (25, 10, 2.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optim.batch_size": 10_241},
            "optim.batch_size is 10241, but the set has only 10240 images; use at most 10240",
        ),
        ({"optim.epochs": 0.04}, "less than one step of 10 an epoch; use at least 0.1"),
        (
            {"optim.steps": 25},
            r"optim.warmup_epochs is 10.0 = 100 steps, longer than the run of 25 steps; use at most 2.5",
        ),
    ],
)
def test_resolve_refuses(toy, changes, message):
    with pytest.raises(InputError, match=message):
        resolved(toy, **changes)


def test_origins(file):
    default = config_lib.base()
    default.toy = ConfigDict(dict(temperature=0.1, head=dict(width=32), names=("a", "b")))
    line = config_lib.parse_argv([f"--config={file}", "--config.optim.lr=1e-3", "--config.seed=0"])
    got = config_lib.origins(default, line.file, line.config, resolved(line.config))
    expected = {
        "optim.lr": "command line",
        "optim.epochs": "config file",
        "optim.clip": "default",
        "toy.temperature": "default",
        "toy.head.width": "config file",
        "method": "config file",
        "run.total_steps": "computed",
        "model.width": "computed",
        "seed": "default",
        "views.jitter": "default",
    }
    assert {key: got[key] for key in expected} == expected
    assert set(got) == set(config_lib.flatten(resolved(line.config)))


def test_json_round_trip(toy):
    config = resolved(toy, **{"eval.tasks": (), "optim.lr": 0.1 + 0.2})
    again = config_lib.from_json(config_lib.to_json(config))
    assert again == config and hash(again) == hash(config)
    flat, kept = config_lib.flatten(again), config_lib.flatten(config)
    assert {k: type(v) for k, v in flat.items()} == {k: type(v) for k, v in kept.items()}
    config_lib.validate(again, 8)


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
    assert config_lib.compare_for_resume(saved, current) == [f"{key} is {old!r} there, {value!r} here"]
    assert config_lib.compare_for_resume(config_lib.from_json(config_lib.to_json(saved)), saved) == []


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
    assert config_lib.compare_for_resume(resolved(toy), deeper) == ["model.depth is 12 there, 13 here"]


def test_another_data_set_size_or_a_key_that_is_gone(toy):
    saved = resolved(toy)
    larger = config_lib.resolve(toy, num_records=20_000, num_devices=8)
    assert config_lib.compare_for_resume(saved, larger) == ["run.num_records is 10240 there, 20000 here"]
    values = saved.to_dict()
    del values["optim"]["clip"]
    older = config_lib.from_json(json.dumps(values))
    assert config_lib.compare_for_resume(older, saved) == ["optim.clip is absent there, 3.0 here"]


def test_changed_keys(toy):
    other = config_lib.apply_overrides(toy, {"eval.knn_k": "7", "toy.head.width": "8"})
    assert config_lib.changed(toy, other) == ["eval.knn_k", "toy.head.width"]
    assert config_lib.changed(toy, toy) == []
    assert config_lib.changed({"a": None}, {"b": 1}) == ["a", "b"]


def test_unknown_names_the_nearest_and_lists_a_few():
    assert (
        config_lib.unknown("method", "sopp", ("dino", "sop"))
        == 'unknown method "sopp"; did you mean "sop"? (known: dino, sop)'
    )
    assert config_lib.unknown("method", "zzz", ("dino", "sop")) == 'unknown method "zzz" (known: dino, sop)'
    assert config_lib.unknown("key", "zzz", [f"k{i}" for i in range(20)]) == 'unknown key "zzz"'
