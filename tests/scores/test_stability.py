"""What and where under shifts and crops: by hand, and for networks whose answer is known."""

import numpy as np
import pytest

from ssl_jax import ops
from ssl_jax.scores import stability
from ssl_jax.scores.stability import Parts

_RNG = np.random.default_rng(0)
_PATCH = 4


def _pool(images):
    """Mean colour of each patch, [B, h, w, 3]."""
    b, height, width, _ = images.shape
    cut = images.reshape(b, height // _PATCH, _PATCH, width // _PATCH, _PATCH, 3)
    return cut.mean(axis=(2, 4))


def follows(images):
    """A token says what never changes; the map is the image itself."""
    return Parts(np.ones((len(images), 1, 2)), _pool(images))


def stays(images):
    """The token belongs to what is seen, the map to the place."""
    maps = np.broadcast_to(np.arange(16.0).reshape(4, 4, 1), (len(images), 4, 4, 1))
    return Parts(np.stack([images[:, 0, 0], images[:, 5, 5]], axis=1), maps)


def test_measures_by_hand():
    tokens, noise = _RNG.standard_normal((2, 6, 4, 16)).astype(np.float32)
    assert stability.invariance(tokens, tokens[:, ::-1]) == pytest.approx(
        1, abs=1e-5
    )  # another order
    assert abs(stability.invariance(tokens, noise)) < 0.15
    assert 0.3 < stability.invariance(tokens, tokens + noise) < 0.95
    maps = _RNG.random((3, 4, 4, 2))
    assert stability.correlation(maps, 5 * maps + 1) == pytest.approx(1)
    assert stability.correlation(maps, -maps) == pytest.approx(-1)
    assert stability.correlation(maps, np.ones_like(maps)) == 0
    first = np.array([[[3.0, 0.0], [0.0, 4.0]]])
    np.testing.assert_allclose(stability.change(first, 2 * first), 1)
    np.testing.assert_allclose(stability.change(first, first[:, ::-1]), np.sqrt(50) / 5)
    # Tokens in the other order, one of them turned by 60 degrees.
    turned = np.array([[[2 * np.sqrt(3), 2.0], [3.0, 0.0]]])
    np.testing.assert_allclose(stability.cosine(first, turned), [(1 + 0.5) / 2], rtol=1e-6)


def test_the_matching_is_one_to_one_and_the_best():
    first = np.array([[[0.0], [1.0], [2.0]]])
    second = np.array([[[2.2], [0.4], [0.9]]])
    index = stability.matching(first, second)
    np.testing.assert_array_equal(index, [[1, 2, 0]])
    np.testing.assert_allclose(stability.matched(index, second), [[[0.4], [0.9], [2.2]]])
    maps = _RNG.random((1, 2, 2, 3))
    np.testing.assert_array_equal(stability.matched(index, maps, axis=3), maps[..., [1, 2, 0]])
    first, second = _RNG.normal(size=(2, 5, 6, 3)).astype(np.float32)
    expected = ops.align_sets(first, second, solver="hungarian").index  # as the method does
    np.testing.assert_array_equal(stability.matching(first, second), expected)


def test_maps_that_follow_are_told_from_maps_that_stay():
    images = _RNG.random((5, 24, 24, 3))
    moved = stability.shifted(follows, images, (0, 2, 4, 8), (16, 16), _PATCH)
    np.testing.assert_allclose(moved.what, 1)
    assert moved.where[0] == 0 and (moved.where[1:] > 0.1).all()
    np.testing.assert_allclose(moved.follows[[0, 2, 3]], 0, atol=1e-12)
    assert np.isnan(moved.follows[1])  # half a patch
    assert moved.other == pytest.approx(1)  # the same of all images
    still = stability.shifted(stays, images, (0, 4), (16, 16), _PATCH)
    np.testing.assert_allclose(still.where, 0)
    assert still.follows[1] > 0.1 and still.what[1] < 0.99 and still.other < 0.99


def test_maps_of_tokens_are_matched_as_the_tokens_are():
    """Tokens and their maps in an order that changes from call to call."""
    calls = []

    def shuffled(images):
        order = [0, 1] if len(calls) % 2 == 0 else [1, 0]
        calls.append(order)
        tokens = np.broadcast_to(np.eye(2)[order], (len(images), 2, 2))
        return Parts(tokens, np.stack([_pool(images)[..., k] for k in order], axis=-1))

    images = _RNG.random((3, 20, 20, 3))
    moved = stability.shifted(shuffled, images, (0, 4), (16, 16), _PATCH)
    np.testing.assert_allclose(moved.what, 1)
    np.testing.assert_allclose(moved.follows, 0, atol=1e-12)


def test_crops_have_the_share_of_the_area_that_was_asked_for():
    y, x = np.mgrid[:64, :64] / 64
    image = np.stack([y, x, np.zeros_like(x)], axis=-1).astype(np.float32)
    rng, areas, corners = np.random.default_rng(0), [], []
    for _ in range(200):
        crop = stability.random_crop(rng, image, (32, 32), (0.25, 0.5))
        assert crop.shape == (32, 32, 3)
        height, width = np.ptp(crop[..., 0]) * 64 + 1, np.ptp(crop[..., 1]) * 64 + 1
        areas.append(height * width / 64**2)
        corners.append(crop[0, 0, :2])
    assert 0.2 < min(areas) < 0.28 and 0.44 < max(areas) < 0.55
    assert np.std(corners, axis=0).min() > 0.05
    whole = stability.random_crop(rng, image, (64, 64), (1.0, 1.0))
    np.testing.assert_array_equal(whole, image)


def test_crops_of_an_image_are_compared_with_those_of_others():
    colours = np.broadcast_to(_RNG.random((6, 1, 1, 3)), (6, 16, 16, 3)).astype(np.float32)

    def colour(images):
        return Parts(images[:, :1, 0] - 0.5, _pool(images))

    how = dict(crops=3, scale=(0.3, 1.0), size=(8, 8), seed=0)
    same, other = stability.cropped(colour, colours, **how)
    assert same == pytest.approx(1, abs=1e-5) and other < 0.9
    assert (same, other) == stability.cropped(colour, colours, **how)


@pytest.mark.parametrize(
    "shape, shifts", [((2, 24, 24, 3), (9,)), ((2, 24, 24, 3), (22,)), ((1, 24, 24, 3), (4,))]
)
def test_what_cannot_be_is_refused(shape, shifts):
    how = dict(crops=2, scale=(0.3, 1.0), window=0 if shifts[0] > 9 else 16, patch=_PATCH, seed=0)
    with pytest.raises(ValueError):
        stability.measured(follows, [np.zeros(shape)], shifts=shifts, **how)
