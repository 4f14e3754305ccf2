"""The whole config: how its keys are declared, what it implies, and what may change when a run is
continued. What it refuses is in test_config.py.
"""

import json

import pytest
from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import evals, methods, settings
from ssl_jax.config import InputError
from tests import tiny

pytestmark = pytest.mark.usefixtures("toy_method")


@pytest.fixture
def toy(toy_method) -> ConfigDict:
    """A valid config of a method that only has a section."""
    config = settings.base_config("toy")
    config.optim.epochs = 10
    evals.add(config, "knn", "linear", "rank", "dense")
    config.evals.tasks = ("knn", "linear", "dense")
    return config


def resolved(config, **changes):
    config = ConfigDict(config.to_dict())
    config.update_from_flattened_dict(changes)
    return settings.resolve(config, num_records=10_240, num_devices=8)


# --- keys


def is_number(default) -> bool:
    first = default[0] if isinstance(default, tuple) and default else default
    return isinstance(first, int | float) and not isinstance(first, bool)


@pytest.mark.parametrize("name", ["", "toy", *methods.METHODS])
def test_every_key_has_a_meaning_a_range_and_a_default_that_it_allows(name):
    everything = {type: evals.new(type) for type in evals.TYPES}
    declared = settings.keys(name) | evals.keys(ConfigDict(dict(evals=everything)))
    assert len(declared) > 80
    for dotted, entry in declared.items():
        entry.check(dotted, entry.default)
        assert entry.meaning, dotted
        ranged = entry.above is not None or entry.least is not None
        assert ranged or not is_number(entry.default), dotted


def test_base_config_is_valid_complete_and_new_each_time(toy):
    settings.validate(toy, 8)
    assert set(config_lib.flatten(toy)) == {*settings.keys("toy"), *evals.keys(toy)}
    settings.base_config("toy").optim.lr = 1.0
    assert settings.base_config("toy").optim.lr == settings.keys()["optim.lr"].default
    with pytest.raises(InputError, match="toy"):
        settings.base_config("toi")


# --- resolve


def test_resolve(toy):
    changes = {"optim.batch_size": 512, "optim.warmup_epochs": 1.5, "mesh.fsdp": 2}
    toy.update_from_flattened_dict(changes)
    before = config_lib.to_json(toy)
    config = settings.resolve(toy, num_records=10_300, num_devices=8)
    plan = "num_records=10300 steps_per_epoch=20 total_steps=200 epochs=10.0 warmup_steps=30"
    assert config.run.to_dict() == tiny.values(f"{plan} peak_lr=1e-3 batch_per_device=64")
    assert config_lib.to_json(toy) == before
    assert (config.model.width, config.model.depth, config.model.heads) == (384, 12, 6)
    again = settings.resolve(ConfigDict(config.to_dict()), num_records=10_300, num_devices=8)
    assert again == config and hash(again) == hash(config)
    settings.validate(config, 8)


def test_evaluations_look_where_training_does_unless_told_otherwise(toy):
    tfds = {"data.kind": "tfds", "data.name": "a", "data.dir": "sets"}
    tfds |= {"evals.knn.data.kind": "tfds", "evals.knn.data.name": "b"}
    assert resolved(toy, **tfds).evals.knn.data.dir == "sets"
    assert resolved(toy, **tfds).evals.dense.data.dir == ""  # generated: another kind
    mine = resolved(toy, **tfds, **{"evals.knn.data.dir": "mine"})
    assert mine.evals.knn.data.dir == "mine"


def test_paths_that_are_stored_are_called_from_any_folder(toy, tmp_path, monkeypatch):
    (tmp_path / "images").mkdir()
    monkeypatch.chdir(tmp_path)
    toy.data.kind, toy.data.dir, toy.evals.cache = "folder", "images/../images", "features"
    stored = settings.with_absolute_paths(toy)
    assert (stored.data.dir, stored.evals.cache) == (f"{tmp_path}/images", f"{tmp_path}/features")
    assert toy.data.dir == "images/../images"


def test_steps_instead_of_epochs(toy):
    for warmup, wanted in ((0, 0), (10.0, 25)):  # a few steps of a long recipe end the warm-up
        run = resolved(toy, **{"optim.steps": 25, "optim.warmup_epochs": warmup}).run
        assert (run.total_steps, run.steps_per_epoch, run.epochs) == (25, 10, 2.5)
        assert run.warmup_steps == wanted
    toy.optim.epochs = 1e6
    with pytest.raises(InputError, match="optim.epochs"):  # more than can be counted
        settings.resolve(toy, num_records=10_240_000, num_devices=8)


