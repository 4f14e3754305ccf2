"""Named evaluations, what they share, types from outside; the comparison and its table."""

import contextlib
import dataclasses
import math

import jax
import numpy as np
import pytest

from ssl_jax import config as config_lib
from ssl_jax import evals, settings
from ssl_jax.config import InputError, field
from ssl_jax.evals import opened
from ssl_jax.features import pixels
from ssl_jax.methods import encoder
from ssl_jax.models import vit
from ssl_jax.report import evaluation, table
from ssl_jax.report.evaluation import Evaluation
from tests.data.records import IMAGES as PHOTOS
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


def test_evaluations_that_share_data_open_and_encode_it_once(config):
    opened = evals.sources(config)
    assert opened["knn"] is opened["linear"] and opened["dense"] is not opened["knn"]
    calls = []
    fn, _ = fakes.counted_features()
    source = fakes.Source(fakes.images(16), labels=np.arange(16) % 2)

    def counting(x):
        return (calls.append(len(x)), fn(x))[1]

    sources = dict.fromkeys(("knn", "linear", "far"), (source, source))
    evals.evaluate(counting, config, tasks=("knn", "linear"), sources_of=sources)
    assert calls == [8, 8, 8, 8]  # 16 of train, 10 of test, in batches of 8
    config.evals.far = evals.new("knn", crop=4, **IMAGES)
    evals.evaluate(counting, config, tasks=("knn", "far"), sources_of=sources)
    assert len(calls) == 12  # another crop is another image


def test_two_of_one_type_have_their_own_data_keys_and_names(config):
    config.evals.far = evals.new("knn", k=(3,), **IMAGES | dict(test_examples=6))
    scores = evals.evaluate(evals.raw_pixels(4), config, tasks=("knn", "far"))
    assert list(scores) == ["knn", "knn_k10", "far_knn", "far_knn_k3"]
    expected = HEADINGS | dict(far_knn="far k-NN")
    assert evals.headings(config) == dict(sorted(expected.items()))
    assert evals.headings(config, ("far",)) == {"far_knn": "far k-NN"}


def test_sections_are_complete_locked_and_keep_their_defaults():
    section = evals.new("knn", k=(20,), data=dict(kind="tfds", name="birds"))
    assert (section.type, section.k, section.temperature) == ("knn", (20,), 0.07)
    assert (section.data.split, section.data.test_split) == ("train", "test")
    for wrong in (dict(kk=1), dict(data=dict(knd="x"))):
        with pytest.raises(KeyError):
            evals.new("knn", **wrong)
    for wrong in (dict(type="kmn"), dict(type="linear", protocol="sop_smal")):
        with pytest.raises(InputError, match="kmn|sop_smal"):
            evals.new(**wrong)


def test_all_or_some_or_none_are_run(config):
    assert list(evals.selected(config)) == ["dense", "knn", "linear"]
    config.evals.tasks = ("linear", "dense")
    assert list(evals.selected(config)) == ["linear", "dense"]
    assert evals.selected(config, ()) == {} and len(evals.selected(config, ("all",))) == 3


def test_keys_follow_the_evaluations_of_a_config_which_is_stored_with_them(config):
    config.evals.far = evals.new("dense")
    declared = evals.keys(config)
    assert declared["evals.far.k"].default == 50 and declared["evals.knn.k"].default != 50
    assert all(entry.free and entry.meaning for entry in declared.values())
    settings.validate(config, 8)
    assert "evals.knn.k" not in settings.keys("dino") and "evals.tasks" in settings.keys("dino")
    stored = settings.resolve(config, num_records=10_240, num_devices=8)
    again = config_lib.from_json(config_lib.to_json(stored))
    assert again == stored and set(evals.named(again)) == {"knn", "linear", "dense", "far"}
    settings.validate(again, 8)


def test_a_type_from_outside_is_configured_run_and_shown(config, types):
    evals.register(
        "mean",
        lambda case, settings: {"mean": settings.scale * float(case.features("test").image.mean())},
        dataclasses.make_dataclass(
            "Scale", [("scale", float, field(2.0, "factor", above=0))], frozen=True
        ),
        heading="mean",
    )
    with pytest.raises(InputError, match="mean"):  # keys as a function, as before 0.2
        evals.register("mean", lambda case, settings: {}, dict)
    config.evals.ten = evals.new("mean", scale=10.0, **IMAGES)
    evals.add(config, "mean", **IMAGES)
    settings.validate(config, 8)
    scores = evals.evaluate(evals.raw_pixels(4), config, tasks=("mean", "ten"))
    assert scores["ten_mean"] == pytest.approx(5 * scores["mean"], rel=1e-5)
    assert evals.headings(config, ("mean", "ten")) == dict(mean="mean", ten_mean="ten mean")


def test_a_type_from_outside_gets_the_boxes_that_it_needs(config, types):
    """Of an embedded set by default; the contract has the refusals of others."""

    def count(case, settings):
        return {"counted": float(sum(len(case.test[i]["boxes"]) for i in range(3)))}

    evals.register("counted", count, needs="boxes", heading="boxes")
    evals.add(config, "counted", data=dict(length=3, size=16))
    settings.validate(config, None)
    assert evals.evaluate(evals.raw_pixels(4), config, tasks=("counted",))["counted"] >= 6
    config.evals.counted.data.kind = "photos"
    with pytest.raises(InputError, match="evals.counted.data.kind"):
        settings.validate(config, None)


