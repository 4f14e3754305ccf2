"""randaugment.py: each operation against hand-worked pixels; how often and how strongly which one
is drawn."""

import numpy as np
import pytest
from PIL import Image

from ssl_jax.views import randaugment
from ssl_jax.views import recipe as recipes
from ssl_jax.views.randaugment import OPERATIONS, RandAugment, augment

IMAGE = np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)
FILL = (1, 2, 3)


def applied(name, strength, sign=1.0, image=IMAGE):
    picture = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(OPERATIONS[name](picture, strength, sign * strength, FILL)).astype(int)


def shifted(pixels, axis):
    """What translate gives for a shift by so many pixels: later pixels move to the front."""
    out = np.broadcast_to(np.array(FILL), IMAGE.shape).copy()
    taken, place = [slice(None)] * 2, [slice(None)] * 2
    taken[axis] = slice(max(pixels, 0), 20 + min(pixels, 0))
    place[axis] = slice(max(-pixels, 0), 20 + min(-pixels, 0))
    out[tuple(place)] = IMAGE[tuple(taken)]
    return out


X = IMAGE.astype(int)
GRAY = (X @ [19595, 38470, 7471] + 0x8000) >> 16  # Pillow's luma, in 16 bits
# (operation, strength, sign) -> pixels; strengths such as .9, which the recipe has on average
BY_HAND = {
    ("invert", 0.9, 1): 255 - X,
    ("posterize", 0.9, 1): X & 0b10000000,
    ("posterize", 0.5, 1): X & 0b11000000,
    ("posterize", 0.0, 1): X & 0b11110000,
    ("posterize", 1.0, 1): X & 0b10000000,  # not 0 bits, which would leave nothing
    ("solarize", 0.9, 1): np.where(X < 26, X, 255 - X),
    ("solarize_add", 0.9, 1): np.where(X < 128, np.minimum(X + 99, 255), X),
    ("translate_x", 1.0, 1): shifted(9, 1),
    ("translate_x", 1.0, -1): shifted(-9, 1),
    ("translate_y", 0.2 / 0.9, 1): shifted(2, 0),
    ("brightness", 0.5, 1): np.minimum(X * 1.45, 255),
    ("brightness", 1.0, -1): X * 0.1,
    ("color", 1.0, 1): np.clip(GRAY[..., None] + 1.9 * (X - GRAY[..., None]), 0, 255),
    ("contrast", 1.0, -1): 0.1 * X + 0.9 * int(GRAY.mean() + 0.5),
}


@pytest.mark.parametrize("case", BY_HAND, ids=str)
def test_operations_are_those_of_the_table(case):
    np.testing.assert_allclose(applied(*case), BY_HAND[case], atol=1)


def test_weak_operations_change_nothing_and_signs_count():
    for name in ("rotate", "color", "contrast", "brightness", "sharpness", "solarize_add"):
        np.testing.assert_array_equal(applied(name, 0.0), X)
    # A picture that is turned by half a turn, rotated and turned back is the same as one rotated.
    turned = applied("rotate", 1.0, image=IMAGE[::-1, ::-1])
    np.testing.assert_array_equal(applied("rotate", 1.0)[::-1, ::-1], turned)
    for name in ("shear_x", "shear_y", "translate_x", "translate_y"):
        np.testing.assert_array_equal(applied(name, 0.0), X)
        assert (applied(name, 0.9, 1) != applied(name, 0.9, -1)).any()
        assert (applied(name, 1.0) == np.array(FILL)).all(-1).any()
    shifts = [np.argmin(np.abs(applied("shear_x", 1.0)[y, 0] - X[y]).sum(-1)) for y in (0, 10)]
    assert shifts == [0, 3]  # .3 of the row's number


def test_draws_are_fair(monkeypatch):
    seen = []

    def record(name):
        def operation(picture, strength, signed, fill):
            assert fill == FILL and abs(signed) == strength
            seen.append((name, strength, signed > 0))
            return picture

        return operation

    monkeypatch.setattr(randaugment, "OPERATIONS", {name: record(name) for name in OPERATIONS})
    rng, count = np.random.default_rng(0), 6000
    for _ in range(count):
        augment(IMAGE[:2, :2], RandAugment(2, 9.0, 0.5, fill=FILL), rng)
    names, strengths, signs = (np.array(column) for column in zip(*seen))
    assert len(seen) / (2 * count) == pytest.approx(0.5, abs=0.02)
    assert signs.mean() == pytest.approx(0.5, abs=0.03)
    found = np.unique(names, return_counts=True)[1]
    assert len(found) == 15 and np.abs(found / len(seen) - 1 / 15).max() < 0.015
    assert strengths.max() == 1.0  # cut off: 2.3 % of a normal distribution
    assert (strengths == 1.0).mean() == pytest.approx(0.0228, abs=0.008)
    inside = strengths[strengths < 1]
    assert inside.mean() == pytest.approx(0.9, abs=0.005)
    assert inside.std() == pytest.approx(0.05, abs=0.005)


def test_a_view_is_a_function_of_seed_pass_and_record():
    policies = (RandAugment(2, 9.0, 0.5, prob=1.0), None)
    with_policy, without = (
        recipes.ViewRecipe((("global", recipes.GroupRecipe(2, 8, (0.3, 1.0), 4, randaugment=p)),))
        for p in policies
    )

    stream = dict(seed=1, epoch=2, index=3)
    drawn, plain = (
        recipes.draw(recipe, **stream, source_size=(20, 20)) for recipe in (with_policy, without)
    )
    np.testing.assert_array_equal(drawn["global"].boxes, plain["global"].boxes)

    def views(recipe, **changes):
        return recipes.crop_host(recipe, IMAGE, drawn, **stream | changes)["global"]

    first = views(with_policy)
    np.testing.assert_array_equal(first, views(with_policy))
    assert (first != views(without)).any()
    for changes in (dict(seed=2), dict(epoch=3), dict(index=4)):
        assert (first != views(with_policy, **changes)).any(), changes
