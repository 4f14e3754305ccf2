"""Views that depend on others of the same image: nested (FLSL) and shared (STELLAR) crops."""

import numpy as np
import pytest

from ssl_jax.views import boxes, crops, recipe
from ssl_jax.views.masks import MaskRecipe
from ssl_jax.views.recipe import GroupRecipe, ViewRecipe

SIZE = (40, 56)
TEACHER = GroupRecipe(2, 16, (0.5, 0.9), patch=4)
NESTED = ViewRecipe(
    (("teacher", TEACHER), ("student", GroupRecipe(4, 8, (0.3, 0.8), patch=4, inside="teacher")))
)


def drawn(view_recipe, count=200):
    return [
        recipe.draw(view_recipe, seed=0, epoch=0, index=i, source_size=SIZE) for i in range(count)
    ]


def test_a_nested_crop_lies_inside_its_own_outer_view_and_covers_the_share_asked_for():
    for views in drawn(NESTED):
        outer, inner = views["teacher"].boxes, views["student"].boxes
        for v in range(4):
            around = outer[v % 2]
            assert boxes.overlap(inner[v], around) == pytest.approx(1, abs=1e-5)
            share = inner[v, 2] * inner[v, 3] / (around[2] * around[3])
            assert 0.2 < share < 0.95  # (0.3, 0.8) up to whole pixels of a 16 px view


def test_a_crop_of_a_mirrored_view_shows_what_a_crop_of_the_mirrored_picture_shows():
    """Cut and flip the outer view, then cut the inner one out of it: a second resampling."""
    y, x = np.mgrid[0 : SIZE[0], 0 : SIZE[1]]
    image = np.stack(
        [127 + 100 * np.sin(x / 9), 127 + 100 * np.cos(y / 8), 127 + 60 * np.sin((x + y) / 12)], -1
    ).astype(np.uint8)
    inner = GroupRecipe(2, 8, (0.3, 0.8), patch=4, flip=0.0, inside="teacher")
    plain = ViewRecipe((("teacher", TEACHER), ("student", inner)))
    mirrored = 0
    for views in drawn(plain, 30):
        once = recipe.crop_host(plain, image, views)
        for v in range(2):
            # Undo the composition: the inner box in pixels of the outer view as it is shown.
            outer, inner = (views[name].boxes[v] for name in ("teacher", "student"))
            flip = views["teacher"].flips[v]
            assert views["student"].flips[v] == flip  # without one of its own, it has the outer one
            box = (inner - [*outer[:2], 0, 0]) / [outer[2], outer[3], outer[2], outer[3]] * 16
            box[1] = 16 - box[1] - box[3] if flip else box[1]
            twice = crops.crop_host(once["teacher"][v], box.astype(np.float32), 8, False)
            assert np.abs(twice.astype(int) - once["student"][v]).mean() < 6
            mirrored += flip
    assert 10 < mirrored < 50


def test_nesting_leaves_the_outer_draws_alone_and_a_flip_of_ones_own_adds_to_it():
    alone = ViewRecipe((("teacher", TEACHER),))
    for a, b in zip(drawn(alone, 20), drawn(NESTED, 20), strict=True):
        np.testing.assert_array_equal(a["teacher"].boxes, b["teacher"].boxes)
    pairs = [(views["student"].flips[:2], views["teacher"].flips) for views in drawn(NESTED)]
    same = np.mean([a == b for a, b in pairs])
    assert same == pytest.approx(0.5, abs=0.1)


def test_a_shared_crop_repeats_box_and_flip_of_the_first_views_only():
    mask = MaskRecipe("random", (0.5, 0.5), drop=True)
    shared = GroupRecipe(3, 16, (0.3, 0.8), patch=4, mask=mask, reuse="main")
    main = GroupRecipe(1, 16, (0.3, 0.8), patch=4)
    for views in drawn(ViewRecipe((("main", main), ("masked", shared))), 20):
        np.testing.assert_array_equal(views["masked"].boxes[0], views["main"].boxes[0])
        assert views["masked"].flips[0] == views["main"].flips[0]
        assert not np.array_equal(views["masked"].boxes[1], views["main"].boxes[0])
        assert views["masked"].keep.shape == (3, 8)
