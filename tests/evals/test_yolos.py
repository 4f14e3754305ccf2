"""YOLOS as an evaluation: its matching, its optimizer, a whole run on tiny images."""

import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import FrozenConfigDict
from scipy.optimize import linear_sum_assignment

from ssl_jax import evals, trees
from ssl_jax.config import InputError, settings_of
from ssl_jax.evals import case, yolos
from ssl_jax.evals.yolos import detector as detectors
from ssl_jax.evals.yolos import prediction, training
from ssl_jax.evals.yolos.settings import Settings
from ssl_jax.losses import detection as losses
from ssl_jax.methods import encoder as encoder_lib
from ssl_jax.methods.encoder import Encoder, bound
from ssl_jax.scores import detection
from ssl_jax.train import state
from ssl_jax.views import boxed
from tests import tiny
from tests.evals import fakes


class Squares(fakes.Source):
    """Bright rectangles on gray, wide ones of class 0 and high ones of class 1."""

    def __init__(self, count, broken=()):
        images = np.full((count, 32, 40, 3), 90, np.uint8)
        boxes, labels = np.empty((count, 2, 4), np.float32), np.empty((count, 2), np.int32)
        for i, image in enumerate(images):
            rng = np.random.default_rng(i)
            for j, left in enumerate((2, 21)):
                labels[i, j] = label = int(rng.integers(2))
                h, w = ((6, 14), (14, 6))[label]
                y, x = int(rng.integers(2, 14)), left + int(rng.integers(0, 4))
                image[y : y + h, x : x + w] = (250, 40, 60) if label else (40, 250, 200)
                boxes[i, j] = y, x, h, w
        known = dict(has_boxes=True, num_box_classes=2, box_names=("wide", "high"))
        super().__init__(images, boxes=boxes, box_labels=labels, broken=broken, **known)


@pytest.fixture(scope="module")
def encoder():
    config = FrozenConfigDict(tiny.config("sop", model__drop_path=0.0))
    return Encoder(config, state.initial_weights(bound(config), 0, config.model))


def section(**changes):
    small = dict(queries=8, epochs=2, batch=4, sizes=(32,), longest=40, test_size=32)
    return evals.new("yolos", **(small | dict(crop_prob=0.0, canvas=8, flip=0.0) | changes))


def chosen(**changes):
    return settings_of(Settings, section(**changes))


def made(encoder, train=8, test=4, broken=(), **changes):
    sources = Squares(train, broken), Squares(test, broken)
    return case.Case(encoder, section(**changes), *sources, patch=4)


def test_matching_is_the_cheapest_one():
    rng = np.random.default_rng(0)
    b, q, t, c = 6, 9, 5, 4
    batch = boxed.Batch(
        image=None,
        boxes=rng.uniform(0.1, 0.5, (b, t, 4)).astype(np.float32),
        labels=rng.integers(0, c - 1, (b, t)),
        present=np.arange(t) < np.array([0, 1, 2, 3, 4, 5])[:, None],
    )
    logits = rng.normal(size=(b, q, c)).astype(np.float32)
    boxes = rng.uniform(0.1, 0.5, (b, q, 4)).astype(np.float32)
    weights = dict(class_weight=1.0, l1_weight=5.0, giou_weight=2.0)
    matched = training.match(logits, boxes, batch, weights)
    costs = losses.matching_costs(
        logits, boxes, batch.labels, batch.boxes, batch.present, **weights
    )
    for i in range(b):
        real = np.asarray(costs[i], np.float64)[:, :i]
        rows, columns = linear_sum_assignment(real)
        wanted = np.empty(i, int)
        wanted[columns] = rows
        np.testing.assert_array_equal(matched[i, :i], wanted)
        assert len(set(matched[i].tolist())) == t  # also what is not there keeps off
    broken = training.match(np.full_like(logits, np.nan), boxes, batch, weights)
    assert broken.shape == (b, t)


def test_optimizer_is_the_published_one(encoder):
    config = chosen(
        epochs=10, lr=1.0, weight_decay=0.5, clip=1e9, position_size=(16, 16), middle_size=(8, 8)
    )
    params = detectors.make(encoder, config, 2, jax.random.key(0)).params
    params = jax.tree.map(jnp.ones_like, params)
    transformation = training.optimizer(config, params, steps=3)
    state = transformation.init(params)
    zero = jax.tree.map(jnp.zeros_like, params)
    rates, update = [], jax.jit(transformation.update)
    for _ in range(30):
        updates, state = update(zero, state, params)
        rates.append(-float(updates["classes"]["0"]["kernel"][0, 0]) / 0.5)
    wanted = [1e-7 + (1 - 1e-7) * 0.5 * (1 + np.cos(np.pi * e / 10)) for e in range(10)]
    np.testing.assert_allclose(rates, np.repeat(wanted, 3), rtol=1e-5)
    names = trees.flatten(updates)
    spared = {name for name, leaf in names.items() if not (leaf != 0).any()}
    assert {"encoder/cls", "encoder/position", "encoder/queries"} < spared
    assert {n for n in names if n.startswith("encoder") and n.endswith(("bias", "scale"))} < spared
    assert all(n.startswith("encoder") and not n.endswith("kernel") for n in spared)


def test_the_gradient_is_clipped():
    params = {"encoder": {"norm": {"scale": jnp.ones(3)}}}
    config = chosen(clip=0.1, lr=1.0, weight_decay=0.0)
    transformation = training.optimizer(config, params, steps=1)
    start, large = transformation.init(params), jax.tree.map(lambda x: 100 * x, params)
    one, two = (transformation.update(grads, start, params) for grads in (params, large))
    chex.assert_trees_all_close(one[0], two[0], rtol=1e-5)
    moments = [leaf for leaf in jax.tree.leaves(one[1]) if leaf.shape == (3,)]
    assert any(np.isclose(np.linalg.norm(m), 0.01, rtol=1e-4) for m in moments)


