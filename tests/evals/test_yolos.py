"""YOLOS as an evaluation: its matching, its optimizer, a whole run on tiny images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import FrozenConfigDict
from scipy.optimize import linear_sum_assignment

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.data.decode import Unreadable
from ssl_jax.evals import case, pictures, yolos
from ssl_jax.evals.detection import Boxes
from ssl_jax.evals.pictures import boxes as boxes_picture
from ssl_jax.evals.pictures import render
from ssl_jax.evals.yolos import detector as detectors
from ssl_jax.evals.yolos import prediction, training, views
from ssl_jax.losses import detection as losses
from ssl_jax.methods.encoder import Encoder, bound
from ssl_jax.train import state
from tests import tiny


class Squares:
    """Bright rectangles on gray, wide ones of class 0 and high ones of class 1; sizes differ."""

    has_boxes, num_box_classes, box_names, size = True, 2, ("wide", "high"), None

    def __init__(self, count, broken=()):
        self._count, self._broken = count, broken

    def __len__(self):
        return self._count

    def __getitem__(self, i):
        if i in self._broken:
            raise Unreadable(self.name(i), "broken on purpose")
        rng = np.random.default_rng(i)
        image = np.full((32, 40, 3), 90, np.uint8)
        boxes, labels = [], []
        for left in (2, 21):
            label = int(rng.integers(2))
            h, w = ((6, 14), (14, 6))[label]
            y, x = int(rng.integers(2, 14)), left + int(rng.integers(0, 4))
            image[y : y + h, x : x + w] = (250, 40, 60) if label else (40, 250, 200)
            boxes.append((y, x, h, w))
            labels.append(label)
        return {
            "image": image,
            "boxes": np.array(boxes, np.float32),
            "box_labels": np.array(labels, np.int32),
        }

    def name(self, i):
        return f"squares/{i}"

    def __repr__(self):
        return f"Squares({self._count})"


@pytest.fixture(scope="module")
def encoder():
    config = FrozenConfigDict(tiny.config("sop", model__drop_path=0.0))
    return Encoder(config, state.initial_weights(bound(config), 0))


def section(**changes):
    small = dict(
        queries=8,
        epochs=2,
        batch=4,
        sizes=(32,),
        longest=40,
        test_size=32,
        crop_prob=0.0,
        canvas=8,
        flip=0.0,
    )
    return evals.new("yolos", **(small | changes))


def made(encoder, train=8, test=4, broken=(), **changes):
    sources = Squares(train, broken), Squares(test, broken)
    return case.Case(encoder, section(**changes), *sources, patch=4)


def test_matching_is_the_cheapest_one():
    rng = np.random.default_rng(0)
    b, q, t, c = 6, 9, 5, 4
    batch = views.Batch(
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
    config = section(epochs=10, lr=1.0, weight_decay=0.5, clip=1e9, position_size=16, middle_size=8)
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
    names = {
        jax.tree_util.keystr(path, simple=True, separator="/"): bool((leaf != 0).any())
        for path, leaf in jax.tree_util.tree_flatten_with_path(updates)[0]
    }
    spared = {name for name, decays in names.items() if not decays}
    assert {"encoder/cls", "encoder/position", "encoder/queries"} < spared
    assert not {name for name in spared if name.endswith("kernel")}
    assert {n for n in names if n.startswith("encoder") and n.endswith(("bias", "scale"))} < spared
    assert not {name for name in spared if not name.startswith("encoder")}


def test_the_gradient_is_clipped(encoder):
    config = section(clip=0.1, lr=1.0, weight_decay=0.0)
    params = {"encoder": {"norm": {"scale": jnp.ones(3)}}}
    transformation = training.optimizer(config, params, steps=1)
    clip = transformation.update
    small, large = ({"encoder": {"norm": {"scale": jnp.full(3, x)}}} for x in (1.0, 100.0))
    one, two = (clip(g, transformation.init(params), params)[0] for g in (small, large))
    np.testing.assert_allclose(
        one["encoder"]["norm"]["scale"], two["encoder"]["norm"]["scale"], rtol=1e-5
    )
    first = transformation.update(small, transformation.init(params), params)[1]
    moment = jax.tree.leaves(first)[1:]
    assert any(np.isclose(np.linalg.norm(m), 0.01, rtol=1e-4) for m in moment if m.shape == (3,))


@pytest.fixture(scope="module")
def done(encoder):
    """A run, its scores, and what it printed."""
    one = made(encoder, broken=(3,))
    return one, yolos.run(one)


def test_a_run_scores_and_draws(done):
    one, scores = done
    assert set(scores) >= {"yolos", "yolos_ap50", "yolos_ap75", "yolos_small"}
    assert all(0 <= value <= 100 for value in scores.values())
    predicted, true, kept = one.extracted[one.own("yolos")]
    assert kept == [0, 1, 2] and len(predicted) == 3
    for found, wanted, index in zip(predicted, true, kept):
        np.testing.assert_array_equal(wanted.boxes, Squares(4)[index]["boxes"])
        assert found.boxes.shape == (8, 4) and set(found.labels) <= {0, 1}
        assert (found.boxes >= 0).all() and (found.boxes[:, :2] <= (32, 40)).all()
        assert (found.boxes[:, :2] + found.boxes[:, 2:] <= (32 + 1e-3, 40 + 1e-3)).all()
    drawn = yolos.figures(one)["boxes"]
    assert isinstance(drawn, pictures.Picture) and len(drawn.rows) == 3


def test_a_run_is_the_same_again_and_on_several_devices(done, encoder, monkeypatch):
    one, scores = done
    assert len(jax.local_devices()) == 8  # of which 4 share the batch
    again = made(encoder, broken=(3,))
    monkeypatch.setattr(jax, "local_devices", lambda: jax.devices()[:1])
    alone = yolos.run(again)
    before, after = (c.extracted[c.own("yolos")][0] for c in (one, again))
    for a, b in zip(before, after):
        np.testing.assert_allclose(a.boxes, b.boxes, atol=1e-2)
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-3)
    assert alone["yolos"] == pytest.approx(scores["yolos"], abs=1)


def test_nothing_is_drawn_where_nothing_was_trained(encoder):
    assert yolos.figures(made(encoder)) == {}


def test_predictions_come_back_to_the_pixels_of_the_image(encoder):
    """A detector that knows the answer, on a canvas with a margin and at another size."""
    source = Squares(3)
    shown = [views.plain(source[i], 48, 1000) for i in range(3)]

    def apply(params, images):
        assert images.shape[1:3] == (64, 64)
        boxes = np.stack([v.boxes for v in shown])
        centers = np.concatenate([boxes[..., :2] + boxes[..., 2:] / 2, boxes[..., 2:]], -1) / 64
        hot = 20 * jax.nn.one_hot(np.stack([v.labels for v in shown]), 3)
        return hot, jnp.asarray(centers, jnp.float32)

    detector = detectors.Detector(apply, None, 2, 4, (0.5,) * 3)
    config = section(test_size=48, longest=1000, canvas=32)
    predicted, true, _ = prediction.predict(detector, source, np.arange(3), config, 3)
    for found, wanted in zip(predicted, true):
        np.testing.assert_allclose(found.boxes, wanted.boxes, atol=1e-3)
        np.testing.assert_array_equal(found.labels, wanted.labels)
    assert evals.detection.average_precision(predicted, true, classes=2)["ap"] == 100


def test_what_cannot_work_is_refused(encoder):
    class Bare(Squares):
        has_boxes = False

    with pytest.raises(InputError, match="yolos needs boxes, and Squares"):
        yolos.run(case.Case(encoder, section(), Bare(4), Bare(4)))
    pixels = evals.raw_pixels(4)
    with pytest.raises(InputError, match="this network is none"):
        yolos.run(case.Case(pixels, section(), Squares(4), Squares(4)))
    with pytest.raises(InputError, match="evals.yolos.crop is 16, but yolos sees whole images"):
        yolos.run(made(encoder, crop=16))
    with pytest.raises(InputError, match="position_size is 18, not a multiple of 4"):
        detectors.make(encoder, section(position_size=18), 2, jax.random.key(0))


def test_a_machine_that_could_not_score_is_refused_before_the_training(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faster_coco_eval", None)
    with pytest.raises(InputError, match=r"pip install 'ssl-jax\[eval\]'"):
        evals.TYPES["yolos"].check("evals.yolos", section())


def test_protocol_holds_every_constant_of_the_paper():
    paper = evals.new("yolos", protocol="coco")
    assert (paper.epochs, paper.batch, paper.lr, paper.clip) == (150, 32, 2.5e-5, 0.1)
    assert (paper.class_weight, paper.l1_weight, paper.giou_weight) == (1, 5, 2)
    assert paper.sizes[0] == 480 and paper.sizes[-1] == 800 and paper.test_size == 800
    assert paper.data.name == "coco/2017" and paper.no_object_weight == 0.1
    named = set(yolos.defaults()) | {"data"}
    for protocol in yolos.PROTOCOLS.values():
        assert set(protocol.changes) == named
    assert evals.new("yolos", protocol="coco_yolos").batch == 8


def test_picture_of_boxes(tmp_path):
    image = np.zeros((30, 60, 3), np.uint8)
    true = [Boxes(np.array([[5, 10, 20, 30]]), np.array([1]))]
    found = [
        Boxes(np.array([[5, 10, 20, 30], [0, 0, 5, 5]]), np.array([1, 0]), np.array([0.9, 0.1]))
    ]
    picture = boxes_picture.picture([image], true, found, class_names=("a", "b"))
    left, right = picture.rows[0]
    np.testing.assert_array_equal(left.image, right.image)
    scale = left.image.shape[1] / 60
    y, x = round(5 * scale), round(10 * scale)
    assert left.image[y, x].max() == 1 and left.image[0, 0].max() == 0
    assert [text for _, text in picture.legend] == ["b"] and right.title == "1 predicted"
    assert render.grid(picture, tmp_path, "boxes.png").exists()


@pytest.mark.slow
def test_it_learns(encoder):
    """Eight images of bright rectangles are learned by heart."""
    scores = yolos.run(made(encoder, train=8, test=8, epochs=300, lr=5e-3, clip=1.0))
    assert scores["yolos_ap50"] > 60
