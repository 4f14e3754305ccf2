"""Segmentation with trained heads: crops, batches, windows against naive loops, schedules, and that
whole evaluations learn, leave frozen weights alone, and do not depend on the number of devices."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ssl_jax import evals, trees
from ssl_jax.config import InputError, settings_of
from ssl_jax.evals import registry
from ssl_jax.evals.segment import (
    inference,
    network,
    optimizer,
    protocols,
    records,
    settings,
    training,
    windows,
)
from ssl_jax.evals.segment.settings import Settings
from ssl_jax.features.network import adopt
from ssl_jax.methods import encoder as encoder_lib
from ssl_jax.models import vit
from ssl_jax.runtime import decay, sharding
from ssl_jax.views import masked
from tests.evals import fakes

_PATCH = 4
_SHAPE = vit.ViTConfig(width=8, depth=2, heads=2, patch=_PATCH, image_size=16)
# Short trainings at a size that compiles in seconds.
_SMALL = dict(side=16, batch=8, steps=40, lrs=(0.03,), photometric=False, ratio=(0.8, 1.2))
_SMALL |= dict(data=dict(kind="tfds", name="none"))


class Scenes(fakes.Source):
    """Images of several sizes: a bright square with stripes (1) on a dark ground (0), a frame that
    is not labelled (255)."""

    def __init__(self, count, sizes=((24, 24),), seed=0, broken=()):
        rng = np.random.default_rng(seed)
        images, masks = zip(*(self._draw(rng, sizes[i % len(sizes)]) for i in range(count)))
        super().__init__(images, masks=masks, broken=broken)

    def _draw(self, rng, size):
        image = rng.integers(0, 60, (*size, 3)).astype(np.uint8)
        mask = np.zeros(size, np.uint8)
        top, left = rng.integers(1, 9, 2)
        box = slice(top, top + 12), slice(left, left + 12)
        mask[box] = 1
        image[box] = rng.integers(150, 200, image[box].shape)
        image[box][::2] += 40
        mask[0], mask[:, 0] = 255, 255
        return image, mask


@pytest.fixture(scope="module")
def encoder():
    params = jax.jit(vit.vit(_SHAPE).init)(jax.random.key(0))
    return encoder_lib.published(_SHAPE, params, "tiny")


def _settings(case, **changes):
    return dataclasses.replace(settings_of(Settings, case.config), **changes)


def _outcome(case):
    return evals.segment.outcome(case, _settings(case))


def _case(encoder, train_set=None, test_set=None, **changes):
    config = evals.new("segment", **(_SMALL | changes))
    train, test = train_set or Scenes(20), test_set or Scenes(6, seed=1)
    return evals.Case(encoder, config, train, test, patch=_PATCH, shared=False)


@pytest.mark.parametrize("kind", masked.KINDS)
def test_image_and_mask_stay_in_step(kind):
    mask = np.arange(12, dtype=np.uint8).reshape(3, 4).repeat(20, 0).repeat(20, 1)
    image = np.stack([20 * mask] * 3, axis=-1)
    settings = masked.Settings(augment=kind, side=48, ratio=(0.4, 1.6), photometric=False)
    padded = flipped = 0
    for seed in range(30):
        cut, labels = masked.draw(np.random.default_rng(seed), image, mask, settings)
        assert cut.shape == (48, 48, 3) and labels.shape == (48, 48) and cut.dtype == np.uint8
        outside = labels == 255
        assert (cut[outside] == masked.PADDING).all()
        near = np.abs(cut[~outside][:, 0].astype(int) - 20 * labels[~outside]) < 15
        assert near.mean() > 0.8  # but for pixels between two labels
        inside = labels[: (~outside).sum(axis=0).max(), : (~outside).sum(axis=1).max()]
        padded += outside.any()
        flipped += inside[0, 0] > inside[0, -1]
    assert 8 < flipped < 22 and (padded > 3) == (kind == "scale_crop")


def test_no_class_fills_a_crop():
    mask = np.zeros((100, 100), np.uint8)
    mask[:, 80:] = 1
    image = np.zeros((100, 100, 3), np.uint8)

    def shares(limit):
        settings = masked.Settings(side=40, ratio=(1, 1), largest_class=limit)
        for seed in range(40):
            labels = masked.draw(np.random.default_rng(seed), image, mask, settings)[1]
            yield np.bincount(labels.ravel()).max() / labels.size

    assert np.mean(np.fromiter(shares(1.0), float) > 0.75) > 0.6
    assert np.mean(np.fromiter(shares(0.75), float) > 0.75) < 0.2


class Draws:
    """A generator whose coins fall as given (1: the operation is made), and its one number."""

    def __init__(self, coins, number=None):
        self._coins, self._number = iter(coins), number

    def random(self):
        return 0.0 if next(self._coins) else 0.9

    def uniform(self, low, high):
        assert low <= self._number <= high
        return self._number

    integers = uniform


def test_distortion_by_hand():
    """Coins: brightness; contrast before the colours; (contrast); saturation; hue; (contrast)."""
    image = np.array([[[100, 50, 200], [250, 4, 90]]], np.uint8)
    np.testing.assert_array_equal(masked.distort(Draws([0, 0, 0, 0, 0]), image), image)
    bright = masked.distort(Draws([1, 0, 0, 0, 0], 10.0), image)
    np.testing.assert_array_equal(bright, [[[110, 60, 210], [255, 14, 100]]])
    for coins in ([0, 1, 1, 0, 0], [0, 0, 0, 0, 1]):
        np.testing.assert_array_equal(masked.distort(Draws(coins, 0.5), image), image // 2)
    gray = masked.distort(Draws([0, 0, 1, 0, 0], 0.5), image)
    assert (np.ptp(gray, axis=-1) < np.ptp(image, axis=-1)).all()
    turned = masked.distort(Draws([0, 0, 0, 1, 0], -17), image)
    back = masked.distort(Draws([0, 0, 0, 1, 0], 17), turned)
    assert np.abs(turned.astype(int) - image).max() > 20
    assert np.abs(back.astype(int) - image).max() < 8


def test_sizes_are_those_of_mmcv():
    assert masked.fitted(375, 500, 512, 2048) == (512, 683)
    assert masked.fitted(300, 1500, 512, 2048) == (410, 2048)  # the longer side counts
    assert masked.fitted(300, 1500, 512, 2048, 0.5) == (205, 1024)
    assert masked.fitted(7, 9, 0, 0) == (7, 9)


def test_batches_depend_on_seed_step_row_and_record_alone():
    data = records.Records(Scenes(5, sizes=((24, 24), (20, 30))), np.arange(5))

    def made(data=data, seed=3, rows=None, **changes):
        chosen = Settings(**dict(side=16, batch=4, steps=5) | changes)
        return list(records.batches(data, chosen, seed=seed, rows=rows))

    first = made()
    assert len(first) == 5 and first[0]["image"].shape == (4, 16, 16, 3)
    chex.assert_trees_all_equal(first, made())
    assert not np.array_equal(first[0]["image"], made(seed=4)[0]["image"])
    part = made(rows=range(2, 4))
    np.testing.assert_array_equal(part[3]["image"], first[3]["image"][2:])
    (batch,) = made(records.Records(data.source, np.array([2])), batch=2, steps=1)
    assert not np.array_equal(*batch["image"])  # the same record in every row
    # An epoch has every record.
    images = np.arange(6, dtype=np.uint8).repeat(16 * 3).reshape(6, 4, 4, 3)
    source = fakes.Source(images, masks=np.zeros((6, 4, 4), np.uint8))
    plain = dict(side=4, ratio=(1, 1), photometric=False)
    parts = made(records.Records(source, np.arange(6)), steps=3, **plain)
    seen = [pixel for part in parts for pixel in part["image"][:, 0, 0, 0]]
    assert sorted(seen[:6]) == sorted(seen[6:]) == list(range(6)) and seen[:6] != seen[6:]
    # A class can count as unlabelled.
    mask = np.array([[0, 1, 2, 255]], np.uint8)
    np.testing.assert_array_equal(records.without_class(mask, 0), [[255, 0, 1, 255]])
    np.testing.assert_array_equal(records.without_class(mask, 1), [[0, 255, 1, 255]])
    assert records.without_class(mask, -1) is mask


def test_schedule_by_hand():
    def rate(step, **changes):
        how = Settings(**dict(steps=100, power=1.0, warmup=10, final_share=0.1) | changes)
        return float(optimizer.learning_rate(how, jnp.int32(step), jnp.float32(1.0)))

    assert rate(50) == pytest.approx(0.55) and rate(100) == pytest.approx(0.1)
    assert rate(5) == pytest.approx((0.1 + 0.9 * 0.95) * 0.5, rel=1e-4)
    assert rate(0) == pytest.approx(1e-6, rel=0.05)
    assert rate(50, power=0.9) == pytest.approx(0.1 + 0.9 * 0.5**0.9)
    assert rate(50, power=0.9, final_lr=0.3) == pytest.approx(0.3 + 0.7 * 0.5**0.9)
    assert rate(99, power=0.0) == pytest.approx(1.0)


_PARAMS = {
    "head": {"norm": {"scale": np.ones(2)}, "classify": {"kernel": np.ones((2, 2))}},
    "backbone": {
        "cls": np.ones((1, 2)),
        "position": np.ones((4, 2)),
        "norm": {"scale": np.ones(2)},
        "blocks": {"attn": {"kernel": np.ones((2, 2, 2)), "bias": np.ones((2, 2))}},
    },
}


def test_layers_learn_more_slowly_towards_the_image_and_what_decays():
    found = trees.flatten(decay.layer_factors(_PARAMS, 0.5))
    assert found["head/classify/kernel"] == found["backbone/norm/scale"] == 1
    assert found["backbone/blocks/attn/kernel"].tolist() == [[[0.25]], [[0.5]]]
    assert found["backbone/blocks/attn/bias"].tolist() == [[0.25], [0.5]]
    assert found["backbone/cls"] == found["backbone/position"] == 0.125
    kept = dict(matrices={"cls", "position", "scale", "bias"}, not_norms={"position", "scale"})
    for rule, names in (kept | dict(all=set())).items():
        decayed = trees.flatten(decay.decayed(_PARAMS, rule))
        assert {path.split("/")[-1] for path, decays in decayed.items() if not decays} == names


@pytest.mark.parametrize(("name", "step"), [("adamw", 1 + 0.5 * 2), ("adam", -1.0)])
def test_first_step_by_hand(name, step):
    """Adam's first step is the sign of the gradient; adam adds the decay to that, adamw after."""
    gradient = 1.0 if name == "adamw" else -0.1  # -0.1 + 0.5 * 2 > 0 turns the sign
    how = Settings(optimizer=name, weight_decay=0.5, decayed="all", power=0.0)
    params = {"head": {"kernel": jnp.array([2.0])}}
    change = optimizer.make(how, params)(0, 0.1)
    updates, _ = change.update(
        {"head": {"kernel": jnp.array([gradient])}}, change.init(params), params
    )
    expected = 2.0 - 0.1 * (step if name == "adamw" else 1.0)
    np.testing.assert_allclose(2.0 + updates["head"]["kernel"], expected, rtol=1e-5)


