"""Masks: counts, limits and shape of blockwise and random masks."""

import numpy as np
import pytest

from ssl_jax.views import masks
from ssl_jax.views.masks import MaskRecipe


def many(recipe, grid, n=300):
    rng = np.random.default_rng(0)
    return np.stack([masks.draw(rng, recipe, grid) for _ in range(n)])


@pytest.mark.parametrize("grid", [(14, 14), (4, 6), (2, 2), (1, 1)])
@pytest.mark.parametrize("ratio", [0.3, 0.75])
def test_blocks_never_exceed_the_floor_of_the_target(grid, ratio):
    recipe = MaskRecipe("block", (ratio, ratio))
    counts = many(recipe, grid).sum(1)
    assert counts.max() <= int(ratio * grid[0] * grid[1]) == recipe.max_masked(grid[0] * grid[1])


def test_the_papers_block_masks_nearly_fill_their_target_and_are_made_of_blocks():
    """14 x 14 at 0.3: at most 58, rarely far below. Masked patches have more masked neighbours than
    at random (0.3), the centre is masked most often."""
    block = many(MaskRecipe("block", (0.3, 0.3)), (14, 14)).reshape(-1, 14, 14)
    counts = block.sum((1, 2))
    assert counts.max() == 58 and counts.mean() > 54 and counts.min() > 40
    same = (block[:, :, 1:] & block[:, :, :-1]).sum() / block[:, :, 1:].sum()
    assert same > 0.7
    share = block.mean(0)
    assert share.min() > 0 and share[5:9, 5:9].mean() > 3 * share[0, 0]


def test_a_fresh_mask_starts_with_a_rectangle_within_bounds():
    """Target 16: the area is fixed, so a full mask is one rectangle of the allowed ratios."""
    sides = set()
    for mask in many(MaskRecipe("block", (16 / 196, 16 / 196)), (14, 14)).reshape(-1, 14, 14):
        r, c = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        if mask.sum() == 16 and mask[r[0] : r[-1] + 1, c[0] : c[-1] + 1].all():
            sides.add((len(r), len(c)))
    assert sides <= {(4, 4), (2, 8), (8, 2)} and (4, 4) in sides


def test_the_first_block_has_at_least_the_smallest_area():
    """Target 20: area U(16, 20), so every mask holds a full rectangle of 14 (rounded) or more."""
    sides = [(h, w) for h in range(1, 9) for w in range(1, 9) if h * w >= 14]
    of_side = np.lib.stride_tricks.sliding_window_view
    for mask in many(MaskRecipe("block", (20 / 196, 20 / 196)), (14, 14), 100).reshape(-1, 14, 14):
        assert any(of_side(mask, side).all((-1, -2)).any() for side in sides)
    # DINOv2's blocks may be smaller: so are the first of a mask of 90, of 4 patches at least.
    fine = many(MaskRecipe("block", (90 / 196, 90 / 196), block=4), (14, 14), 100)
    coarse = many(MaskRecipe("block", (90 / 196, 90 / 196)), (14, 14), 100)

    def edges(masks):
        return np.abs(np.diff(masks.reshape(-1, 14, 14).astype(int))).sum((1, 2)).mean()

    assert edges(fine) > 1.1 * edges(coarse)


@pytest.mark.parametrize("kind", ["block", "random"])
def test_a_view_is_masked_with_its_probability_and_a_ratio_within_bounds(kind):
    counts = many(MaskRecipe(kind, (0.1, 0.5), prob=0.5), (12, 12), 1000).sum(1)
    assert np.mean(counts == 0) == pytest.approx(0.5, abs=0.065)
    masked = counts[counts > 0]
    assert masked.max() <= 72
    if kind == "random":
        assert masked.min() >= 14 and masked.mean() == pytest.approx(0.3 * 144, abs=4)


def test_random_masks_have_an_exact_count_everywhere():
    drawn = many(MaskRecipe("random", (0.7, 0.7)), (10, 10), 500)
    assert (drawn.sum(1) == 70).all()
    np.testing.assert_allclose(drawn.mean(0), 0.7, atol=0.1)
    assert len(np.unique(drawn, axis=0)) == 500


@pytest.mark.parametrize(
    "n,ratio,kept", [(196, 0.8, 39), (100, 0.8, 20), (400, 0.8, 80), (196, 0.75, 49), (36, 0.6, 14)]
)
def test_dropping_keeps_the_published_count(n, ratio, kept):
    """Exact where n (1 - ratio) is a whole number: not the 19 of 100 of floating point."""
    recipe = MaskRecipe("random", (ratio, ratio), drop=True)
    side = int(n**0.5)
    assert recipe.visible(n) == kept and recipe.max_masked(n) == n - kept
    assert (~masks.draw(np.random.default_rng(0), recipe, (side, side))).sum() == kept


@pytest.mark.parametrize("focus", ["none", "gaussian", "window"])
def test_a_focus_keeps_the_count_and_brings_the_kept_patches_together(focus):
    def spread(prob):
        recipe = MaskRecipe("random", (0.8, 0.8), drop=True, focus=focus, focus_prob=prob)
        kept = ~many(recipe, (14, 14), 200)
        assert (kept.sum(1) == 39).all() and kept.mean(0).min() > 0  # any patch may be kept
        if focus == "window" and prob == 1:  # a full square
            squares = np.lib.stride_tricks.sliding_window_view
            assert all(squares(k.reshape(14, 14), (6, 6)).all((2, 3)).any() for k in kept)
        return np.mean([np.argwhere(k.reshape(14, 14)).std(0).mean() for k in kept])

    alike, always, half = spread(0.0), spread(1.0), spread(0.5)
    assert alike == pytest.approx(4.0, abs=0.1)  # of a uniform draw: 14 / sqrt(12)
    if focus == "none":
        assert always == pytest.approx(alike, abs=0.1)
    else:
        assert always < 0.9 * alike and always < half < alike  # the coin is drawn per view
