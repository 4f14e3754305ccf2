"""Named evaluations, their types, what they share; the comparison and its table."""

import numpy as np
import pytest
from ml_collections import ConfigDict

from ssl_jax import config as config_lib
from ssl_jax import evals, settings
from ssl_jax.config import InputError, key
from ssl_jax.evals import report
from ssl_jax.methods import encoder
from tests.data.records import save
from tests.evals import fakes

HEADINGS = dict(knn="k-NN", linear="linear", dense="dense mIoU")
IMAGES = dict(data=dict(length=24, size=16), test_examples=10)


@pytest.fixture
def config():
    c = settings.base_config("dino")
    c.model.patch = 4
    evals.add(c, "knn", k=(10,), **IMAGES)
    evals.add(c, "linear", epochs=2, batch=16, **IMAGES)
    evals.add(c, "dense", k=5, **IMAGES)
    c.evals.batch_size = 8
    return c


@pytest.fixture
def types():
    """Types that a test registers are gone after it."""
    before = dict(evals.TYPES)
    yield
    evals.TYPES.clear()
    evals.TYPES.update(before)


def test_all_tasks_on_raw_pixels(config):
    cases = evals.cases(evals.raw_pixels(4), config)
    scores = evals.run(cases)
    assert {
        "knn",
        "knn_k10",
        "linear",
        "linear_lr",
        "linear_held_out",
        "dense",
        "dense_pixel",
    } <= set(scores)
    assert all(isinstance(v, float) and np.isfinite(v) for v in scores.values())
    assert list(cases) == ["dense", "knn", "linear"]
    train, test = cases["knn"].features("image")
    assert len(train.labels) == 24 and len(test.labels) == 10
    assert scores == evals.evaluate(evals.raw_pixels(4), config)


def test_a_probe_on_random_crops_encodes_them_in_every_epoch(config):
    shapes = []

    def network(images):
        shapes.append(images.shape)
        return evals.raw_pixels(4)(images)

    config.evals.tasks = ("linear",)
    fixed = evals.evaluate(network, config)
    assert shapes == [(8, 16, 16, 3)] * 5  # 24 training and 10 test images in batches of 8
    shapes.clear()
    config.evals.linear.crop_scale, config.evals.linear.batch = (0.3, 1.0), 7
    moving = evals.evaluate(network, config)
    # Two epochs of 22 images (two are held out), three batches of 7 each.
    assert shapes == [(8, 16, 16, 3)] * 5 + [(7, 16, 16, 3)] * 6
    assert fixed.keys() == moving.keys() and fixed != moving


def test_evaluations_that_share_data_encode_it_once(config):
    calls = []
    fn, _ = fakes.counted_features()
    source = fakes.Source(fakes.images(16), labels=np.arange(16) % 2)

    def counting(x):
        return (calls.append(len(x)), fn(x))[1]

    pair = (source, source)
    sources = dict(knn=pair, linear=pair, far=pair)
    evals.evaluate(counting, config, tasks=("knn", "linear"), sources_of=sources)
    assert calls == [8, 8, 8, 8]  # 16 of train, 10 of test, in batches of 8
    config.evals.far = evals.new("knn", crop=4, **IMAGES)
    evals.evaluate(counting, config, tasks=("knn", "far"), sources_of=sources)
    assert len(calls) == 12  # another crop is another image


def test_evaluations_that_share_data_open_it_once(config):
    opened = evals.sources(config)
    assert opened["knn"] is opened["linear"] and opened["dense"] is not opened["knn"]
    assert list(evals.sources(config, ("dense",))) == ["dense"]


def test_two_of_one_type_have_their_own_data_keys_and_names(config):
    config.evals.far = evals.new("knn", k=(3,), **IMAGES | dict(test_examples=6))
    scores = evals.evaluate(evals.raw_pixels(4), config, tasks=("knn", "far"))
    assert list(scores) == ["knn", "knn_k10", "far_knn", "far_knn_k3"]
    assert evals.headings(config) == {
        "dense": "dense mIoU",
        "far_knn": "far k-NN",
        "knn": "k-NN",
        "linear": "linear",
    }
    assert evals.headings(config, ("far",)) == {"far_knn": "far k-NN"}


