"""What gives features is adopted, and gives the vectors that an evaluation looks at."""

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


def _read(network, kind, layers=1):
    return adopt(network).read(_IMAGES, {"vectors": kind}, layers)["vectors"]


def test_another_image_vector_is_another_digest():
    shape = vit.ViTConfig(**_SHAPE)
    params = vit.vit(shape).init(jax.random.key(0))
    one, same, other = (encoder.published(shape, params, "x", x) for x in ("", "cls", "mean"))
    assert one.digest == same.digest != other.digest
    assert other.across(jax.devices()[:1]).with_params(params).digest == other.digest


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
        np.testing.assert_allclose(_read(network, kind), value, atol=1e-6)
    raw = pixels.raw_pixels(4)  # these have one vector, and patches
    for kind in tokens.KINDS:
        np.testing.assert_array_equal(_read(raw, kind, 4), raw(_IMAGES).image)
    dense = _read(raw, tokens.DENSE, 4)
    np.testing.assert_array_equal(dense, raw(_IMAGES).patches)


def test_the_last_blocks_side_by_side(network):
    layers = network(_IMAGES, layers=(0, 1, 2)).layers
    one, two, three = (layers[i] for i in range(3))
    cls = _read(network, "cls", 2)
    np.testing.assert_allclose(cls, np.concatenate([two.cls, three.cls], axis=1), atol=1e-6)
    dense = np.asarray(_read(network, "patches", 3))
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
        _read(other, kind, layers)


def test_whatever_gives_features_is_adopted_once(network):
    raw = pixels.raw_pixels(4)
    adopted, plain = adopt(network), adopt(lambda images: raw(images))
    assert adopt(raw) is raw and adopt(plain) is plain
    assert adopted.encoder is network and plain.encoder is raw.encoder is None
    assert [adopted.digest, plain.digest] == [network.digest, ""] and "patch 4" in raw.digest
    assert adopted.config is network.config and plain.config is None
    assert plain.with_extras(_IMAGES)[1] == {} == adopted.with_extras(_IMAGES)[1]

    def shown(images, extras=False):
        return network(images)._replace(extras={"maps": images} if extras else None)

    assert (
        set(adopt(shown).with_extras(_IMAGES)[1]) == adopt(shown).extras(_IMAGES.shape) == {"maps"}
    )
    for dtype in (np.float16, "bfloat16", np.float64):
        other = adopt(lambda images, dtype=dtype: pixels.Pixels(*jax.tree.map(
            lambda x: np.asarray(x, dtype), tuple(raw(images))
        )))  # fmt: skip
        for kind in ("image", tokens.DENSE):
            assert _read(other, kind).dtype == np.float32
    devices = jax.devices()[:2]
    assert plain.across(devices) is plain
    spread = adopted.across(devices)
    assert spread.encoder.mesh.size == 2 and spread.digest == network.digest
    np.testing.assert_allclose(spread(_IMAGES).image, network(_IMAGES).image, atol=1e-6)
