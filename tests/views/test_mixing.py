"""mixing.py against NumPy, and what `recipe.prepare` makes of a batch with labels."""

import jax
import numpy as np
import pytest

from ssl_jax.views import erasing, mixing
from ssl_jax.views import recipe as recipes
from ssl_jax.views.mixing import Mixing

ROWS = np.random.default_rng(0).random((6, 1, 8, 3, 10), np.float32)
PAIRS = [1, 0, 3, 2, 5, 4]


def mixed(key, mixing_):
    rows, share = mixing.mix(ROWS, jax.random.key(key), mixing_)
    return np.asarray(rows), float(share)


def test_mixup_blends_neighbours():
    for key in range(2):
        rows, share = mixed(key, Mixing(0.8, 0.0))
        assert 0 < share < 1
        np.testing.assert_allclose(rows, share * ROWS + (1 - share) * ROWS[PAIRS], atol=1e-6)


def test_cutmix_pastes_one_box_of_the_neighbour_and_counts_its_area():
    shares = []
    for key in range(40):
        rows, share = mixed(key, Mixing(0.0, 1.0))
        other = (rows == ROWS[PAIRS]).all(axis=3)  # [6, 1, 8, 10]
        np.testing.assert_array_equal(np.where(other[:, :, :, None], ROWS[PAIRS], ROWS), rows)
        box = other[0, 0]
        assert (other == box).all()  # the same in all images
        assert box.any(1).sum() * box.any(0).sum() == box.sum()
        assert share == pytest.approx(1 - box.sum() / 80, abs=1e-6)
        shares.append(share)
    assert min(shares) < 0.4 and max(shares) > 0.95


def test_the_box_has_the_share_that_was_drawn_unless_it_sticks_out():
    drawn = 0.75  # sides half of the image's
    whole = 0
    for key in jax.random.split(jax.random.key(0), 50):
        top, bottom, left, right = map(int, mixing.rectangle(key, np.float32(drawn), 32, 64))
        assert 0 <= top <= bottom <= 32 and 0 <= left <= right <= 64
        assert bottom - top <= 16 and right - left <= 32
        whole += (bottom - top, right - left) == (16, 32)
    assert whole > 5


def test_shares_and_choices_follow_their_distributions():
    tiny = np.zeros((2, 1, 1, 3, 1), np.float32)
    keys = jax.random.split(jax.random.key(1), 3000)

    def shares(settings):
        return np.asarray(jax.vmap(lambda key: mixing.mix(tiny, key, settings)[1])(keys))

    found = shares(Mixing(0.8, 1.0, switch_prob=0.3, prob=0.6))
    # Of one pixel, CutMix takes nothing (its half side is 0): a share of 1, as where nothing is
    # mixed.
    assert (found == 1).mean() == pytest.approx(0.4 + 0.6 * 0.3, abs=0.03)
    beta = found[found < 1]
    assert beta.mean() == pytest.approx(0.5, abs=0.02)
    assert beta.var() == pytest.approx(1 / (4 * (2 * 0.8 + 1)), abs=0.008)  # Beta(a, a)


def recipe(**changes):
    group = recipes.GroupRecipe(1, 8, (0.3, 1.0), 4, erasing=erasing.Erasing(0.5))
    return recipes.ViewRecipe((("global", group),), **dict(classes=5, mix=Mixing()) | changes)


def batch(count, epoch=0):
    images = np.random.default_rng(0).integers(0, 256, (count, 1, 8, 8, 3), np.uint8)
    draws = np.zeros((count, 1, 4), np.float32), np.zeros((count, 1), bool)
    return {
        "global": recipes.Group(images, *draws),
        "index": np.arange(count, dtype=np.int32) + 7,
        "epoch": np.full(count, epoch, np.int32),
        "label": np.arange(count, dtype=np.int32) % 5,
    }


def test_prepare_gives_both_labels_and_the_share():
    prepare = jax.jit(lambda rows: recipes.prepare(recipe(), rows, seed=0))
    out = prepare(batch(6))
    np.testing.assert_array_equal(out["label"], [0, 1, 2, 3, 4, 0])
    np.testing.assert_array_equal(out["partner"], [1, 0, 3, 2, 0, 4])
    assert out["share"].shape == (6,) and len(set(np.asarray(out["share"]).tolist())) == 1
    later = prepare(batch(6, epoch=1))
    assert float(later["share"][0]) != float(out["share"][0])
    group = recipes.GroupRecipe(1, 8, (0.3, 1.0), 4)
    unmixed = recipes.ViewRecipe((("global", group),), classes=5)
    plain = recipes.prepare(unmixed, batch(5), seed=0)  # no pairs: any number of rows
    np.testing.assert_array_equal(plain["partner"], plain["label"])
    np.testing.assert_array_equal(plain["share"], np.ones(5))
    abstract = recipes.abstract_views(recipe(), 6)
    for name in ("label", "partner", "share"):
        assert (abstract[name].shape, abstract[name].dtype) == (out[name].shape, out[name].dtype)
