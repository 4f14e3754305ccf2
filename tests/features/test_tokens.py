"""Which vectors an evaluation looks at."""

import jax
import numpy as np
import pytest

from ssl_jax.config import InputError
from ssl_jax.features import pixels, tokens
from ssl_jax.features.network import adopt
from ssl_jax.methods import encoder
from ssl_jax.models import vit

_SHAPE = dict(width=16, depth=3, heads=2, patch=4, image_size=8)
_IMAGES = np.random.default_rng(0).random((2, 8, 8, 3)).astype(np.float32)


def _network(**changes):
    shape = vit.ViTConfig(**_SHAPE, **changes)
    return encoder.published(shape, jax.jit(vit.vit(shape).init)(jax.random.key(0)), "a ViT")


@pytest.fixture(scope="module")
def network():
    return _network()


def test_the_last_block(network):
    found = network(_IMAGES)
    mean = np.asarray(found.patches).mean(axis=(1, 2))
    wanted = {
        "image": found.image,
        "cls": found.cls,
        "mean": mean,
        "cls_mean": np.concatenate([found.cls, mean], axis=1),
        "patches": found.patches,
    }
    for kind, value in wanted.items():
        np.testing.assert_allclose(tokens.reader(adopt(network), kind)(_IMAGES), value, atol=1e-6)
    raw = pixels.raw_pixels(4)  # these have one vector, and patches
    for kind in tokens.KINDS:
        np.testing.assert_array_equal(tokens.reader(raw, kind, 4)(_IMAGES), raw(_IMAGES).image)
    dense = tokens.reader(raw, tokens.DENSE, 4)(_IMAGES)
    np.testing.assert_array_equal(dense, raw(_IMAGES).patches)


def test_the_last_blocks_side_by_side(network):
    layers = network(_IMAGES, layers=(0, 1, 2)).layers
    one, two, three = (layers[i] for i in range(3))
    cls = tokens.reader(adopt(network), "cls", 2)(_IMAGES)
    np.testing.assert_allclose(cls, np.concatenate([two.cls, three.cls], axis=1), atol=1e-6)
    dense = np.asarray(tokens.reader(adopt(network), "patches", 3)(_IMAGES))
    assert dense.shape == (2, 2, 2, 48)
    wanted = np.concatenate([t.patches for t in (one, two, three)], axis=-1)
    np.testing.assert_allclose(dense.reshape(2, 4, 48), wanted, atol=1e-6)
    # The last of them is what the network gives out.
    np.testing.assert_allclose(dense[..., 32:], network(_IMAGES).patches, atol=1e-6)


@pytest.mark.parametrize(
    "kind, layers, named",
    [
        ("cls", 4, "layers"),
        ("image", 2, "image"),
        ("sparse", 1, "sparse"),
        ("cls_mean", 1, "cls_m"),
    ],
)
def test_tokens_that_do_not_exist_are_named(network, kind, layers, named):
    other = network if kind != "cls_mean" else _network(cls=False)
    with pytest.raises(InputError, match=named):
        tokens.reader(adopt(other), kind, layers)(_IMAGES)