# --- resume


def differing(saved, current) -> list[str]:
    return config_lib.compare_for_resume(saved, current, settings.keys(current.method))


MUST_AGREE = tiny.values("""
    model.patch=8 model.dtype=bfloat16 toy.temperature=0.2 toy.names=('a',) views.local_count=2
    optim.batch_size=512 optim.lr=1e-4 optim.clip_by=global seed=1 data.split=test
    data.crop_on=device data.area_crops=True teacher.momentum=0.9
""")
MAY_CHANGE = tiny.values("""
    log.every_steps=1 evals.tasks=('knn',) evals.knn.data.length=50 checkpoint.keep=5
    data.workers=3 data.dir=/elsewhere mesh.fsdp=2 model.remat=block optim.chunks=2
    max_nonfinite=5 expected.knn='1'
""")


@pytest.mark.parametrize(("key", "value"), [*MUST_AGREE.items(), *MAY_CHANGE.items()])
def test_what_must_agree_to_resume_and_what_may_change(toy, key, value):
    saved, current = resolved(toy), resolved(toy, **{key: value})
    old = config_lib.flatten(saved).get(key)
    wanted = [f"{key} is {old!r} there, {value!r} here"] if key in MUST_AGREE else []
    assert differing(saved, current) == wanted
    assert differing(config_lib.from_json(config_lib.to_json(saved)), saved) == []


def test_the_same_model_by_another_name_can_be_resumed(toy):
    custom = {"model.size": "custom", "model.width": 384, "model.depth": 12, "model.heads": 6}
    assert differing(resolved(toy), resolved(toy, **custom)) == []
    deeper = resolved(toy, **custom | {"model.depth": 13})
    assert differing(resolved(toy), deeper) == ["model.depth is 12 there, 13 here"]


@pytest.mark.parametrize("key", ["init_from", "gram.file", "data.list"])
def test_a_file_may_be_named_by_another_path_and_be_moved(toy, tmp_path, monkeypatch, key):
    for name in ("a/w.npz", "b/x.npz"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path / "a")

    def stored(value):
        toy.update_from_flattened_dict({key: value})
        return resolved(settings.with_absolute_paths(toy))

    saved = stored("../a/w.npz")
    assert differing(saved, stored(f"{tmp_path}/a/w.npz")) == []
    assert differing(resolved(toy, **{key: "w.npz"}), saved) == []  # of an older version
    assert len(differing(saved, stored("../b/x.npz"))) == 1
    monkeypatch.chdir(tmp_path)  # where the command that is repeated names nothing
    assert differing(saved, stored("w.npz")) == [] != differing(saved, stored("x.npz"))
    monkeypatch.chdir(tmp_path / "a")
    (tmp_path / "a" / "w.npz").rename(tmp_path / "b" / "w.npz")
    assert differing(saved, stored("../b/w.npz")) == []


def test_another_data_set_size_or_a_key_that_is_gone(toy):
    saved = resolved(toy)
    larger = settings.resolve(toy, num_records=20_000, num_devices=8)
    assert differing(saved, larger) == ["run.num_records is 10240 there, 20000 here"]
    values = saved.to_dict()
    del values["optim"]["clip"]
    values["log"]["gone"] = 1  # nothing in this section matters
    older = config_lib.from_json(json.dumps(values))
    assert differing(older, saved) == ["optim.clip is absent there, 3.0 here"]


def test_a_key_that_came_later_matters_when_it_switches_something_on(toy):
    toy.data.kind, toy.data.dir = "folder", "images"
    values = resolved(toy).to_dict()
    del values["data"]["list"], values["gram"]  # a key, and a section as it is without a change
    older = config_lib.from_json(json.dumps(values))
    assert differing(older, resolved(toy)) == []
    toy.data.list = "names.txt"
    assert differing(older, resolved(toy)) == ["data.list is absent there, 'names.txt' here"]
    toy.data.list, toy.gram.size = "", 256
    assert differing(older, resolved(toy)) == ["gram.size is absent there, 256 here"]