def test_images_are_cut_for_each_kind_of_test():
    image = np.random.default_rng(0).integers(0, 256, (30, 50, 3)).astype(np.uint8)
    mask = np.arange(1500).reshape(30, 50).astype(np.uint8) % 7

    def cut(test, short=20, head="linear"):
        return windows.cut(image, mask, Settings(head=head, test=test, short=short, side=16), 4)

    cuts, shown, truth = cut("slide")
    assert cuts.size == (20, 33) and truth is mask and shown is image
    assert cuts.corners == [(0, 0), (0, 10), (0, 17), (4, 0), (4, 10), (4, 17)]
    np.testing.assert_array_equal(cuts.pixels[4], masked.resize(image, (20, 33))[4:20, 10:26])
    cuts, _, truth = cut("whole")
    assert cuts.size == (20, 36) and cuts.pixels.shape == (1, 20, 36, 3) and truth is mask
    assert cut("whole", head="fpn")[0].size == (24, 40)
    cuts, shown, truth = cut("center")
    assert cuts.pixels.shape == (1, 16, 16, 3) and truth.shape == (16, 16)
    np.testing.assert_array_equal(shown, cuts.pixels[0])
    np.testing.assert_array_equal(cut("center", 30)[2], mask[7:23, 17:33])


def test_raw_pixels_learn(encoder):
    unread = Scenes(6, seed=1, broken=(2,))
    case = _case(evals.raw_pixels(_PATCH), lrs=(0.001, 0.03), test_set=unread)
    scores = evals.run({"segment": case})
    assert set(scores) == {"segment"} | {
        f"segment_{name}" for name in ("class_accuracy", "accuracy", "lr", "held_out")
    }
    assert scores["segment"] > 75 and scores["segment_accuracy"] > 90
    assert scores["segment_lr"] == pytest.approx(0.03)
    assert scores == evals.run({"segment": case}), "trained once"
    with pytest.raises(InputError, match="layers"):
        evals.run({"segment": _case(encoder, layers=(2,))})
    strange = fakes.Source(fakes.images(4, 16, 16), masks=np.full((4, 16, 16), 7, np.uint8))
    with pytest.raises(InputError, match="label 7"):
        evals.run({"segment": _case(evals.raw_pixels(_PATCH), strange, classes=2)})
    untrainable = _case(evals.raw_pixels(_PATCH), frozen=False)
    assert evals.run({"segment": untrainable}) == {}
    assert evals.TYPES["segment"].figures(untrainable) == {}