def test_three_rows_in_order_and_baselines_only_where_named(config, types, monkeypatch):
    made = []

    class Encoder:
        """Maps the mean colour through its weight."""

        def __init__(self, config, params, constants=None):
            self.config, self.params = config, params
            made.append(params)

        def __call__(self, images, **_):
            return pixels.Pixels(images.mean(axis=(1, 2)) * self.params, None)

    monkeypatch.setattr(evaluation, "Encoder", Encoder)
    monkeypatch.setattr(evaluation, "bound", lambda config: "method")
    monkeypatch.setattr(evaluation.state, "initial_weights", lambda *of: np.float32(1))
    evals.register(
        "scale",
        lambda case, _: {"scale": float(np.abs(case.features("test").image).mean())},
        baselines=("untrained network",),
    )
    evals.add(config, "scale", **IMAGES)
    config.evals.tasks = ("knn", "scale")
    first: list = []
    results = Evaluation(config).compare(np.float32(2), first=first.append)
    assert first == [results["trained"]]
    assert tuple(results) == evals.ROWS == ("untrained network", "raw pixels", "trained")
    assert made == [2, 1]  # the network that was asked for comes first
    assert results["trained"]["scale"] == pytest.approx(2 * results["untrained network"]["scale"])
    assert set(results["raw pixels"]) == {"knn", "knn_k10"}
    config.evals.baselines = False
    alone = Evaluation(config)
    assert alone.compare(np.float32(2)) == {"trained": results["trained"]} and len(made) == 3
    assert "k-NN: 10 test images, standard error" in alone.table(results)


def test_scored_images_that_are_also_trained_on_are_told(config, tmp_path, capsys):
    for name in "ab":
        for i in range(10):
            save(tmp_path / "train" / name / f"{i}.png", PHOTOS[i])
    data = config.evals.knn.data
    data.update(dict(kind="folder", dir=str(tmp_path), test_split="train[70%:]"))
    for split, told in (("train", True), ("train[:70%]", False), ("train[:75%]", True)):
        data.split = split
        evals.sources(config, ["knn"])
        assert ("test images are also" in capsys.readouterr().out) == told


def test_a_class_that_is_not_trained_on_is_refused_for_boxes_too():
    def part(images, boxes):
        source = fakes.boxed(fakes.images(2), [[], []], labels=[0, 1])
        source.class_names, source.box_names = images, boxes
        return source

    train = part(("a", "b"), ("x", "y"))
    for type, images, boxes, fits in (
        ("box_knn", ("a", "c"), ("x", "y"), False),  # the class is that of the image
        ("box_knn", ("a", "b"), ("x", "z"), True),
        ("yolos", ("a", "c"), ("x", "y"), True),
        ("yolos", ("a", "b"), ("x", "z"), False),
    ):
        section = evals.new(type, data=dict(kind="folder"))
        refused = contextlib.nullcontext() if fits else pytest.raises(InputError, match="classes")
        with refused:
            opened._check_same_classes(type, section, train, part(images, boxes))


def test_the_folder_of_training_is_that_of_an_evaluation_without_one(config, tmp_path):
    for place in ("train/a", "train/b", "val/a", "val/b"):
        save(tmp_path / place / "0.png", PHOTOS[0])
    config.data.update(dict(kind="folder", dir=str(tmp_path)))
    config.evals.knn.data.update(dict(kind="folder", dir="", test_split="val"))
    assert [len(part) for part in evals.sources(config, ["knn"])["knn"]] == [2, 2]


def test_images_are_cropped_to_patches_of_the_network_not_of_the_config(config):
    shape = vit.ViTConfig(width=8, depth=1, heads=1, patch=2, image_size=8)
    network = encoder.published(shape, vit.vit(shape).init(jax.random.key(0)), "a ViT")
    assert config.model.patch != 2
    assert evals.cases(network, config, tasks=["knn"])["knn"].patch == 2


def test_the_table_marks_the_best_and_leaves_out_empty_columns():
    scores = {
        "untrained network": {"knn": 20.0, "linear": 31.25},
        "raw pixels": {"knn": 100.0},
        "trained": {"knn": 61.0, "linear": 70.0},
    }
    lines = table.comparison_table(scores, HEADINGS).splitlines()
    assert lines[0].split() == ["features", "k-NN", "linear"]
    assert lines[3].split() == ["raw", "pixels", "100.0*", "-"]
    assert lines[4].split() == ["trained", "61.0", "70.0*"]


def test_the_best_is_so_by_more_than_the_standard_error():
    for scores, images, highest in (
        ([81.08, 78.38], 74, None),  # two images
        ([90.5, 60.8], 74, 90.5),
        ([100.0, 97.3], 74, None),
        ([31.2, 31.1], 0, 31.2),  # no share of images
        ([31.2], 74, None),  # nothing beside it
        ([31.2], 0, None),
    ):
        assert table.best(scores, images)[0] == highest
    # 1 of 4 images, and two more of each: 3 of 8 (Agresti and Coull)
    assert table.standard_error(25, 4) == pytest.approx(100 * math.sqrt(3 / 8 * 5 / 8 / 8))
