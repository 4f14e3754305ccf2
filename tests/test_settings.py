"""The whole config: its keys, what is refused before anything is allocated, what a config implies,
and what may change when a run is continued.
"""

import json
import math

import pytest
from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import evals, methods, settings
from ssl_jax.config import InputError

pytestmark = pytest.mark.usefixtures("toy_method")


def compare_for_resume(saved, current):
    return config_lib.compare_for_resume(saved, current, settings.keys(current.method))


@pytest.fixture
def toy(toy_method) -> ConfigDict:
    """A valid config of a method that only has a section."""
    config = settings.base_config("toy")
    config.optim.epochs = 10
    evals.add(config, "knn", "linear", "rank", "dense")
    config.evals.tasks = ("knn", "linear", "dense")
    return config


def changed(config, changes) -> ConfigDict:
    config = ConfigDict(config.to_dict())
    config.update_from_flattened_dict(changes)
    return config


def resolved(config, **changes):
    return settings.resolve(changed(config, changes), num_records=10_240, num_devices=8)


# --- keys


def numbers(default) -> bool:
    first = default[0] if isinstance(default, tuple) and default else default
    return isinstance(first, int | float) and not isinstance(first, bool)


@pytest.mark.parametrize("name", ["", *methods.METHODS])
def test_every_key_has_a_meaning_and_every_number_a_range(name):
    declared = settings.keys(name)
    everything = {type: evals.new(type) for type in evals.TYPES}
    declared |= evals.keys(ConfigDict(dict(evals=everything)))
    assert len(declared) > 80
    assert [k for k, entry in declared.items() if not entry.meaning] == []
    limited = [k for k, e in declared.items() if e.above is not None or e.least is not None]
    assert [k for k, e in declared.items() if numbers(e.default) and k not in limited] == []


@pytest.mark.parametrize("name", ["", "toy", *methods.METHODS])
def test_every_default_is_allowed(name):
    for dotted, entry in settings.keys(name).items():
        entry.check(dotted, entry.default)


def test_base_config_is_valid_and_complete(toy):
    settings.validate(toy, 8)
    assert set(config_lib.flatten(toy)) == {*settings.keys("toy"), *evals.keys(toy)}
    assert (toy.method, toy.toy.head.width) == ("toy", 64)
    toy.method = ""
    with pytest.raises(InputError, match='method is ""'):
        settings.validate(toy, 8)


def test_base_config_is_a_new_one_each_time():
    settings.base_config("toy").optim.lr = 1.0
    assert settings.base_config("toy").optim.lr == 5e-4


def test_base_config_of_an_unknown_method():
    with pytest.raises(InputError, match='unknown method "toi"; did you mean "toy"'):
        settings.base_config("toi")


@pytest.mark.parametrize(("section", "key"), [("optim", "lrr"), ("model", "widht"), ("toy", "x")])
def test_no_key_can_be_added_to_a_section(section, key):
    with pytest.raises((AttributeError, KeyError)):
        settings.base_config("toy")[section][key] = 1
    with pytest.raises((AttributeError, KeyError)):
        settings.base_config("toy")[section].update({key: 1})


def test_expected_numbers_are_open_and_never_checked(toy):
    toy.expected.knn = "75.3 (paper)"
    toy.expected = {"dense": math.nan}
    settings.validate(toy, 8)


# --- validate