@pytest.mark.slow
def test_a_run_is_scored_and_drawn(encoder):
    case = made(encoder, broken=(3,))
    scores = evals.TYPES["yolos"].run(case)
    assert set(scores) >= {"yolos", "yolos_ap50", "yolos_ap75", "yolos_small"}
    assert all(0 <= value <= 100 for value in scores.values())
    predicted, true, kept = case.extracted[case.key_of("yolos")]
    assert kept == [0, 1, 2] and len(predicted) == 3
    for found, wanted, index in zip(predicted, true, kept):
        np.testing.assert_array_equal(wanted.boxes, Squares(4)[index]["boxes"])
        assert found.boxes.shape == (8, 4) and set(found.labels) <= {0, 1}
        assert (found.boxes >= 0).all()
        assert (found.boxes[:, :2] + found.boxes[:, 2:] <= (32 + 1e-3, 40 + 1e-3)).all()
    assert len(evals.TYPES["yolos"].figures(case)["boxes"].rows) == 3
    assert evals.TYPES["yolos"].figures(made(encoder)) == {}  # nothing was trained


def test_predictions_come_back_to_the_pixels_of_the_image(encoder, monkeypatch):
    """A detector that knows the answer, on a canvas with a margin and at another size."""
    source = Squares(3)
    shown = [boxed.plain(source[i], 48, 1000) for i in range(3)]

    def apply(params, images):
        assert images.shape[1:3] == (64, 64)
        boxes = np.stack([v.boxes for v in shown])
        centers = np.concatenate([boxes[..., :2] + boxes[..., 2:] / 2, boxes[..., 2:]], -1) / 64
        hot = 20 * jax.nn.one_hot(np.stack([v.labels for v in shown]), 3)
        return hot, jnp.asarray(centers, jnp.float32)

    detector = detectors.Detector(apply, None, 2, 4, (0.5,) * 3)
    config = chosen(test_size=48, longest=1000, canvas=32, batch=3)
    records = case.Records(source, np.arange(3))
    predicted, true, _ = prediction.predict(detector, records, config)
    for found, wanted in zip(predicted, true):
        np.testing.assert_allclose(found.boxes, wanted.boxes, atol=1e-3)
        np.testing.assert_array_equal(found.labels, wanted.labels)
    assert detection.average_precision(predicted, true, classes=2)["ap"] == 100
    # What a square crop has cut off cannot be found.
    whole, off = type(source).__getitem__, {}
    for name, value in (("boxes", [[8, 0, 5, 0]]), ("box_labels", [1])):
        off[name] = np.concatenate([whole(source, 0)[name], value])
    monkeypatch.setattr(
        type(source), "__getitem__", lambda self, i: whole(self, i) | ({} if i else off)
    )
    predicted, true, _ = prediction.predict(detector, records, config)
    assert detection.average_precision(predicted, true, classes=2)["ap"] == 100
    monkeypatch.setattr(type(source), "__getitem__", whole)
    # What is found in a crowd is not wrong, and nobody has to find it.
    read = {}
    for name in ("boxes", "box_labels"):
        record = whole(source, 0)
        read |= {name: record[name][1:], f"crowd_{name.removeprefix('box_')}": record[name][:1]}
    monkeypatch.setattr(
        type(source), "__getitem__", lambda self, i: whole(self, i) | ({} if i else read)
    )
    predicted, true, _ = prediction.predict(detector, records, config)
    assert sum(one.crowd.sum() for one in true) == 1
    assert detection.average_precision(predicted, true, classes=2)["ap"] == 100


def test_images_with_crowds_alone_are_nothing_to_score(monkeypatch):
    box = detection.Boxes(np.ones((1, 4)), np.zeros(1, int), np.ones(1))
    results = [box], [box._replace(scores=None, crowd=np.array([True]))], [0]
    monkeypatch.setattr(yolos, "train", lambda *_: None)
    monkeypatch.setattr(yolos, "predict", lambda *_: results)
    with pytest.raises(InputError, match="box"):
        yolos.score(fakes.case("yolos", None, None, Squares(1)), chosen())


def test_what_cannot_work_is_refused(encoder, monkeypatch):
    with pytest.raises(InputError, match="network"):
        evals.TYPES["yolos"].run(case.Case(evals.raw_pixels(4), section(), Squares(4), Squares(4)))
    published = encoder_lib.published(encoder.shape, encoder.backbone, "others")
    assert detectors.make(published, chosen(), 2, jax.random.key(0)).patch == 4
    with pytest.raises(InputError, match="position_size"):
        detectors.make(encoder, chosen(position_size=(16, 18)), 2, jax.random.key(0))
    with pytest.raises(InputError, match="crop"):
        evals.TYPES["yolos"].run(case.Case(encoder, section(crop=8), Squares(4), Squares(4)))
    # Before the training.
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    with pytest.raises(InputError, match=r"\.\[eval\]"):
        evals.TYPES["yolos"].refuse("evals.yolos", section())


@pytest.mark.nightly
def test_it_learns(encoder):
    """Eight images of bright rectangles are learned by heart."""
    scores = evals.TYPES["yolos"].run(made(encoder, train=8, test=8, epochs=300, lr=5e-3, clip=1.0))
    assert scores["yolos_ap50"] > 60
