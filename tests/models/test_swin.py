"""Swin transformers against a loop over windows, in float64; what they refuse, and that devices,
recomputation, loops and bfloat16 change nothing."""

import dataclasses
import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax import trees
from ssl_jax.config import InputError
from ssl_jax.models import flops, vit, zoo
from ssl_jax.runtime import sharding
from tests.models import reference

# Grids of 8, 4 and 2 tokens: windows of 3 are shifted on the first two, and are 2 wide on the last.
CONFIG = vit.ViTConfig(
    **dict(width=16, depth=5, heads=4, patch=8, image_size=16, stages=(2, 2, 1), window=3),
    **dict(cls=False, mask_token=True, norm_eps=1e-5, drop_path=0.3),
)


@functools.cache
def parameters():
    """Of every network here, none as it starts."""
    params = vit.vit(CONFIG).init(jax.random.key(0))
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: x + 0.3 * rng.normal(size=x.shape).astype(np.float32), params)


def pictures(*size, count=2):
    return np.random.default_rng(1).random((count, *size, 3), np.float32)


def linear(x, p):
    return x @ p["kernel"] + p.get("bias", 0.0)


def attention(x, p, heads, window, shift, shift_first):
    """Of one image [h, w, d], window by window."""
    height, width, d = x.shape
    pads = [(0, -side % window) for side in (height, width)]
    inside = np.ones((height, width))
    roll, unroll = (functools.partial(np.roll, shift=(s, s), axis=(0, 1)) for s in (-shift, shift))
    both = np.concatenate([x, inside[..., None]], axis=-1)
    padded = functools.partial(np.pad, pad_width=(*pads, (0, 0)))
    x = padded(roll(both)) if shift_first else roll(padded(both))
    out = np.zeros((*x.shape[:2], d))
    rows, columns = x.shape[:2]

    def region(i, side):
        return (i >= side - window) + (i >= side - shift) if shift else 0

    for top in range(0, rows, window):
        for left in range(0, columns, window):
            cells = [(top + i, left + j) for i in range(window) for j in range(window)]
            tokens = np.array([x[cell][:d] for cell in cells])
            q, k, v = np.split(linear(tokens, p["qkv"]), 3, axis=-1)
            mixed = []
            for h in range(heads):
                part = slice(h * d // heads, (h + 1) * d // heads)
                scores = q[:, part] @ k[:, part].T / math.sqrt(d // heads)
                for a, one in enumerate(cells):
                    for b, other in enumerate(cells):
                        down, right = one[0] - other[0], one[1] - other[1]
                        row = (down + window - 1) * (2 * window - 1) + right + window - 1
                        scores[a, b] += p["relative_bias"][row, h]
                        same = [
                            region(i, n) == region(j, n) for i, j, n in zip(one, other, x.shape)
                        ]
                        scores[a, b] -= 0 if all(same) else 100
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                mixed.append(weights / weights.sum(-1, keepdims=True) @ v[:, part])
            for cell, token in zip(cells, linear(np.concatenate(mixed, -1), p["proj"])):
                out[cell] = token
    return (unroll(out[:height, :width]) if shift_first else unroll(out)[:height, :width])[:, :, :d]


def forward(params, image, config, mask=None):
    """[the tokens [h, w, d] after each block] and the last after its norm, of one image."""
    p = trees.nest(reference.float64(trees.per_block(params)))
    c, count = config, len(config.stages)
    side = c.patch >> (count - 1)
    x = (np.float64(image) - np.array(c.mean)) / np.array(c.std)
    height, width = x.shape[0] // side, x.shape[1] // side
    x = x.reshape(height, side, width, side, 3).swapaxes(1, 2).reshape(height, width, -1)
    norm = functools.partial(reference.norm, eps=c.norm_eps)
    x, seen = norm(linear(x, p["patch"]), p["patch_norm"]), []
    if mask is not None:
        times = c.patch // side
        mask = mask.reshape(height // times, width // times)
        x = np.where(np.kron(mask, np.ones((times, times)))[..., None], p["mask_token"], x)
    for i, depth in enumerate(c.stages):
        after, stage = count - 1 - i, p["stages"][str(i)]
        native = c.image_size // (c.patch >> after)
        window, shift = min(c.window, native), c.window // 2 if native > c.window else 0
        for j in range(depth):
            block = stage["blocks"][str(j)]
            how = (c.heads >> after, window, shift * (j % 2), c.shift_first)
            x = x + attention(norm(x, block["norm1"]), block["attn"], *how)
            x = x + linear(
                reference.gelu(linear(norm(x, block["norm2"]), block["mlp"]["fc1"])),
                block["mlp"]["fc2"],
            )
            seen.append(x)
        if after:
            corners = [x[0::2, 0::2], x[1::2, 0::2], x[0::2, 1::2], x[1::2, 1::2]]
            x = linear(norm(np.concatenate(corners, -1), stage["merge_norm"]), stage["merge"])
    return seen, norm(x, p["norm"])


@pytest.mark.parametrize("shift_first", [False, True])
@pytest.mark.parametrize("size", [(16, 16), (24, 32)])
def test_tokens_are_those_of_a_loop_over_windows(size, shift_first):
    config = dataclasses.replace(CONFIG, shift_first=shift_first)
    images, params = pictures(*size), parameters()
    masks = np.zeros((2, size[0] * size[1] // 64), bool)
    masks[0, 1] = True
    model = vit.vit(config)
    apply = jax.jit(
        lambda p, x, m: model.apply(p, x, masks=m, layers=(-1, 0, 2, 4), attention=True)
    )
    tokens = apply(params, images, masks)
    for i in range(2):
        seen, last = forward(params, images[i], config, masks[i])
        width = config.width
        np.testing.assert_allclose(tokens.patches[i], last.reshape(-1, width), atol=1e-4)
        for j, expected in ((0, seen[0]), (2, seen[2])):
            found = tokens.layers[j].patches[i]
            np.testing.assert_allclose(found, expected.reshape(-1, expected.shape[-1]), atol=1e-4)
        np.testing.assert_array_equal(tokens.layers[4].patches[i], tokens.patches[i])
    grids = [tokens.layers[j].on_grid(size[0] // 8, size[1] // 8).shape[1:3] for j in (-1, 2, 4)]
    assert grids == [(size[0] // side, size[1] // side) for side in (2, 4, 8)]
    assert tokens.cls is None and tokens.queries is None
    weights = tokens.attention
    assert weights.shape == (2, 4, *(masks.shape[1],) * 2)
    assert (weights.sum(-1) <= 1 + 1e-5).all() and (
        size != (16, 16) or (weights.sum(-1) > 0.999).all()
    )


@pytest.mark.slow
def test_nothing_that_saves_memory_or_time_changes_the_gradient():
    images, params = pictures(16, 16, count=8), parameters()
    keys = jax.random.split(jax.random.key(2), 8)

    def gradient(config=CONFIG, mesh=None):
        def loss(params, images, keys):
            model = vit.vit(config)
            return jnp.square(model.apply(params, images, keys=keys).patches).sum()

        function = jax.jit(
            jax.grad(loss) if mesh is None else sharding.on_mesh(jax.grad(loss), mesh)
        )
        inputs = images, keys
        if mesh is not None:
            inputs = jax.device_put(inputs, sharding.batch_sharding(mesh))
        return function(params, *inputs)

    plain = gradient()
    for changes in (dict(remat="block", scan=True), dict(remat="dots")):
        chex.assert_trees_all_close(
            gradient(dataclasses.replace(CONFIG, **changes)), plain, rtol=2e-4, atol=1e-3
        )
    chex.assert_trees_all_close(gradient(mesh=sharding.make_mesh()), plain, rtol=2e-4, atol=1e-3)
    half = gradient(dataclasses.replace(CONFIG, dtype="bfloat16"))
    one, other = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)]) for t in (half, plain))
    assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) > 0.99


def test_flops_are_those_that_are_counted():
    params = jax.eval_shape(vit.vit(CONFIG).init, jax.random.key(0))
    images = jax.ShapeDtypeStruct((1, 24, 32, 3), jnp.float32)
    counted = flops.matmul_flops(vit.vit(CONFIG).apply, params, images)
    assert zoo.forward_flops(CONFIG, 24, 32) == pytest.approx(counted)


def test_no_patch_can_be_dropped():
    keep = np.zeros((2, 1), np.int32)
    with pytest.raises(ValueError, match="keep"):
        vit.vit(CONFIG).apply(parameters(), pictures(16, 16), keep=keep)


def test_swin_t_is_the_published_network():
    section = dict(size="swin_t", patch=0, image_size=224, window=7, cls=False)
    config = zoo.vit_config(section)
    params = jax.eval_shape(vit.vit(config).init, jax.random.key(0))
    assert (
        zoo.count(params) == 27_519_354
    )  # timm's swin_tiny_patch4_window7_224 without a classifier
    assert config.patch == 32 and config.stages == (2, 2, 6, 2)
    widths = [params["stages"][i]["blocks"]["norm1"]["scale"].shape for i in "0123"]
    assert widths == [(2, 96), (2, 192), (6, 384), (2, 768)]


@pytest.mark.parametrize(
    "changes, named",
    [
        (dict(stages=(2, 2)), "depth"),
        (dict(cls=True), "cls"),
        (dict(registers=1), "registers"),
        (dict(layer_scale=0.1), "layer_scale"),
        (dict(patch=2), "patch"),
        (dict(width=18), "width"),
    ],
)
def test_what_windows_cannot_have_is_refused(changes, named):
    with pytest.raises(InputError, match=named):
        dataclasses.replace(CONFIG, **changes)
    with pytest.raises(InputError, match="stages"):
        zoo.vit_config(dict(size="s", patch=16, image_size=224, stages=(2, 2)))