def test_batches_are_tried_up_to_the_size_of_the_set():
    """Each takes the same epochs; with one image held out of 20, 18 are left to learn from."""
    case = _case(evals.raw_pixels(_PATCH), batch=4, batch_factors=(1, 2, 4, 64), epochs=6.0)
    tried = settings.sizes(_settings(case), 18)
    assert [(how.batch, how.steps) for how in tried] == [(4, 27), (8, 14), (16, 7)]
    scores = evals.run({"segment": case})
    assert scores["segment_batch"] in (4, 8, 16)
    assert len(_outcome(case).selection) == 3 * len(case.config.lrs)


def test_the_whole_gradient_is_clipped():
    params = {"head": {"a": jnp.ones(3), "b": jnp.ones(2)}}
    grads = jax.tree.map(lambda x: 100 * x, params)
    for clip, norm in ((5.0, 5.0), (0.0, 100 * 5**0.5)):
        change = optimizer.make(Settings(clip=clip), params)(0, 0.1)
        _, state = change.update(grads, change.init(params), params)
        assert optax.tree.norm(optax.tree.get(state, "mu")) == pytest.approx(0.1 * norm, rel=1e-5)


def test_layers_are_read_before_or_after_the_final_norm(encoder):
    images = jnp.asarray(fakes.images(2, 16, 16), jnp.float32) / 255
    net = adopt(encoder)

    def maps(norms):
        how = Settings(layers=(0, -1), norm_layers=norms)
        made = network.make(net, how, 2, _PATCH)
        return made.maps(made.backbone, images)

    (first, last), both, none = maps("last"), maps("all"), maps("none")
    np.testing.assert_array_equal(last, both[1])
    np.testing.assert_array_equal(first, none[0])
    assert np.abs(first - both[0]).max() > 0.1 and np.abs(last - none[1]).max() > 0.1