def test_a_task_that_does_not_exist(config):
    with pytest.raises(InputError, match='unknown evaluation "kmn".*knn'):
        evals.evaluate(evals.raw_pixels(4), config, tasks=("kmn",))
    with pytest.raises(InputError, match='unknown type of evaluation "kmn".*knn'):
        evals.new("kmn")


# --- the section of the config


def test_sections_are_complete_locked_and_keep_their_defaults():
    section = evals.new("knn", k=(20,), data=dict(kind="tfds", name="birds"))
    assert (section.type, section.k, section.temperature) == ("knn", (20,), 0.07)
    assert (section.data.name, section.data.split, section.data.test_split) == (
        "birds",
        "train",
        "test",
    )
    for wrong in (dict(kk=1), dict(data=dict(knd="x"))):
        with pytest.raises(KeyError):
            evals.new("knn", **wrong)
    assert (
        evals.new("dense").data.kind == "photo_collages" and evals.new("knn").data.kind == "photos"
    )


def test_all_or_some_or_none_are_run(config):
    assert list(evals.chosen(config)) == ["dense", "knn", "linear"]
    config.evals.tasks = ("linear", "dense")
    assert list(evals.chosen(config)) == ["linear", "dense"]
    assert evals.chosen(config, ()) == {} and len(evals.chosen(config, ("all",))) == 3


def test_keys_follow_the_evaluations_of_a_config(config):
    config.evals.far = evals.new("dense")
    declared = evals.keys(config)
    assert declared["evals.far.k"].default == 50 and declared["evals.knn.k"].default != 50
    assert all(entry.free and entry.meaning for entry in declared.values())
    settings.validate(config, 8)
    assert "evals.knn.k" not in settings.keys("dino") and "evals.tasks" in settings.keys("dino")


def put(config, name, value):
    config.evals[name] = value


def without(type, name):
    values = evals.new(type).to_dict()
    del values[name]
    return ConfigDict(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.evals.update(every_step=5), 'unknown config key "evals.every_step"; did you'),
        (lambda c: put(c, "far", ConfigDict()), r"evals.far has no type; make it with .*new\("),
        (lambda c: put(c, "far", dict(type="knn")), r"evals.far lacks data.kind, .*new\(\"knn\""),
        (lambda c: put(c, "far", without("knn", "k")), r"evals.far lacks k;"),
        (lambda c: put(c, "far-off", evals.new("knn")), 'evaluation is called "far-off"'),
        (lambda c: c.evals.knn.update(type="knm"), 'evals.knn.type is "knm"; .*did you mean "knn"'),
        (lambda c: c.evals.knn.update(type="linear"), "evals.knn lacks epochs"),
    ],
)
def test_what_is_no_evaluation_is_named(config, change, message):
    change(config)
    with pytest.raises(InputError, match=message):
        settings.validate(config, 8)


def test_a_resolved_config_is_stored_and_read_with_its_evaluations(config):
    stored = settings.resolve(config, num_records=10_240, num_devices=8)
    again = config_lib.from_json(config_lib.to_json(stored))
    assert again == stored and set(evals.named(again)) == {"knn", "linear", "dense"}
    settings.validate(again, 8)


# --- types from outside


def test_a_type_from_outside_is_configured_run_and_shown(config, types):
    evals.register(
        "mean",
        lambda case: {"mean": case.config.scale * float(case.features()[1].image.mean())},
        lambda: dict(scale=key(2.0, "factor", above=0)),
        heading="mean",
    )
    config.evals.ten = evals.new("mean", scale=10.0, **IMAGES)
    evals.add(config, "mean", **IMAGES)
    settings.validate(config, 8)
    scores = evals.evaluate(evals.raw_pixels(4), config, tasks=("mean", "ten"))
    assert scores["ten_mean"] == pytest.approx(5 * scores["mean"], rel=1e-5)
    headings = evals.headings(config, ("mean", "ten"))
    text = evals.comparison_table({"trained": scores}, headings)
    assert text.splitlines()[0].split() == ["features", "mean", "ten", "mean"]


# --- the comparison