REFUSED = [
    (
        {"data.kind": "folders"},
        r'data.kind is "folders"; it must be one of .*did you mean "folder"',
    ),
    ({"data.kind": "folder"}, r'data.dir is ""'),
    ({"data.kind": "tfds"}, r'data.name is ""'),
    ({"data.max_unreadable": 1.5}, r"data.max_unreadable is 1.5; it must be between 0 and 1"),
    ({"data.workers": -1}, r"data.workers is -1; it must be between 0 and 1024"),
    (
        {"views.global_size": 230},
        r"views.global_size is 230, not a multiple of 16 \(model.patch\); use 224 or 240",
    ),
    (
        {"views.local_size": 100},
        r"views.local_size is 100, not a multiple of 16 \(model.patch\); use 96 or 112",
    ),
    (
        {"views.local_size": 8},
        r"views.local_size is 8, not a multiple of 16 \(model.patch\); use 16",
    ),
    (
        {"views.global_scale": (0.5, 0.2)},
        r"views.global_scale is \(0.5, 0.2\); it must be \(low, high\)",
    ),
    ({"views.global_scale": (0.0, 1.0)}, r"views.global_scale is .*each above 0"),
    ({"views.local_scale": (0.1, 0.2, 0.3)}, r"views.local_scale is"),
    ({"views.mask_ratio": (0.1, 1.2)}, r"views.mask_ratio is"),
    ({"views.jitter": (0.4, 0.4, 0.2)}, r"views.jitter is .* 4 numbers"),
    ({"views.jitter": (0.4, 0.4, 0.2, 0.6)}, r"hue .* at most 0.5"),
    ({"views.blur_prob": (1.0, 0.1)}, r"views.blur_prob is .* 3 numbers"),
    ({"views.flip": 1.1}, r"views.flip is 1.1; it must be between 0 and 1"),
    ({"views.mask": "blocks"}, r'did you mean "block"'),
    ({"model.size": "S"}, r'model.size is "S"; it must be one of ti, s, b, l, h, custom'),
    ({"model.width": 256}, r'model.width is 256 but model.size "s" has 384'),
    ({"model.size": "custom"}, r'model.width is 0; model.size="custom" needs'),
    (
        {"model.size": "custom", "model.width": 100, "model.depth": 2, "model.heads": 3},
        r"model.width is 100, not a multiple of 3 \(model.heads",
    ),
    (
        {
            "model.size": "custom",
            "model.width": 90,
            "model.depth": 2,
            "model.heads": 3,
            "model.position": "sincos",
        },
        r"90, not a multiple of 4",
    ),
    ({"model.image_size": 225}, r"model.image_size is 225, not a multiple of 16"),
    ({"model.drop_path": 1.0}, r"model.drop_path is 1.0; it must be at least 0 and below 1"),
    (
        {"optim.batch_size": 100},
        r"optim.batch_size is 100, not a multiple of 8 \(number of devices\); use 96 or 104",
    ),
    (
        {"optim.batch_size": 72, "optim.chunks": 2},
        r"multiple of 16 \(8 devices x optim.chunks 2\); use 64 or 80",
    ),
    ({"optim.lr": 0.0}, r"optim.lr is 0.0; it must be above 0"),
    ({"optim.lr": math.nan}, r"optim.lr is nan; it must be finite"),
    ({"optim.epochs": 0.0}, r"optim.epochs and optim.steps are both 0"),
    (
        {"optim.epochs": 5.0},
        r"optim.warmup_epochs is 10.0, longer than the run; use at most optim.epochs = 5.0",
    ),
    ({"optim.clip": 0.0}, r'optim.clip is 0.0; it must be above 0 \(optim.clip_by="none"'),
    ({"optim.clip_by": "norm"}, r"optim.clip_by is"),
    ({"optim.beta2": 1.0}, r"optim.beta2 is 1.0"),
    ({"teacher.momentum": 1.01}, r"teacher.momentum is 1.01; it must be between 0 and 1"),
    (
        {"mesh.fsdp": 3},
        r"mesh.fsdp is 3, which does not divide 8 devices; use one of \[1, 2, 4, 8\]",
    ),
    ({"mesh.data": 16}, r"16 x 1 = 16, but there are 8 devices"),
    ({"checkpoint.every_steps": 0}, r"checkpoint.every_steps is 0; it must be above 0"),
    ({"evals.tasks": ("knn", "denze")}, r'evals.tasks is "denze".*did you mean "dense"'),
    (
        {"evals.tasks": ("knn,linear",)},
        r"evals.tasks is .*; for several write --config.evals.tasks=.*'dense', 'knn'",
    ),
    ({"evals.dense.data.kind": "photos"}, r'evals.dense.data.kind is "photos", .* no masks'),
    (
        {"evals.knn.data.kind": "photo_collages"},
        r'evals.knn.data.kind is "photo_collages", which has no labels',
    ),
    ({"evals.knn.data.kind": "folder"}, r'evals.knn.data.dir is ""'),
    ({"evals.rank.data.kind": "folder", "evals.tasks": ("rank",)}, r'evals.rank.data.dir is ""'),
    ({"evals.dense.data.kind": "tfds", "data.dir": "x"}, r'evals.dense.data.name is ""'),
    ({"evals.knn.temperature": 0.0}, r"evals.knn.temperature is 0.0; it must be above 0"),
    ({"evals.knn.k": (0, 10)}, r"evals.knn.k is"),
    ({"seed": -1}, r"seed is -1"),
    ({"evals.knn.k": ()}, r"evals.knn.k is empty; give at least one number"),
    ({"evals.linear.lrs": ()}, r"evals.linear.lrs is empty"),
    ({"seed": 2**31}, r"seed is .* below"),
    ({"toy.temperature": 0.0}, r"toy.temperature is 0.0; it must be above 0"),
    ({"toy.head.width": 10**9}, r"toy.head.width is 1000000000; it must be .* at most 1024"),
    ({"toy.names": ("a", "d")}, r'toy.names is "d"; it must be one of a, b, c'),
    # Numbers that would only show as a traceback, a full memory or an endless start.
    ({"data.size": 10**9}, r"data.size is 1000000000; it must be between 0 and 16384"),
    ({"data.length": 10**30}, r"data.length is 1000.*; it must be .* at most 2147483647"),
    ({"log.every_steps": 2**31}, r"log.every_steps is 2147483648; it must be at most 2147483647"),
    ({"data.workers": 10**9}, r"data.workers is 1000000000; it must be between 0 and 1024"),
    ({"views.global_count": 10**9}, r"views.global_count is 1000000000"),
    ({"views.local_count": 10**9}, r"views.local_count is 1000000000"),
    ({"views.blur_radius": (1.0, 1e9)}, r"views.blur_radius is"),
    ({"model.depth": 10**9}, r"model.depth is 1000000000"),
    ({"model.width": 10**9}, r"model.width is 1000000000"),
    ({"model.queries": 10**9}, r"model.queries is 1000000000"),
    ({"model.mlp_ratio": 1e30}, r"model.mlp_ratio is 1e\+30; it must be .* at most 100"),
    ({"model.mlp_ratio": 1e-30}, r"model.mlp_ratio is 1e-30, which leaves .* no hidden unit"),
    ({"model.init_std": 1e30}, r"model.init_std is 1e\+30; it must be .* at most 0.4"),
    ({"model.position_std": -1.0}, r"model.position_std is -1.0; it must be between 0 and 4"),
    ({"model.position_std": 1e30}, r"model.position_std is 1e\+30; it must be between 0 and 4"),
    ({"optim.lr": 1e30}, r"optim.lr is 1e\+30; it must be above 0 and at most 1000"),
    ({"optim.epochs": 1e30}, r"optim.epochs is 1e\+30; it must be between 0 and 1000000"),
    ({"optim.warmup_epochs": -1.0}, r"optim.warmup_epochs is -1.0; it must be between 0 and"),
    ({"optim.final_weight_decay": -1.0}, r"optim.final_weight_decay is -1.0"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[",".join(c) for c, _ in REFUSED])
def test_impossible_configs_are_refused(toy, changes, message):
    config = changed(toy, changes)
    with pytest.raises(InputError, match=message) as caught:
        settings.validate(config, 8)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {
            "views.local_size": 100,
            "views.local_count": 0,
        },  # no local views: their size does not matter
        {"optim.epochs": 0.0, "optim.steps": 5000},
        {"optim.clip": 0.0, "optim.clip_by": "none"},
        {"mesh.fsdp": 4},
        {"mesh.data": 1},
        {"mesh.data": 3, "optim.batch_size": 99},
        {"evals.tasks": (), "evals.dense.data.kind": "folder", "evals.knn.data.kind": "folder"},
        {"evals.tasks": ("rank",), "evals.rank.data.kind": "photo_collages"},  # needs no labels
        {
            "data.kind": "folder",
            "data.dir": "x",
            "evals.knn.data.kind": "folder",
        },  # evaluated where it is trained
        {"model.size": "custom", "model.width": 192, "model.depth": 6, "model.heads": 6},
        {"model.width": 384},  # the same as the size
    ],
    ids=str,
)
def test_possible_configs_are_not(toy, changes):
    settings.validate(changed(toy, changes), 8)


