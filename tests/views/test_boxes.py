"""Crop boxes: bounds and statistics of the draw, patch positions, composition, overlap."""

import jax
import numpy as np
import pytest

from ssl_jax.views import boxes


def draws(n, height, width, **kwargs):
    rng = np.random.default_rng(0)
    return np.array(
        [boxes.random_resized_crop(rng, height, width, **kwargs) for _ in range(n)], float
    )


@pytest.mark.parametrize("size", [(64, 64), (7, 5), (1, 1), (3, 400)])
@pytest.mark.parametrize("scale", [(0.05, 0.25), (1.0, 1.0)])
def test_boxes_lie_inside_the_image(size, scale):
    b = draws(300, *size, scale=scale)
    assert (b == b.round()).all()
    assert (b[:, :2] >= 0).all() and (b[:, 2:] >= 1).all()
    assert (b[:, 0] + b[:, 2] <= size[0]).all() and (b[:, 1] + b[:, 3] <= size[1]).all()


def test_area_ratio_and_place_are_distributed_as_stated():
    b = draws(4000, 400, 400, scale=(0.1, 0.4))
    area, ratio = b[:, 2] * b[:, 3] / 400**2, np.log(b[:, 3] / b[:, 2])
    assert 0.098 < area.min() < 0.102 and 0.395 < area.max() < 0.405
    assert area.mean() == pytest.approx(0.25, abs=0.006)  # 4 sigma: 0.3 / sqrt(12 * 4000) * 4
    assert np.mean(area < 0.175) == pytest.approx(0.25, abs=0.03)
    assert ratio.mean() == pytest.approx(0, abs=0.012)
    assert np.abs(ratio).max() < np.log(4 / 3) + 0.02
    assert ratio.std() == pytest.approx(2 * np.log(4 / 3) / np.sqrt(12), rel=0.04)
    for start, length in ((b[:, 0], b[:, 2]), (b[:, 1], b[:, 3])):
        place = (start + 0.5) / (400 - length + 1)
        assert place.mean() == pytest.approx(0.5, abs=0.02)
        assert place.std() == pytest.approx(1 / np.sqrt(12), rel=0.05)
    b = draws(400, 5, 5, scale=(0.16, 0.16), ratio=(1, 1))  # 2 x 2 boxes: 4 x 4 places
    assert len({(y, x) for y, x, *_ in b}) == 16


def test_fallback_is_the_largest_centred_box_within_the_ratio():
    for size, box in (((300, 90), (90, 0, 120, 90)), ((50, 60), (0, 0, 50, 60))):
        assert boxes.central_crop(*size) == box
    rng = np.random.default_rng(0)  # no attempt fits
    assert boxes.random_resized_crop(rng, 10, 200, scale=(1.0, 1.0)) == (0, 93, 10, 13)


def test_patch_positions_are_the_mean_coordinates_of_the_patches():
    """Brute force: crop the grid of pixel coordinates, mirror it and average it over each patch."""
    b = np.array([[3, 5, 8, 12], [0, 2, 4, 6]], np.float32)
    flips = np.array([True, False])
    ours = boxes.patch_positions(b, flips, (2, 3))
    grid = np.stack(np.meshgrid(np.arange(20), np.arange(20), indexing="ij"), -1).astype(float)
    for (y, x, h, w), flip, got in zip(b.astype(int), flips, ours, strict=True):
        crop = grid[y : y + h, x : x + w]
        crop = crop[:, ::-1] if flip else crop
        want = crop.reshape(2, h // 2, 3, w // 3, 2).mean((1, 3)).reshape(6, 2)
        np.testing.assert_allclose(got, want, atol=1e-5)
    device = jax.jit(boxes.patch_positions, static_argnums=2)(b, flips, (2, 3))
    np.testing.assert_allclose(device, ours, atol=1e-5)


@pytest.mark.parametrize("outer_flip", [False, True])
@pytest.mark.parametrize("inner_flip", [False, True])
def test_composed_box_has_the_patches_of_the_crop_of_the_crop(outer_flip, inner_flip):
    outer, inner, size = np.array([10.0, 20, 40, 30]), np.array([2.0, 5, 8, 9]), (16, 24)
    composed = boxes.compose(outer, inner, size, np.array(outer_flip))
    positions = boxes.patch_positions(composed, np.array(outer_flip ^ inner_flip), (2, 3))
    # By hand: positions within the outer crop, then its affine map to the source.
    within = boxes.patch_positions(inner, np.array(inner_flip), (2, 3)) + 0.5
    if outer_flip:
        within[:, 1] = size[1] - within[:, 1]
    want = outer[:2] + within * outer[2:] / size - 0.5
    np.testing.assert_allclose(positions, want, atol=1e-12)


def test_overlap_is_the_share_of_the_first_box():
    a = np.array([[0, 0, 4, 4], [0, 0, 4, 4], [1, 1, 2, 2], [0, 0, 2, 2]], np.float32)
    b = np.array([[2, 2, 4, 4], [4, 4, 2, 2], [0, 0, 4, 4], [5, 0, 2, 2]], np.float32)
    np.testing.assert_allclose(boxes.overlap(a, b), [0.25, 0, 1, 0])
    np.testing.assert_allclose(jax.jit(boxes.overlap)(a, b), [0.25, 0, 1, 0])
