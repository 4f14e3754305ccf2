"""What every type of evaluation keeps, on one tiny network: a new type is held to it by being
registered."""

import dataclasses
import itertools
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict, FrozenConfigDict
from PIL import Image

from ssl_jax import config as config_lib
from ssl_jax import evals, methods, settings
from ssl_jax.config import InputError
from ssl_jax.methods.encoder import Encoder
from ssl_jax.report import render
from tests import tiny
from tests.data.records import save, write_tfds
from tests.evals import fakes

# Settings at which a type takes seconds.
_SETTINGS = {
    "box_knn": dict(k=(5,)),
    "davis": dict(data=dict(length=32, size=16)),
    "decode": dict(epochs=1, batch=8, width=16, depth=1, heads=2, tokens="dense"),
    "dense": dict(k=5),
    "imagenet9": dict(epochs=1, batch=16, lrs=(1e-2,), variants=("original", "mixed_same")),
    "knn": dict(k=(5,)),
    "linear": dict(epochs=3, batch=16, lrs=(1e-2,), crop_scale=(0.5, 1.0)),
    "logistic": dict(c=(1.0,)),
    "segment": dict(side=16, batch=8, steps=3, lrs=(1e-2,)),
    "stability": dict(shifts=(0, 2, 4)),
    "tsne": dict(perplexity=5.0),
    "yolos": dict(queries=4, epochs=1, batch=8, sizes=(16,), longest=32, test_size=16, canvas=8),
}
_SETTINGS["yolos"] |= dict(crop_prob=0.0, lr=1e-2, clip=10.0)
# By how much the score may move between one device and eight: one prediction on the border of two.
_TOLERANCE = dict.fromkeys(("classify", "knn", "linear", "logistic"), 100 / 30)
_TOLERANCE |= dict(imagenet9=100 / 4, box_knn=2.0, collapse=0.01, decode=0.05, yolos=1.0)
_TOLERANCE |= dict(tsne=8.0)  # the points follow from the last bit of a feature
_OTHERS = 0.5
# Where images are cropped in training, another record stands in for one that cannot be read; the
# images of ImageNet-9 are a folder's.
_REPLACED = {"imagenet9", "linear", "segment"}
_DEAR = ("yolos",)  # takes seconds even so
_KERNEL = np.random.default_rng(0).normal(size=(16, 17)).astype(np.float32)


def _slow(types, dear=_DEAR):
    return [pytest.param(t, marks=pytest.mark.slow) if t in dear else t for t in types]


class Network(Encoder):
    """Rebuilds and classifies images too, as STELLAR and fine-tuned networks do."""

    def __call__(self, images, *, extras=False, **options):
        found = super().__call__(images, extras=extras, **options)
        if not extras:
            return found
        shown = {"rebuilt": jnp.clip(images - 0.1, 0, 1), "logits": found.image @ _KERNEL}
        return found._replace(extras={**found.extras, **shown})


@pytest.fixture(scope="module")
def network():
    config = settings.resolve(tiny.config("sop"), num_records=100, num_devices=1)
    params, _ = methods.make(config).init(jax.random.key(0))
    with (shown := ConfigDict(config)).unlocked():
        shown.stellar = dict(target="pixel")
    return Network(FrozenConfigDict(shown), params)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """One evaluation of each type, on few embedded images."""
    folder = tmp_path_factory.mktemp("imagenet9")
    for variant in _SETTINGS["imagenet9"]["variants"]:
        for i in range(4):
            save(folder / variant / "val" / f"0{i % 2}" / f"{i}.png", fakes.images(1, 16, 16, i)[0])
    (folder / "map.json").write_text(json.dumps({str(i): i % 2 for i in range(17)}))
    places = dict(imagenet9=dict(dir=str(folder), mapping=str(folder / "map.json")))
    c = settings.base_config("sop")
    c.model.patch, c.evals.batch_size = 4, 16
    for type in evals.TYPES:
        changes = dict(data=dict(size=16), train_examples=48, test_examples=30)
        evals.add(c, type, **changes | _SETTINGS.get(type, {}) | places.get(type, {}))
    settings.validate(c, 8)
    return c


@pytest.fixture(scope="module")
def scored(config, network):
    """scored(type) -> its case and scores on eight devices; what types share is worked out once."""
    assert len(jax.local_devices()) == 8
    cases, scores = evals.cases(network, config), {}

    def score(type):
        if type not in scores:
            scores[type] = evals.run({type: cases[type]})
        return cases[type], scores[type]

    return score


@pytest.mark.parametrize("type", _slow(evals.TYPES))
def test_scores_are_finite_and_named_after_their_type(type, scored):
    _, scores = scored(type)
    assert type in scores and all(name.startswith(type) for name in scores)
    assert all(isinstance(x, float) and np.isfinite(x) for x in scores.values())