def test_without_a_number_of_devices_the_mesh_is_not_checked(toy):
    """A run of eight devices is evaluated on one."""
    other = changed(toy, {"mesh.data": 8})
    with pytest.raises(InputError, match="mesh.data"):
        settings.validate(other, 1)
    settings.validate(other, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c.update(expectd={"knn": "1"}),
            r'unknown config section "expectd"; did you mean "expected"',
        ),
        (lambda c: c.update(sed=1), r'unknown config key "sed"; did you mean "seed"'),
        (
            lambda c: c.views.update(jitter=(1, "x")),
            r"views.jitter is \(1, 'x'\); it must be a tuple of numbers",
        ),
    ],
)
def test_keys_and_types_of_a_config_file(toy, change, message):
    other = changed(toy, {})  # not locked
    change(other)
    with pytest.raises(InputError, match=message):
        settings.validate(other, 8)


def test_a_method_without_its_section(toy):
    toy.method = "toi"
    with pytest.raises(InputError, match='no section "toi" for its method'):
        settings.validate(toy, 8)


def test_a_section_that_lacks_keys(toy):
    values = toy.to_dict()
    del values["optim"]["clip"]
    with pytest.raises(InputError, match="lacks optim.clip"):
        settings.validate(ConfigDict(values), 8)


