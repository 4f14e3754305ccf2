"""Patches of boxes: boxes placed by hand, features made by hand."""

import cv2
import numpy as np
import pytest

from ssl_jax.data import decode
from ssl_jax.features import boxes
from ssl_jax.features.boxes import Sight
from ssl_jax.features.pixels import Pixels
from tests.evals import fakes


def test_boxes_follow_the_image():
    # 300 x 600: by 256/300, the middle 300 columns stay, of which 262.5 (224 pixels)
    scale = 256 / 300
    inside = [60, 200, 90, 120]
    expected = [60 * scale - 16, 50 * scale - 16, 90 * scale, 120 * scale]
    np.testing.assert_allclose(boxes.follow([inside], (300, 600))[0], expected)
    beyond = boxes.follow([[0, 0, 300, 600], [0, 0, 40, 40]], (300, 600))
    np.testing.assert_allclose(beyond[0], [0, 0, 224, 224], rtol=1e-5)
    # FLSL's script: a whole image ends just before the crop does, so its middle is in patch 6.
    for box in (beyond[0], boxes.follow([[0, 0, 300, 600]], (300, 600), "script")[0]):
        found = boxes.patches_at(boxes.centres(box), 16, (14, 14))
        assert found.tolist() == [30, 34, 39, 86, 90, 95, 156, 160, 165]
    assert beyond[1, 2] * beyond[1, 3] == 0  # cut away with the left part
    assert boxes.follow([], (300, 600)).shape == (0, 4)
    # The script squeezes boxes.
    expected = [60 * scale - 16, 200 * 256 / 600 - 16, 90 * scale, 120 * 256 / 600]
    np.testing.assert_allclose(boxes.follow([inside], (300, 600), "script")[0], expected)
    found = [boxes.follow([[10, 20, 100, 50]], (256, 256), how) for how in ("script", "exact")]
    np.testing.assert_allclose(*found)


@pytest.mark.parametrize("size", [(90, 140), (140, 90), (64, 64)])
def test_a_white_box_is_where_it_is_said_to_be(size):
    image, box = np.zeros((*size, 3), np.uint8), (22, 30, 34, 26)
    image[22:56, 30:56] = 255
    seen = decode.resize_square(image, 64)[8:56, 8:56, 0] > 127
    y, x, h, w = boxes.follow([box], size, resize=64, crop=48)[0]
    found = cv2.boundingRect(seen.astype(np.uint8))
    np.testing.assert_allclose([found[1], found[0], found[3], found[2]], [y, x, h, w], atol=1.01)


def test_points_are_centres_of_cells_and_each_lies_in_the_patch_with_the_nearest_centre():
    points = boxes.centres((4, 10, 6, 12), 3)
    np.testing.assert_allclose(points, [(y, x) for y in (5, 7, 9) for x in (12, 16, 20)])
    found = boxes.patches_at([(-1, 0), (12, 24), (0, 23.9)], 4, (3, 6))
    np.testing.assert_array_equal(found, [0, 17, 5])  # on and beyond the border
    points = np.random.default_rng(0).uniform(0, (12, 24), (200, 2))
    y, x = np.mgrid[:3, :6] * 4 + 2
    centres = np.stack([y.ravel(), x.ravel()], 1)
    nearest = np.linalg.norm(points[:, None] - centres, axis=-1).argmin(1)
    np.testing.assert_array_equal(boxes.patches_at(points, 4, (3, 6)), nearest)


def _places(images):
    """Features of a patch: which one it is, [B, h, w, h * w]."""
    b, height, width, _ = np.shape(images)
    h, w = height // 4, width // 4
    eye = np.eye(h * w, dtype=np.float32).reshape(1, h, w, -1)
    return Pixels(None, np.repeat(eye, b, axis=0))


def test_selects_the_patches_of_the_largest_visible_box():
    images = fakes.images(3, 24, 40)
    placed = [
        [[0, 8, 12, 12], [12, 20, 12, 11]],  # the first is larger
        [[0, 0, 24, 7], [3, 20, 6, 6]],  # the first is larger, but outside of the middle square
        [],
    ]
    source = fakes.boxed(images, placed, labels=np.array([4, 5, 6]))
    found = boxes.select(_places, source, range(3), Sight(4, resize=24), batch_size=2)
    np.testing.assert_array_equal(found.index, [0, 1])
    np.testing.assert_array_equal(found.labels, [4, 5])
    # 40 columns, of which 24 from 8 on are seen: 6 x 6 patches; the first box is rows and columns
    # 0..12, with centres at 2, 6, 10
    first, second = found.features.argmax(-1)
    np.testing.assert_array_equal(first, [r * 6 + c for r in range(3) for c in range(3)])
    # the second is rows 3..9, columns 12..18: centres 4, 6, 8 and 13, 15, 17
    np.testing.assert_array_equal(second, [r * 6 + c for r in (1, 1, 2) for c in (3, 3, 4)])
    np.testing.assert_allclose(found.points[1, 0], [4 / 24, 13 / 24])
    # Images as stored may differ in size.
    mixed = [np.zeros((*size, 3), np.uint8) for size in ((16, 24), (24, 16), (16, 24))]
    source = fakes.boxed(
        mixed, [[[4, 4, 3, 3]], [[16, 12, 4, 4]], [[0, 20, 4, 4]]], labels=[0, 1, 2]
    )
    found = boxes.select(_places, source, range(3), Sight(4), batch_size=2)
    for row, place in enumerate((1 * 6 + 1, 4 * 4 + 3, 0 * 6 + 5)):
        np.testing.assert_array_equal(found.features[row].argmax(-1), place)


@pytest.mark.parametrize(
    "kind, height",
    [
        ("exact", 8),  # columns 24..36 are 12..24 of the square, 8..20 of the crop; 8..16 are left
        ("script", 6),  # squeezed to 12..18, 8..14 of the crop
    ],
)
def test_crops_and_the_box_of_the_script(kind, height):
    source = fakes.boxed(fakes.images(1, 24, 48), [[[0, 24, 12, 12]]], box_labels=[[3]])
    sight = Sight(4, resize=24, crop=16, boxes=kind)
    found = boxes.select(_places, source, [0], sight, batch_size=2)
    np.testing.assert_allclose(found.points[0, 8] * 16, [8 * 5 / 6, 8 + height * 5 / 6], rtol=1e-4)
    assert found.labels[0] == 3