@pytest.fixture(scope="module")
def alone(config, network):
    """Cases of one device, in batches of another size."""
    with (other := ConfigDict(config)).unlocked():
        other.evals.batch_size = 12
    return evals.cases(network, other)


@pytest.mark.parametrize("type", _slow(evals.TYPES, {*evals.TYPES} - {"knn", "dense", "davis"}))
def test_devices_and_batches_change_no_score(type, scored, alone, monkeypatch):
    _, many = scored(type)
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    one = evals.run({type: alone[type]})
    assert many.keys() == one.keys()
    assert many[type] == pytest.approx(one[type], abs=_TOLERANCE.get(type, _OTHERS))
    if type == "yolos":  # whose score is 0 after these few steps
        found = (c.extracted[c.key_of(type)][0] for c in (scored(type)[0], alone[type]))
        chex.assert_trees_all_close(*found, atol=1e-3)


# `rank` draws where there are no labels
_DRAWN = [t for t in evals.TYPES if t != "rank" and evals.TYPES[t].draw is not None]


@pytest.mark.parametrize("type", _slow(_DRAWN, {*_DRAWN} - {"knn", "dense"}))
def test_figures_are_of_what_was_scored(type, scored, tmp_path):
    """But for the types that rebuild images nothing is asked of the network again."""
    case, _ = scored(type)
    if type not in ("decode", "reconstruct"):
        case = dataclasses.replace(case, encoder=None)
    figures = evals.TYPES[type].figures(case)
    paths = render.draw(lambda: figures, tmp_path, type)
    assert len(paths) == len(figures) > 0
    for path in paths:
        with Image.open(path) as drawn:
            least = 16 if path.suffix == ".gif" else 150
            assert min(drawn.size) >= least and drawn.convert("L").getextrema()[0] < 200


def _case(network, section, source):
    return evals.Case(network, section, source, source, patch=4, batch_size=16)


_SKIP = {t for t in evals.TYPES if evals.TYPES[t].needs not in ("boxes", "sequences")}


@pytest.mark.parametrize("type", _slow(sorted(_SKIP - _REPLACED), ("tsne",)))
def test_records_that_cannot_be_read_are_left_out(type, network, config):
    labels, masks = np.arange(25) % 3, np.random.default_rng(1).integers(0, 2, (25, 4, 4))
    masks = masks.repeat(4, 1).repeat(4, 2).astype(np.uint8)
    parts = fakes.images(25, 16, 16), labels, masks
    whole = fakes.Source(*(np.delete(part, 3, axis=0) for part in parts))
    broken, run = fakes.Source(*parts, broken=(3,)), evals.TYPES[type].run
    found, expected = (run(_case(network, config.evals[type], x)) for x in (broken, whole))
    assert found == pytest.approx(expected)


