"""YOLOS: what it returns, what it takes over from an encoder, and where its codes are added."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.models import detection, position, stack, vit
from tests.models import reference

SHAPE = vit.ViTConfig(width=8, depth=3, heads=2, patch=4, image_size=16, queries=5)


@pytest.fixture(scope="module")
def images():
    return jnp.asarray(np.random.default_rng(0).random((2, 12, 20, 3)), jnp.float32)


def head(params, x):
    """Three linear layers in float64."""
    for i in range(3):
        x = reference.linear(np.maximum(x, 0) if i else x, reference.float64(params[str(i)]))
    return x


def test_heads_read_the_query_tokens_of_the_encoder(images):
    model = detection.yolos(SHAPE, 3)
    params = model.init(jax.random.key(0))
    logits, boxes = model.apply(params, images)
    assert logits.shape == (2, 5, 4) and boxes.shape == (2, 5, 4)
    tokens = np.asarray(vit.vit(SHAPE).apply(params["encoder"], images).queries, np.float64)
    np.testing.assert_allclose(logits, head(params["classes"], tokens), atol=1e-4)
    wanted = 1 / (1 + np.exp(-head(params["boxes"], tokens)))
    np.testing.assert_allclose(boxes, wanted, atol=1e-4)
    assert 0.01 < float(jnp.std(params["encoder"]["queries"])) < 0.03
    assert "middle" not in params and "mask_token" not in params["encoder"]


@pytest.mark.parametrize("changes", [{}, dict(cls=False), dict(registers=2)])
def test_middle_codes_come_after_every_block_but_the_last(images, changes):
    shape = dataclasses.replace(SHAPE, **changes)
    model = detection.yolos(shape, 3, middle=(8, 12))
    params = model.init(jax.random.key(0))
    cls = int(shape.cls)
    assert params["middle"].shape == (2, cls + 6 + 5, 8)
    module = vit.vit(shape).module(params["encoder"])
    x = module._embed(images, None, None)
    for i in range(3):
        x, _ = stack.block_of(module.blocks, i)(x)
        if i < 2:
            codes = params["middle"][i]
            patches = position.resize_codes(
                codes[cls : cls + 6], (2, 3), (3, 5), rule="exact", kernel="keys-0.75"
            )
            between = jnp.zeros((shape.registers, 8))
            x = x + jnp.concatenate([codes[:cls], between, patches, codes[cls + 6 :]])
    tokens = np.asarray(module.norm(x)[:, -5:], np.float64)
    logits, _ = model.apply(params, images)
    np.testing.assert_allclose(logits, head(params["classes"], tokens), atol=1e-4)


def test_an_encoder_is_taken_over_and_its_codes_are_resized(images):
    before = dataclasses.replace(SHAPE, image_size=8, queries=2, mask_token=True)
    encoder = vit.vit(before).init(jax.random.key(1))
    shape, size = dataclasses.replace(SHAPE, image_size=8), (12, 20)  # that of the images
    model = detection.yolos(shape, 3, size)
    params = model.init(jax.random.key(0))
    result = detection.pretrained(params, shape, encoder, size)
    own = result["encoder"]
    assert own["queries"] is params["encoder"]["queries"] and "mask_token" not in own
    for name in ("patch", "cls", "blocks", "norm"):
        assert own[name] is encoder[name]
    wanted = position.resize_codes(
        encoder["position"][1:], 2, (3, 5), rule="exact", kernel="keys-0.75"
    )
    assert own["position"].shape == (1 + 15, 8)
    np.testing.assert_array_equal(own["position"][0], encoder["position"][0])
    np.testing.assert_array_equal(own["position"][1:], wanted)
    assert result["classes"] is params["classes"]
    # On images of that size, the codes are added as they are: the same as a resize to it.
    whole = detection.yolos(shape, 3)
    same = {**result, "encoder": {**own, "position": encoder["position"]}}
    for one, other in zip(model.apply(result, images), whole.apply(same, images), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("change", [dict(depth=2), dict(width=16)])
def test_an_encoder_of_another_shape_is_refused(change):
    params, other = (
        jax.eval_shape(model.init, jax.random.key(0))
        for model in (detection.yolos(SHAPE, 3), vit.vit(dataclasses.replace(SHAPE, **change)))
    )
    with pytest.raises(ValueError, match="shape"):
        detection.pretrained(params, SHAPE, other)


def test_a_detector_needs_queries_and_classes():
    for shape, classes in ((dataclasses.replace(SHAPE, queries=0), 3), (SHAPE, 0)):
        with pytest.raises(ValueError, match="queries and classes"):
            detection.yolos(shape, classes)