# --- resolve


def test_resolve(toy):
    config = changed(toy, {"optim.batch_size": 512, "optim.warmup_epochs": 1.5, "mesh.fsdp": 2})
    assert toy.optim.batch_size == 1024  # the argument is left alone
    run = settings.resolve(config, num_records=10_300, num_devices=8).run
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
    settings.validate(config, 8)


def test_evaluations_look_where_training_does_unless_told_otherwise(toy):
    tfds = {
        "data.kind": "tfds",
        "data.name": "a",
        "data.dir": "sets",
        "evals.knn.data.kind": "tfds",
        "evals.knn.data.name": "b",
    }
    assert resolved(toy, **tfds).evals.knn.data.dir == "sets"
    assert resolved(toy, **tfds).evals.dense.data.dir == ""  # generated: another kind
    mine = resolved(toy, **tfds, **{"evals.knn.data.dir": "mine"})
    assert mine.evals.knn.data.dir == "mine"


def test_a_run_of_more_steps_than_can_be_counted(toy):
    with pytest.raises(InputError, match=r"a run of 10000000000 steps; use at most 214748"):
        settings.resolve(changed(toy, {"optim.epochs": 1e6}), num_records=10_240_000, num_devices=8)


def test_resolve_with_steps(toy):
    run = resolved(toy, **{"optim.steps": 25, "optim.warmup_epochs": 0}).run
    assert (run.total_steps, run.steps_per_epoch, run.epochs) == (25, 10, 2.5)


def test_a_few_steps_of_a_long_recipe_end_the_warm_up(toy):
    run = resolved(toy, **{"optim.steps": 25, "optim.warmup_epochs": 10.0}).run
    assert run.total_steps == run.warmup_steps == 25


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"optim.batch_size": 10_241},
            "optim.batch_size is 10241, but the set has only 10240 images; use at most 10240",
        ),
        ({"optim.epochs": 0.04}, "less than one step of 10 an epoch; use at least 0.1"),
        (
            {"optim.epochs": 2.54, "optim.warmup_epochs": 2.56},
            r"optim.warmup_epochs is 2.56 = 26 steps, longer than the run of 25 steps; use at most"
            r" 2.5",
        ),
    ],
)
def test_resolve_refuses(toy, changes, message):
    with pytest.raises(InputError, match=message):
        resolved(toy, **changes)


# --- resume


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
    assert compare_for_resume(saved, current) == [f"{key} is {old!r} there, {value!r} here"]
    assert compare_for_resume(config_lib.from_json(config_lib.to_json(saved)), saved) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("log.every_steps", 1),
        ("evals.tasks", ("knn",)),
        ("evals.knn.data.length", 50),
        ("checkpoint.keep", 5),
        ("data.workers", 3),
        ("mesh.fsdp", 2),
        ("data.dir", "/elsewhere"),
        ("data.cache", True),
        ("model.remat", "block"),
        ("model.scan", True),
        ("optim.chunks", 2),
        ("max_nonfinite", 5),
        ("expected.knn", "1"),
    ],
)
def test_what_may_change_on_resume(toy, key, value):
    assert compare_for_resume(resolved(toy), resolved(toy, **{key: value})) == []


def test_the_same_model_by_another_name_can_be_resumed(toy):
    custom = {"model.size": "custom", "model.width": 384, "model.depth": 12, "model.heads": 6}
    assert compare_for_resume(resolved(toy), resolved(toy, **custom)) == []
    deeper = resolved(toy, **custom | {"model.depth": 13})
    assert compare_for_resume(resolved(toy), deeper) == ["model.depth is 12 there, 13 here"]


def test_another_data_set_size_or_a_key_that_is_gone(toy):
    saved = resolved(toy)
    larger = settings.resolve(toy, num_records=20_000, num_devices=8)
    assert compare_for_resume(saved, larger) == ["run.num_records is 10240 there, 20000 here"]
    values = saved.to_dict()
    del values["optim"]["clip"]
    values["log"]["gone"] = 1  # nothing in this section matters
    older = config_lib.from_json(json.dumps(values))
    assert compare_for_resume(older, saved) == ["optim.clip is absent there, 3.0 here"]


def test_a_key_that_came_later_matters_when_it_switches_something_on(toy):
    toy.data.kind, toy.data.dir = "folder", "images"
    values = resolved(toy).to_dict()
    del values["data"]["list"]
    older = config_lib.from_json(json.dumps(values))
    assert compare_for_resume(older, resolved(toy)) == []
    toy.data.list = "names.txt"
    assert compare_for_resume(older, resolved(toy)) == [
        "data.list is absent there, 'names.txt' here"
    ]