def test_the_grid_of_patches_is_segmented_as_by_stellar():
    """Images of several sizes, BatchNorm, Dice, crops of random area, the middle of test images."""
    changes = dict(registry.protocol("segment", "stellar_native").changes)
    changes |= dict(side=16, short=20, epochs=20.0, steps=1, batch=8, lrs=(0.01, 0.03))
    sizes = (24, 24), (22, 30)
    case = _case(evals.raw_pixels(_PATCH), Scenes(12, sizes), Scenes(5, sizes, 1), **changes)
    scores = evals.run({"segment": case})
    assert case.config.level == "patch" and scores["segment"] > 60
    counts = _outcome(case).counts
    assert counts.shape == (2, 2) and 60 < counts.sum() <= 5 * 4 * 4  # labels of patches


@pytest.mark.slow
def test_frozen_weights_stay_and_trained_ones_move(encoder):
    before = jax.tree.map(np.array, encoder.params)
    scenes = Scenes(20, ((24, 24), (22, 30)))
    case = _case(encoder, scenes, layers=(0, -1), batch_norm=True, dice=1.0, test="slide", steps=60)
    assert evals.run({"segment": case})["segment"] > 50
    frozen = _outcome(case)
    assert set(frozen.trained.params) == {"head"} and frozen.trained.losses.shape == (60,)
    assert frozen.trained.losses[-1] < 0.7 * frozen.trained.losses[0]
    whole = dict(frozen=False, layer_decay=0.5, drop_path=0.2, lrs=(0.01,), weight_decay=0.0)
    trained = _outcome(_case(encoder, **whole, steps=20)).trained
    assert trained.losses[-1] < trained.losses[0]
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), trained.params["backbone"], before)
    moved = trees.flatten(moved)
    assert min(moved.values()) > 0
    assert moved["patch/kernel"] < 0.5 * moved["blocks/mlp/fc1/kernel"]  # layer_decay
    # Those of the encoder itself stay in both cases.
    chex.assert_trees_all_equal(before, jax.tree.map(np.array, encoder.params))


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [True, False])
def test_eight_devices_give_what_one_gives_and_two_rates_what_each_gives(encoder, frozen):
    """BatchNorm, dropout and, trained end to end, stochastic depth."""
    changes = dict(batch_norm=True, dropout=0.1)
    case = _case(evals.raw_pixels(_PATCH), **changes)
    if not frozen:
        case = _case(encoder, **changes, frozen=False, drop_path=0.1)
    how = _settings(case, steps=10 if frozen else 3, photometric=True, ratio=(0.5, 2.0))
    net, data = (
        network.make(case.network, how, 2, _PATCH),
        records.Records(case.train, np.arange(20)),
    )
    rates = (0.01, 0.03) if frozen else (1e-3,)

    def fitted(devices, lrs):
        """What is trained, and its counts of pixels."""
        mesh = sharding.make_mesh(devices=jax.devices()[:devices])
        batches = records.batches(data, how, seed=0)
        found = training.fit(net, how, batches, lrs=lrs, seed=0, mesh=mesh)
        scored = inference.score(net, found, data, how, patch=_PATCH, mesh=mesh)
        return found, inference.counts(scored, len(lrs), 2, shared=False)

    (one, counts), (eight, others) = (fitted(devices, rates) for devices in (1, 8))
    if frozen:
        chex.assert_trees_all_close(one, eight, rtol=1e-4, atol=1e-5)
        chex.assert_trees_all_close(one[1], fitted(1, rates[1:])[0][0], rtol=1e-4, atol=1e-5)
    else:
        np.testing.assert_allclose(one[0].losses, eight[0].losses, rtol=1e-4)
        variances = (found[0].carry["norm"]["var"] for found in (one, eight))
        np.testing.assert_allclose(*variances, rtol=1e-3, atol=1e-5)
    assert np.abs(counts - others).sum() <= (0.002 if frozen else 0.01) * counts.sum()


@pytest.mark.slow
@pytest.mark.parametrize("name", protocols.PROTOCOLS)
def test_protocols_fit_their_networks(name):
    section = evals.new("segment", protocol=name)
    evals.TYPES["segment"].refuse("segment", section)
    shape = vit.ViTConfig(width=768, depth=12, heads=12, patch=16, image_size=224)
    params = jax.eval_shape(vit.vit(shape).init, jax.random.key(0))
    how = settings_of(Settings, section)
    net = network.make(adopt(encoder_lib.published(shape, params, "b")), how, 150, 16)
    head, stats = jax.eval_shape(net.head.init, jax.random.key(0))
    four = name == "ibot_linear" or name.startswith("cribo_linear4")
    expected = 3072 if four else 128 if name == "flsl_fpn" else 768
    layer = "embed" if section.head == "mask_transformer" else "classify"
    assert head[layer]["kernel"].shape[0] == expected
    assert bool(stats) == (name.startswith("stellar") or section.head in settings.PYRAMIDS)
    assert section.side % 16 == 0