_NEEDY = [t for t in evals.TYPES if evals.TYPES[t].needs]


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A data set of images alone."""
    folder = tmp_path_factory.mktemp("tfds")
    write_tfds(folder, "bare", {"train": [0, 1], "test": [2]}, label=False, mask=False)
    return dict(kind="tfds", name="bare", dir=str(folder))


@pytest.mark.parametrize("type", _NEEDY)
def test_images_without_what_a_type_needs_are_refused(type, bare, network, config):
    needs = evals.TYPES[type].needs
    c = settings.base_config("dino")
    files = {name: config.evals[type].get(name, "") for name in ("dir", "mapping")}
    evals.add(c, type, data=bare, **files if type == "imagenet9" else {})
    with pytest.raises(InputError, match=f"evals.{type}.*{needs}") as raised:
        settings.validate(c, None)  # no TFDS set has sequences
        evals.sources(c, (type,))
    assert "\n" not in str(raised.value)
    # So are cases that were made without a config.
    source = fakes.Source(fakes.images(8, 16, 16))
    with pytest.raises(InputError):
        evals.TYPES[type].run(_case(network, config.evals[type], source))


_TOLD_APART = [t for t in _NEEDY if t not in ("classify", "davis", "yolos")]


@pytest.mark.parametrize("type", _TOLD_APART)
def test_labels_and_masks_of_one_class_are_refused(type, network, config):
    """On them every network would score alike; classify knows more classes than a set may have."""
    one = np.zeros(8, np.int64)
    masks = np.where(np.arange(16) % 8 < 4, 0, 255).astype(np.uint8) * np.ones((8, 16, 1), np.uint8)
    boxes = dict(boxes=np.tile(np.float32([0, 0, 16, 16]), (8, 1, 1)))
    source = fakes.Source(fakes.images(8, 16, 16), one, masks, num_box_classes=1, **boxes)
    case = _case(network, config.evals[type], source)
    with pytest.raises(InputError, match="class") as raised:
        evals.TYPES[type].run(case)
    if evals.TYPES[type].needs == "masks":
        assert f"evals.{type}.data.class_map={{0:0,255:1}}" in str(raised.value)


def test_masks_of_one_class_are_refused_where_sets_are_opened(tmp_path):
    """So before a run that is scored at its end trains."""
    for part, i in itertools.product(("train", "val"), range(2)):
        save(tmp_path / "images" / part / f"{i}.png", np.zeros((16, 16, 3), np.uint8))
        save(
            tmp_path / "masks" / part / f"{i}.png", np.uint8([[0, 255]]).repeat(8, 1).repeat(16, 0)
        )
    c = settings.base_config("dino")
    images = dict(kind="folder", dir=str(tmp_path), split="train", test_split="val", size=16)
    evals.add(c, "dense", data=images)
    with pytest.raises(InputError, match="class_map={0:0,255:1}"):
        evals.sources(c)
    c.evals.dense.data.class_map = ((0, 0), (255, 1))
    assert len(evals.sources(c)["dense"][0]) == 2
    # Test masks without any class.
    c.evals.dense.data.class_map = ()
    for part, i in itertools.product(("train", "val"), range(2)):
        values = [[0, 1]] if part == "train" else [[255, 255]]
        save(tmp_path / "masks" / part / f"{i}.png", np.uint8(values).repeat(8, 1).repeat(16, 0))
    with pytest.raises(InputError, match="no class"):
        evals.sources(c)


@pytest.mark.parametrize("type", [t for t in evals.TYPES if evals.TYPES[t].one_size])
def test_types_that_compare_positions_want_images_of_one_size(type, tmp_path):
    for part, sizes in (("train", (16, 16, 24)), ("val", (16, 24))):
        for i, size in enumerate(sizes):
            save(tmp_path / "images" / part / f"{i}.png", np.zeros((size, 16, 3), np.uint8))
            save(tmp_path / "masks" / part / f"{i}.png", np.eye(size, 16, dtype=np.uint8))
    c = settings.base_config("dino")
    images = dict(kind="folder", dir=str(tmp_path), split="train", test_split="val", size=0)
    evals.add(c, type, data=images)
    with pytest.raises(InputError, match=f"evals.{type}.crop"):
        evals.sources(c, (type,))
    c.evals[type].crop = 16
    assert evals.sources(c, (type,))
    c.evals[type].update(dict(crop=0, data=dict(images, size=16)))
    assert evals.sources(c, (type,))


@pytest.mark.parametrize("type", evals.TYPES)
def test_defaults_and_protocols_are_valid(type):
    for name in ("", *evals.TYPES[type].protocols):
        section = evals.new(type, protocol=name, data=dict(dir="/some/where"))
        declared = evals.keys(ConfigDict(dict(evals={type: section})))
        for key, value in config_lib.flatten(section).items():
            declared[f"evals.{type}.{key}"].check(key, value)
    for protocol in evals.TYPES[type].protocols.values():
        assert protocol.source
        if type == "yolos":  # nothing is left to the defaults
            assert set(protocol.changes) == {
                *config_lib.keys_of(evals.TYPES[type].settings),
                "data",
            }


_IMAGENET = {"data.name": "imagenet2012", "data.test_split": "validation", "data.size": 256}
# Numbers of the papers.
_PROTOCOLS = [
    ("box_knn", "paper", dict(k=(140,))),
    ("box_knn", "script", dict(boxes="script")),
    ("classify", "imagenet", {**_IMAGENET, "crop": 224}),
    ("decode", "sparse", dict(width=512, depth=6, epochs=20, lr=1e-4, tokens="sparse")),
    ("decode", "dense", {"tokens": "dense", "crop": 224, "data.size": 256}),
    ("linear", "sop_small", {"layers": 4, "tokens": "cls", "data.size": 256}),
    ("retrieval", "paris", dict(ground_truth="gnd_rparis6k.json", fit=512, crop_queries=False)),
    ("retrieval", "paris", {"scales": (1.0, 2**-0.5, 0.5), "data.test_split": "jpg"}),
    ("yolos", "coco", dict(epochs=150, batch=32, lr=2.5e-5, clip=0.1, test_size=800)),
    ("yolos", "coco", dict(class_weight=1, l1_weight=5, giou_weight=2, no_object_weight=0.1)),
    ("yolos", "coco", {"data.name": "coco/2017"}),
    ("yolos", "coco_yolos", dict(batch=8)),
]  # fmt: skip


@pytest.mark.parametrize("type, protocol, expected", _PROTOCOLS)
def test_protocols_hold_the_numbers_of_the_papers(type, protocol, expected):
    section = config_lib.flatten(evals.new(type, protocol=protocol))
    assert {key: section[key] for key in expected} == expected
