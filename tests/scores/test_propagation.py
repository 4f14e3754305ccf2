"""Label propagation: against a search through all patches in float64, and on a moving shape."""

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from ssl_jax.scores import propagation
from ssl_jax.scores.propagation import Propagation


def _unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def _naive(target, sources, labels, radius, top, temperature):
    """Each target patch looks at every patch of every source."""
    height, width, _ = target.shape
    result = np.zeros((height, width, labels.shape[-1]))
    for y in range(height):
        for x in range(width):
            found = [
                (float(target[y, x] @ sources[s, b, a]), labels[s, b, a])
                for s, b, a in np.ndindex(len(sources), height, width)
                if abs(b - y) <= radius and abs(a - x) <= radius
            ]
            found.sort(key=lambda pair: -pair[0])
            weights = np.exp(np.array([value for value, _ in found[:top]]) / temperature)
            result[y, x] = weights @ np.array([label for _, label in found[:top]]) / weights.sum()
    return result


# more than one square of patches in one direction, not a multiple of it in either
@pytest.mark.parametrize("radius, top", [(2, 5), (12, 3), (1, 20)])
def test_equals_a_search_through_all_patches(radius, top):
    rng = np.random.default_rng(0)
    target, sources = _unit(rng.normal(size=(6, 11, 4))), _unit(rng.normal(size=(3, 6, 11, 4)))
    labels = rng.dirichlet(np.ones(3), (3, 6, 11))
    expected = _naive(target, sources[:2], labels[:2], radius, top, 0.1)
    arrays = (jnp.asarray(x, jnp.float32) for x in (target, sources, labels))
    how = dict(radius=radius, top=top, temperature=0.1)
    result = propagation.propagate(*arrays, jnp.array([True, True, False]), **how)
    np.testing.assert_allclose(result, expected, atol=2e-5)


def test_equal_patches_and_masks_of_patches():
    """Of equal ones the first source and the upper left count; ignored pixels have no label."""
    same, valid = jnp.ones((2, 3, 3, 1)), jnp.array([True, True])
    labels = jnp.arange(18, dtype=jnp.float32).reshape(2, 3, 3, 1)
    result = propagation.propagate(same[0], same, labels, valid, radius=1, top=1, temperature=0.1)
    np.testing.assert_array_equal(result[..., 0], [[0, 0, 1], [0, 0, 1], [3, 3, 4]])
    mask = np.zeros((8, 8), np.uint8)
    mask[:4, 4:], mask[4:, :4] = 2, 255
    labels = propagation.one_hot(mask, (2, 2))
    np.testing.assert_array_equal(labels, [[[1, 0], [0, 1]], [[0, 0], [1, 0]]])


def test_hardened_stretches_each_channel_and_enlarges_it():
    soft = jnp.array([[[0.9, 0.2, 0.0], [0.7, 0.3, 0.0]]])
    # background .9, .7 becomes 1, 0; the object .2, .3 becomes 0, 1; the third stays 0
    np.testing.assert_array_equal(propagation.hardened(soft, (1, 2)), [[0, 1]])
    # Enlarged bilinearly.
    rng = np.random.default_rng(0)
    soft = rng.random((3, 4, 2)).astype(np.float32)
    large = np.stack(
        [np.asarray(Image.fromarray(soft[..., c]).resize((16, 12), 2)) for c in range(2)], -1
    )
    large = (large - large.min((0, 1))) / (large.max((0, 1)) - large.min((0, 1)))
    clear = np.abs(large[..., 0] - large[..., 1]) > 1e-4
    result = np.asarray(propagation.hardened(jnp.asarray(soft), (12, 16)))
    np.testing.assert_array_equal(result[clear], large.argmax(-1)[clear])


def _video(frames=12, size=64, patch=4):
    """A textured square that moves by one patch per frame over another texture: patches of raw
    pixels, and true masks."""
    rng = np.random.default_rng(0)
    ground, square = rng.random((size, size, 3)), rng.random((16, 16, 3))
    features, masks = [], []
    for t in range(frames):
        image, mask = ground.copy(), np.zeros((size, size), np.uint8)
        y, x = 8 + patch * (t // 2), 4 + patch * t
        image[y : y + 16, x : x + 16], mask[y : y + 16, x : x + 16] = square, 1
        grid = image.reshape(size // patch, patch, size // patch, patch, 3).swapaxes(1, 2)
        features.append(grid.reshape(size // patch, size // patch, -1) - 0.5)
        masks.append(mask)
    return features, np.stack(masks)


def test_follows_a_moving_shape():
    features, masks = _video()
    followed = np.stack(list(propagation.track(features, masks[0], frame=(64, 64))))
    assert followed.shape == masks.shape and followed.dtype == np.uint8
    for truth, predicted in zip(masks, followed):
        union = ((truth == 1) | (predicted == 1)).sum()
        assert ((truth == 1) & (predicted == 1)).sum() / union > 0.7
    # any number of the object
    other = propagation.track(features[:3], 200 * masks[0], frame=(64, 64))
    np.testing.assert_array_equal(list(other), 200 * followed[:3])
    # frames further away than the sources reach: the shape is lost
    near = Propagation(previous=1, radius=1, top=5, temperature=0.1)
    jumps = [*propagation.track(features[::4], masks[0], frame=(64, 64), settings=near)]
    assert ((masks[8] == 1) & (jumps[2] == 1)).sum() < 0.3 * (masks[8] == 1).sum()


def test_the_last_frames_and_the_first_are_the_sources(monkeypatch):
    seen = []

    def propagate(target, sources, labels, valid, **others):
        seen.append([round(float(s[0, 0, 0] / s[0, 0, 1])) for s in np.asarray(sources)[valid]])
        return labels[0]

    monkeypatch.setattr(propagation, "propagate", propagate)
    features = [np.array([[[t, 1.0]]]) for t in range(6)]
    mask = np.zeros((4, 4), np.uint8)
    settings = Propagation(previous=2)
    assert len(list(propagation.track(features, mask, frame=(4, 4), settings=settings))) == 6
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 2, 3], [0, 3, 4]]
