"""Segmentation heads: shapes, layers against references, and that each can learn."""

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ssl_jax import losses
from ssl_jax.models import segmentation
from ssl_jax.models.segmentation import parts
from ssl_jax.models.segmentation.pyramid import Pyramid

_RNG = np.random.default_rng(0)
_WIDTH, _GRID = 8, 4


def _tokens(*shape):
    return jnp.asarray(_RNG.normal(size=shape), jnp.float32)


# head, number of maps, side of its logits for a grid of 4
HEADS = {
    "linear": (segmentation.linear(_WIDTH, 2, levels=2, batch_norm=True), 2, 4),
    "mask_transformer": (segmentation.mask_transformer(_WIDTH, 2, levels=1), 1, 4),
    "fpn": (segmentation.fpn(_WIDTH, 2, channels=8, hidden=4), 4, 16),
    "fpn_raw": (segmentation.fpn(_WIDTH, 2, channels=8, hidden=4, resample=False), 4, 4),
    "upernet": (segmentation.upernet(_WIDTH, 2, channels=4), 4, 16),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * name.startswith(("fpn", "upernet")))
        for name in HEADS
    ],
)
def test_each_head_learns_two_textures(name):
    """Two kinds of tokens in halves of an image, told apart within a few dozen steps."""
    head, levels, side = HEADS[name]
    kinds = _RNG.normal(size=(2, _WIDTH))
    truth = np.zeros((2, _GRID, _GRID), int)
    truth[0, :, :2] = truth[1, 2:] = 1
    tokens = jnp.float32(kinds[truth] + 0.1 * _RNG.normal(size=(2, _GRID, _GRID, _WIDTH)))
    masks = jnp.asarray(truth.repeat(4, 1).repeat(4, 2))
    params, stats = head.init(jax.random.key(0))
    optimizer = optax.adam(0.02)

    def loss(params, stats):
        out, stats = head.apply(params, stats, [tokens] * levels, train=True)
        value = losses.pixel_cross_entropy(segmentation.upsample(out.logits, (16, 16)), masks)
        if out.auxiliary is not None:
            logits = segmentation.upsample(out.auxiliary, (16, 16))
            value += 0.4 * losses.pixel_cross_entropy(logits, masks)
        return value, (stats, out)

    @jax.jit
    def step(params, stats, state):
        (_, (stats, out)), grads = jax.value_and_grad(loss, has_aux=True)(params, stats)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), stats, state, out

    state, before = optimizer.init(params), stats
    for _ in range(40):
        params, stats, state, out = step(params, stats, state)
    assert out.logits.shape == (2, side, side, 2) and out.logits.dtype == jnp.float32
    assert (out.auxiliary is not None) == (name == "upernet")
    moved = jax.tree.map(lambda old, new: not np.array_equal(old, new), before, stats)
    assert all(jax.tree.leaves(moved)) and bool(before) == (name != "mask_transformer")
    tested = jax.jit(lambda p, s: head.apply(p, s, [tokens] * levels))(params, stats)
    assert tested[0].auxiliary is None
    large = segmentation.upsample(tested[0].logits, (16, 16))
    assert (np.argmax(large, axis=-1) == masks).mean() > 0.8
    # Tests neither see the batch nor change the statistics.
    assert jax.tree.all(jax.tree.map(np.array_equal, tested[1], stats))


def test_linear_head_is_batch_norm_and_a_matrix():
    head = segmentation.linear(3, 2, levels=2, batch_norm=True)
    params, stats = head.init(jax.random.key(0))
    assert params["classify"]["kernel"].shape == (6, 2)
    maps = [_RNG.normal(size=(2, 2, 3, 3)) + i for i in range(2)]
    out, new = head.apply(params, stats, [jnp.float32(x) for x in maps], train=True)
    x = np.concatenate(maps, axis=-1)
    mean, var = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
    expected = (x - mean) / np.sqrt(var + 1e-5) @ np.asarray(params["classify"]["kernel"])
    np.testing.assert_allclose(out.logits, expected, atol=1e-5)
    np.testing.assert_allclose(new["norm"]["mean"], 0.1 * mean, rtol=1e-5)
    np.testing.assert_allclose(new["norm"]["var"], 0.9 + 0.1 * var, rtol=1e-5)


def test_mask_transformer_scores_are_normalised_over_classes():
    head = segmentation.mask_transformer(6, 5)
    params, stats = head.init(jax.random.key(0))
    assert params["classes"].shape == (5, 6) and stats == {}
    assert {leaf.shape[0] for leaf in jax.tree.leaves(params["blocks"])} == {2}
    apply = jax.jit(lambda *trees: head.apply(*trees, [_tokens(1, 2, 3, 6)])[0])
    out = apply(params, stats)
    np.testing.assert_allclose(out.logits.mean(axis=-1), 0, atol=1e-5)
    np.testing.assert_allclose(out.logits.var(axis=-1), 1, atol=0.05)


def test_pyramid_has_strides_4_to_32_of_patches_of_16():
    from flax import nnx

    maps = [jnp.ones((1, 3, 4, 2))] * 4
    levels = nnx.eval_shape(lambda: Pyramid(jax.random.key(0), 2)(maps, True))
    assert [x.shape[1:3] for x in levels] == [(12, 16), (6, 8), (3, 4), (2, 2)]


@pytest.mark.parametrize("size", [(9, 14), (3, 5), (4, 7)])
def test_upsample_is_opencv_and_torch_bilinear(size):
    x = _RNG.normal(size=(4, 7, 2)).astype(np.float32)
    expected = cv2.resize(x, size[::-1], interpolation=cv2.INTER_LINEAR)
    np.testing.assert_allclose(parts.upsample(x[None], size)[0], expected, atol=1e-5)


def test_average_pools_overlapping_cells():
    x = np.arange(7.0, dtype=np.float32).reshape(1, 7, 1, 1)
    # torch.nn.AdaptiveAvgPool2d: cells 0-2, 2-4, 4-6 of seven
    np.testing.assert_allclose(parts.average(x, 3)[0, :, 0, 0], [1, 3, 5], atol=1e-6)
    assert parts.average(x, 6).shape == (1, 6, 6, 1)


def test_dropped_channels_depend_on_the_image_alone():
    x, keys = jnp.ones((3, 2, 2, 400)), jax.random.split(jax.random.key(0), 3)
    out = np.asarray(parts.drop_channels(x, 0.25, keys))
    assert set(np.unique(out.round(4))) == {0.0, np.float32(1.3333)}
    assert (out == out[:, :1, :1]).all() and 0.2 < (out == 0).mean() < 0.3
    np.testing.assert_array_equal(out[1:2], parts.drop_channels(x[1:2], 0.25, keys[1:2]))
    assert parts.drop_channels(x, 0.25, None) is x