@pytest.fixture
def networks(monkeypatch):
    """The encoders of the report map the mean colour through their weight; returns what was made
    of which weight."""
    made = []

    class Encoder:
        def __init__(self, config, params, constants=None):
            self.config, self.params = config, params
            made.append(params)

        def __call__(self, images, **_):
            mean = images.mean(axis=(1, 2)) * self.params
            return evals.pixels.Pixels(mean, None)

    monkeypatch.setattr(report, "Encoder", Encoder)
    monkeypatch.setattr(report, "bound", lambda config: "method")
    monkeypatch.setattr(report.state, "initial_weights", lambda method, seed: np.float32(1))
    return made


def test_networks_of_one_config_share_one_trace(monkeypatch):
    asked = []

    class Method:
        @staticmethod
        def features(params, images, *, layers, attention, extras, constants):
            asked.append(attention)
            return evals.pixels.Pixels(images.mean(axis=(1, 2)) * params["w"], None)

    monkeypatch.setattr(encoder, "bound", lambda config: Method)
    one, two = (encoder.Encoder(None, {"w": np.float32(w)}) for w in (1, 2))
    x = np.random.default_rng(0).random((2, 8, 8, 3)).astype(np.float32)
    np.testing.assert_allclose(2 * one(x).image, two(x).image)
    assert evals.raw_pixels(4)(x).patches.shape == (2, 2, 2, 48)
    assert asked == [False]


def test_three_rows_in_order_and_baselines_only_where_named(config, types, networks):
    evals.register(
        "scale",
        lambda case: {"scale": float(np.abs(case.features()[1].image).mean())},
        dict,
        baselines=("untrained network",),
    )
    evals.add(config, "scale", **IMAGES)
    config.evals.tasks = ("knn", "scale")
    results = report.Evaluation(config).compare(np.float32(2))
    assert tuple(results) == evals.ROWS == ("untrained network", "raw pixels", "trained")
    assert networks == [1, 2]
    assert results["trained"]["scale"] == pytest.approx(2 * results["untrained network"]["scale"])
    assert set(results["raw pixels"]) == {"knn", "knn_k10"}


def test_the_table_is_aligned_and_marks_the_best():
    text = evals.comparison_table(
        {
            "untrained network": {"knn": 20.0, "linear": 31.25, "dense": 9.0},
            "raw pixels": {"knn": 100.0, "linear": 25.0},
            "trained": {"knn": 61.0, "linear": 70.0, "dense": 40.0},
        },
        HEADINGS,
    )
    lines = text.splitlines()
    assert lines[0].split("  ")[0] == "features" and "k-NN" in lines[0] and "dense mIoU" in lines[0]
    assert lines[3].split() == ["raw", "pixels", "100.0*", "25.0", "-"]
    assert lines[4].split() == ["trained", "61.0", "70.0*", "40.0*"]
    ends = [line.rstrip("*").find("61.0") + 4 for line in lines[4:5]] + [
        lines[0].find("k-NN") + 4,
        lines[3].find("100.0") + 5,
    ]
    assert len(set(ends)) == 1


def test_columns_without_a_value_are_left_out():
    text = evals.comparison_table({"trained": {"knn": 5.0}}, HEADINGS)
    assert "linear" not in text and "5.0*" in text


@pytest.mark.parametrize(
    "type", ["collapse", "decode", "psnr", "purity", "reconstruct", "stability"]
)
def test_types_that_compare_positions_want_images_of_one_size(type, tmp_path):
    for part, sizes in (("train", (16, 16, 24)), ("val", (16, 24))):
        for i, size in enumerate(sizes):
            path = tmp_path / "images" / part / f"{i}.png"
            save(path, np.zeros((size, 16, 3), np.uint8))
            save(tmp_path / "masks" / part / path.name, np.zeros((size, 16), np.uint8))
    c = settings.base_config("dino")
    images = dict(kind="folder", dir=str(tmp_path), split="train", test_split="val", size=0)
    evals.add(c, type, data=images)
    with pytest.raises(InputError, match=f'"{type}" needs images of one size.*evals.{type}.crop'):
        evals.sources(c, (type,))
    c.evals[type].crop = 16
    assert evals.sources(c, (type,))
    c.evals[type].update(dict(crop=0, data=dict(images, size=16)))
    assert evals.sources(c, (type,))
