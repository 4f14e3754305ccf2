"""What is refused before anything is allocated, and what a config implies."""

import math

import pytest
from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import validate
from ssl_jax.config import InputError


@pytest.fixture
def toy() -> ConfigDict:
    """A valid config of a method that only has a section."""
    config = config_lib.base()
    config.method = "toy"
    config.toy = ConfigDict(dict(temperature=0.1))
    config.optim.epochs = 10
    return config


def changed(config, changes) -> ConfigDict:
    config = ConfigDict(config.to_dict())
    config.update_from_flattened_dict(changes)
    return config


def resolved(config, **changes):
    return validate.resolve(changed(config, changes), num_records=10_240, num_devices=8)


# --- validate

REFUSED = [
    (
        {"data.kind": "folders"},
        r'data.kind is "folders"; it must be one of .*did you mean "folder"',
    ),
    ({"data.kind": "folder"}, r'data.dir is ""'),
    ({"data.kind": "tfds"}, r'data.name is ""'),
    ({"data.max_unreadable": 1.5}, r"data.max_unreadable is 1.5; it must lie between 0 and 1"),
    ({"data.workers": -1}, r"data.workers is -1; it must be 0 or more"),
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
    ({"model.drop_path": 1.0}, r"model.drop_path is 1.0; it must lie in \[0, 1\)"),
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
    ({"teacher.momentum": 1.01}, r"teacher.momentum is 1.01; it must lie between 0 and 1"),
    (
        {"mesh.fsdp": 3},
        r"mesh.fsdp is 3, which does not divide 8 devices; use one of \[1, 2, 4, 8\]",
    ),
    ({"mesh.data": 16}, r"16 x 1 = 16, but there are 8 devices"),
    ({"checkpoint.every_steps": 0}, r"checkpoint.every_steps is 0; it must be above 0"),
    ({"eval.tasks": ("knn", "denze")}, r'eval.tasks is "denze".*did you mean "dense"'),
    ({"eval.tasks": ("knn,linear",)}, r"eval.tasks is .*; for several tasks write"),
    ({"eval.dense.kind": "digits"}, r'eval.dense.kind is "digits", which has no masks'),
    (
        {"eval.image.kind": "digit_scenes"},
        r'eval.image.kind is "digit_scenes", which has no image labels',
    ),
    ({"eval.image.kind": "folder"}, r'eval.image.dir is ""'),
    ({"eval.image.kind": "folder", "eval.tasks": ("rank",)}, r'eval.image.dir is ""'),
    ({"eval.dense.kind": "tfds", "data.dir": "x"}, r'eval.dense.name is ""'),
    ({"eval.knn_temperature": 0.0}, r"eval.knn_temperature is 0.0; it must be above 0"),
    ({"eval.knn_k": (0, 10)}, r"eval.knn_k is"),
    ({"seed": -1}, r"seed is -1"),
    ({"seed": 2**31}, r"seed is .* below"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[",".join(c) for c, _ in REFUSED])
def test_impossible_configs_are_refused(toy, changes, message):
    config = changed(toy, changes)
    with pytest.raises(InputError, match=message) as caught:
        validate.validate(config, 8)
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
        {"eval.tasks": (), "eval.dense.kind": "folder", "eval.image.kind": "folder"},
        {"eval.tasks": ("rank",), "eval.image.kind": "digit_scenes"},  # needs no labels
        {
            "data.kind": "folder",
            "data.dir": "x",
            "eval.image.kind": "folder",
        },  # evaluated where it is trained
        {"model.size": "custom", "model.width": 192, "model.depth": 6, "model.heads": 6},
        {"model.width": 384},  # the same as the size
    ],
    ids=str,
)
def test_possible_configs_are_not(toy, changes):
    validate.validate(changed(toy, changes), 8)


def test_without_a_number_of_devices_the_mesh_is_not_checked(toy):
    """A run of eight devices is evaluated on one."""
    other = changed(toy, {"mesh.data": 8})
    with pytest.raises(InputError, match="mesh.data"):
        validate.validate(other, 1)
    validate.validate(other, None)


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
    change(toy)
    with pytest.raises(InputError, match=message):
        validate.validate(toy, 8)


def test_a_method_without_its_section(toy):
    toy.method = "toi"
    with pytest.raises(InputError, match='no section "toi" for its method'):
        validate.validate(toy, 8)


def test_a_section_that_lacks_keys(toy):
    values = toy.to_dict()
    del values["optim"]["clip"]
    with pytest.raises(InputError, match="lacks optim.clip"):
        validate.validate(ConfigDict(values), 8)


def test_sizes_agree_with_the_zoo():
    from ssl_jax.models import zoo

    assert {name: tuple(size)[:3] for name, size in zoo.SIZES.items()} == config_lib.MODEL_SIZES


# --- resolve


def test_resolve(toy):
    config = changed(toy, {"optim.batch_size": 512, "optim.warmup_epochs": 1.5, "mesh.fsdp": 2})
    assert toy.optim.batch_size == 1024  # the argument is left alone
    run = validate.resolve(config, num_records=10_300, num_devices=8).run
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
    validate.validate(config, 8)


def test_evaluations_look_where_training_does_unless_told_otherwise(toy):
    tfds = {
        "data.kind": "tfds",
        "data.name": "a",
        "data.dir": "sets",
        "eval.image.kind": "tfds",
        "eval.image.name": "b",
    }
    assert resolved(toy, **tfds).eval.image.dir == "sets"
    assert resolved(toy, **tfds).eval.dense.dir == ""  # generated: another kind
    assert resolved(toy, **tfds, **{"eval.image.dir": "mine"}).eval.image.dir == "mine"


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
            (
                r"optim.warmup_epochs is 10.0 = 100 steps, longer than the run of 25 steps; use at"
                r" most 2.5"
            ),
        ),
    ],
)
def test_resolve_refuses(toy, changes, message):
    with pytest.raises(InputError, match=message):
        resolved(toy, **changes)
