"""The vision transformer against an independent NumPy float64 forward pass, and what every option
promises.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.models import attention as attention_lib
from ssl_jax.models import position, stack, vit
from tests.models import reference
from tests.models.reference import randomised

TINY = vit.ViTConfig(width=16, depth=3, heads=2, patch=4, image_size=16)
N = 16  # patches at the native size


def config(**changes):
    return dataclasses.replace(TINY, **changes)


def pictures(batch=2, height=16, width=16, seed=0):
    return np.random.default_rng(seed).uniform(size=(batch, height, width, 3)).astype(np.float32)


def forward(params, images, c, *, masks=None, keep=None, keys=None):
    """Normed tokens [B, N, d] and last attention [B, h, N, N] in float64."""
    p = reference.float64(params)
    rows, columns = images.shape[1] // c.patch, images.shape[2] // c.patch
    if c.position == "rope":
        codes = 0.0
    elif c.position == "sincos":
        codes = position.sincos_2d(c.grid, c.width)
    else:
        codes = p["position"][int(c.cls) :]
    if (rows, columns) != (c.grid, c.grid) and c.position != "rope":
        weights = [
            position.resize_matrix(c.grid, t, rule=c.position_resize, kernel=c.resize_kernel)
            for t in (rows, columns)
        ]
        codes = np.einsum("ar,bc,rcd->abd", *weights, codes.reshape(c.grid, c.grid, -1))
        codes = codes.reshape(rows * columns, -1)

    scales = np.ones((c.depth, 2, len(images)))
    if keys is not None:
        scales = np.asarray(stack.drop_path_scales(keys, c.drop_path, c.depth), np.float64)
    outputs, attention = [], []
    for b, image in enumerate(np.asarray(images, np.float64)):
        image = (image - np.array(c.mean)) / np.array(c.std)
        x = embedded(image, p["patch"], c)
        if masks is not None:
            x[np.asarray(masks[b])] = p["mask_token"][0]
        x = x + codes
        if keep is not None:
            x = x[np.asarray(keep[b])]
        if c.registers:
            x = np.concatenate([p["registers"], x])
        if c.cls:
            code = p["position"][:1] if c.position == "learned" else 0.0
            x = np.concatenate([p["cls"] + code, x])
        if c.queries:
            x = np.concatenate([x, p["queries"]])
        angles = None
        if c.position == "rope":
            kept = None if keep is None else np.asarray(keep[b])
            angles = turns(rows, columns, c.width // c.heads, c.rope_base, kept)
            angles = np.pad(angles, ((c.cls + c.registers, c.queries), (0, 0)))
        x, maps = reference.blocks(
            p["blocks"], x, c.heads, c.activation, c.norm_eps, scales[:, :, b], angles
        )
        outputs.append(reference.norm(x, p["norm"], c.norm_eps))
        attention.append(maps)
    shown = [i for i in range(len(x)) if not c.cls <= i < c.cls + c.registers]
    attention = np.array(attention)[:, :, shown][..., shown]
    return np.array(outputs)[:, shown], attention


def turns(rows, columns, width, base, keep):
    """Angles [n, width / 2] of the patches that are kept, in radians."""
    out, quarter = [], width // 4
    for i in range(rows):
        for j in range(columns):
            row, column = (2 * i + 1) / rows - 1, (2 * j + 1) / columns - 1
            inverse = [2 * np.pi / base ** (k / quarter) for k in range(quarter)]
            out.append([row * x for x in inverse] + [column * x for x in inverse])
    return np.array(out if keep is None else [out[i] for i in keep])


def embedded(image, p, c):
    """Patch tokens [n, d] before position embeddings."""
    if c.stem == "linear":
        return np.stack([reference.linear(x.ravel(), p) for x in windows(image, c.patch, c.patch)])
    for i in range(len(p["convs"])):
        columns, seen = image.shape[1] // 2, windows(np.pad(image, PAD), 3, 2)
        image = np.stack([reference.linear(x.ravel(), p["convs"][str(i)]) for x in seen])
        image = np.maximum(reference.norm(image, p["norms"][str(i)], c.norm_eps), 0)
        image = image.reshape(-1, columns, image.shape[-1])
    return reference.linear(image.reshape(-1, c.width), p["out"])


def windows(image, side, stride):
    """Squares of an image, row by row."""
    starts = [range(0, length - side + 1, stride) for length in image.shape[:2]]
    return [image[i : i + side, j : j + side] for i in starts[0] for j in starts[1]]


def run(model, params, images, **options):
    """model.apply, compiled once per call: far fewer small compilations than operation by
    operation.
    """
    static = {k: options.pop(k) for k in ("layers", "attention") if k in options}
    return jax.jit(lambda p, x, o: model.apply(p, x, **o, **static))(params, images, options)


def all_tokens(tokens, np=np):
    parts = [None if tokens.cls is None else tokens.cls[:, None], tokens.patches, tokens.queries]
    return np.concatenate([p for p in parts if p is not None], axis=1)


MASKED = {"masks": np.random.default_rng(5).uniform(size=(2, N)) < 0.4}
KEPT = {"keep": np.array([[3, 0, 7], [15, 2, 9]], np.int32)}
KEYS = jax.random.split(jax.random.key(7), 2)
PAD = ((1, 1), (1, 1), (0, 0))


@pytest.mark.parametrize(
    "changes, size, inputs",
    [
        ({}, (16, 16), {}),
        (dict(gelu="tanh", position_resize="dino_offset"), (24, 8), {}),
        (dict(drop_path=0.8), (16, 16), {"keys": KEYS}),
        (dict(resize_kernel="antialias-0.5", queries=2, mask_token=True), (16, 16), MASKED),
        (dict(position="sincos", cls=False, mlp_ratio=2.0), (20, 16), {}),
        (dict(position="sincos", mask_token=True, norm_eps=1e-3), (16, 16), MASKED | KEPT),
        (dict(layer_scale=0.5, registers=3, drop_path=0.8), (20, 16), {"keys": KEYS}),
        (dict(registers=2, queries=2, cls=False, scan=True), (16, 16), KEPT),
        (dict(stem="conv", width=6, mask_token=True), (8, 24), {}),
        (dict(position="rope", mlp="swiglu", qkv_bias="qv", registers=1, queries=1), (8, 20), {}),
        (
            dict(position="rope", qkv_bias="none", scan=True, mask_token=True),
            (16, 16),
            MASKED | KEPT,
        ),
    ],
)
def test_matches_numpy(changes, size, inputs):
    c = config(**changes)
    model = vit.vit(c)
    params, images = randomised(model), pictures(2, *size)
    tokens = run(model, params, images, attention=True, **inputs)
    want, weights = forward(params, images, c, **inputs)
    np.testing.assert_allclose(all_tokens(tokens), want, atol=2e-5)
    np.testing.assert_allclose(tokens.attention, weights, atol=2e-6)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(tokens))


def test_parameter_names_shapes_and_initial_values():
    wide = dict(width=64, heads=4, queries=3, mask_token=True)
    params = vit.vit(config(**wide)).init(jax.random.key(0))
    shapes = jax.tree.map(jnp.shape, params)
    assert sorted(params) == ["blocks", "cls", "mask_token", "norm", "patch", "position", "queries"]
    assert shapes["patch"] == {"kernel": (48, 64), "bias": (64,)}
    assert shapes["position"] == (1 + N, 64) and shapes["queries"] == (3, 64)
    # Two-dimensional: decayed, as in the published code.
    assert shapes["cls"] == shapes["mask_token"] == (1, 64)
    assert shapes["blocks"]["attn"]["qkv"] == {"kernel": (3, 64, 192), "bias": (3, 192)}
    assert shapes["blocks"]["mlp"] == {
        "fc1": {"kernel": (3, 64, 256), "bias": (3, 256)},
        "fc2": {"kernel": (3, 256, 64), "bias": (3, 64)},
    }
    assert not np.any(params["mask_token"]) and not np.any(params["patch"]["bias"])
    np.testing.assert_allclose(
        np.std(params["blocks"]["mlp"]["fc1"]["kernel"], axis=(1, 2)), 0.02, rtol=0.05
    )
    np.testing.assert_allclose(np.std(params["position"]), 0.02, rtol=0.1)
    np.testing.assert_allclose(np.std(params["patch"]["kernel"]), 1 / np.sqrt(3 * 48), rtol=0.05)
    assert not np.array_equal(*params["blocks"]["attn"]["proj"]["kernel"][:2])
    # A block's draw does not depend on the depth.
    shallow = vit.vit(config(depth=1, **wide)).init(jax.random.key(0))
    first = jax.tree.map(lambda x: x[:1], params["blocks"])
    chex.assert_trees_all_equal(shallow["blocks"], first)


def test_options_add_parameters_and_change_no_draw():
    plain = vit.vit(config(queries=2)).init(jax.random.key(0))
    rich = vit.vit(config(queries=2, registers=3, layer_scale=1e-5)).init(jax.random.key(0))
    faint = vit.vit(config(queries=2, cls_std=1e-6)).init(jax.random.key(0))
    np.testing.assert_allclose(faint.pop("cls"), plain["cls"] * (1e-6 / 0.02), rtol=1e-5)
    chex.assert_trees_all_equal(faint, {name: x for name, x in plain.items() if name != "cls"})
    registers = rich.pop("registers")
    assert registers.shape == (3, 16) and 0 < np.abs(registers).max() < 1e-5
    for name in ("ls1", "ls2"):
        gamma = rich["blocks"].pop(name)["gamma"]
        np.testing.assert_array_equal(gamma, np.full((3, 16), 1e-5, np.float32))
    chex.assert_trees_all_equal(rich, plain)


def test_position_std_scales_the_position_codes_alone():
    before, after = (vit.vit(config(position_std=x)).init(jax.random.key(0)) for x in (0.0, 1.0))
    np.testing.assert_allclose(after["position"], before["position"] * 50, rtol=1e-6)
    del before["position"], after["position"]
    chex.assert_trees_all_equal(before, after)


def test_scan_and_remat_change_no_gradient():
    shape = dict(depth=2, position="rope", mlp="swiglu", qkv_bias="qv")
    images, params = pictures(3), randomised(vit.vit(config(**shape)))

    def outcome(**changes):
        model = vit.vit(config(**shape, **changes))

        def loss(p):
            tokens = all_tokens(model.apply(p, images), jnp)
            return jnp.sin(tokens).sum(), tokens

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)

    want = outcome()
    for changes in (dict(remat="block"), dict(remat="dots"), dict(scan=True, remat="dots")):
        for a, b in zip(jax.tree.leaves(outcome(**changes)), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(
                a, b, atol=2e-6 * max(1, np.abs(b).max()), err_msg=str(changes)
            )


@pytest.mark.parametrize("scan", [False, True])
def test_tokens_added_for_a_kernel_change_nothing(scan, monkeypatch):
    """cuDNN's needs an even number: it stands once around all blocks."""
    images, c = pictures(3), config(drop_path=0.5, scan=scan, position="rope", rope_rescale=2.0)
    model = vit.vit(c)
    params = randomised(model)
    keys = jax.random.split(jax.random.key(3), 3)
    want = all_tokens(run(model, params, images, keys=keys))
    monkeypatch.setattr(attention_lib, "padding", lambda *_: 3)
    np.testing.assert_allclose(all_tokens(run(model, params, images, keys=keys)), want, atol=2e-6)


def test_scan_covers_all_blocks_and_every_cut():
    """Intermediate layers, attention and drop-path, wherever the stack is cut."""
    images, params = pictures(3), randomised(vit.vit(TINY))
    keys = jax.random.split(jax.random.key(3), 3)
    every = dict(keys=keys, layers=(0, 1, 2), attention=True)
    plain = run(vit.vit(config(drop_path=0.5)), params, images, **every)
    scanned = vit.vit(config(drop_path=0.5, scan=True))
    for layers, attention in (((), False), ((1,), True), ((0, 2), False)):
        got = run(scanned, params, images, keys=keys, layers=layers, attention=attention)
        np.testing.assert_allclose(all_tokens(got), all_tokens(plain), atol=2e-6)
        for i in layers:
            np.testing.assert_allclose(
                all_tokens(got.layers[i]), all_tokens(plain.layers[i]), atol=2e-6
            )
        if attention:
            np.testing.assert_allclose(got.attention, plain.attention, atol=1e-6)


def test_layers_and_attention_are_extras_that_change_nothing():
    model, images = vit.vit(TINY), pictures()
    params = randomised(model)
    plain = run(model, params, images)
    rich = run(model, params, images, layers=(2, 0, -1), attention=True)
    np.testing.assert_allclose(all_tokens(plain), all_tokens(rich), atol=1e-6)
    assert plain.layers == {} and plain.attention is None
    assert sorted(rich.layers) == [-1, 0, 2]
    network = model.module(params)
    before = network.norm(network._embed(images, None, None))
    np.testing.assert_allclose(all_tokens(rich.layers[-1]), before, atol=1e-5)
    np.testing.assert_array_equal(rich.layers[2].patches, rich.patches)
    assert np.abs(rich.layers[0].cls - rich.cls).max() > 1e-2
    np.testing.assert_allclose(rich.attention.sum(-1), 1, atol=1e-6)
    short = vit.vit(config(depth=1))
    only = jax.tree.map(lambda leaf: leaf[:1], params["blocks"])
    first = run(short, {**params, "blocks": only}, images)
    np.testing.assert_allclose(all_tokens(rich.layers[0]), all_tokens(first), atol=1e-6)


def test_drop_path_is_per_example_and_off_without_keys():
    model, params = vit.vit(config(drop_path=0.9)), randomised(vit.vit(TINY))
    images, keys = pictures(4), jax.random.split(jax.random.key(0), 4)
    encode = jax.jit(lambda x, k: model.apply(params, x, keys=k).cls)
    whole = encode(images, keys)
    for chunk in (slice(0, 2), slice(2, 4)):
        np.testing.assert_allclose(encode(images[chunk], keys[chunk]), whole[chunk], atol=1e-6)
    order = jnp.array([2, 0, 3, 1])
    np.testing.assert_allclose(encode(images[order], keys[order]), whole[order], atol=1e-6)
    clean = run(vit.vit(TINY), params, images).cls
    np.testing.assert_array_equal(run(model, params, images).cls, clean)
    assert np.abs(whole - clean).max() > 1e-2


def test_bfloat16_rounds_products_only():
    images, params = pictures(), jax.tree.map(lambda p: p / 3, randomised(vit.vit(TINY)))
    tokens = run(vit.vit(config(dtype="bfloat16")), params, images, layers=(1,), attention=True)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(tokens))
    error = np.abs(all_tokens(tokens) - all_tokens(run(vit.vit(TINY), params, images))).max()
    assert 1e-5 < error < 0.05
    # The softmax was not rounded.
    np.testing.assert_allclose(tokens.attention.sum(-1), 1, atol=1e-6)


REFUSED = [
    dict(width=15), dict(image_size=18), dict(depth=0), dict(drop_path=1.0),
    dict(position_std=-1.0), dict(position="alibi"), dict(position="rope", width=12),
    dict(mlp="relu"), dict(qkv_bias="k"), dict(rope_jitter=0.5), dict(rope_base=1.0),
    dict(width=18, position="sincos"),
    dict(dtype="float16"), dict(mean=(0.5,)), dict(std=(0.2, 0.0, 0.2)), dict(queries=-1),
    dict(registers=-1), dict(layer_scale=-1.0), dict(norm_eps=0.0), dict(mlp_ratio=0.0),
    dict(mlp_ratio=0.01),  # no hidden unit
    dict(patch=1, stem="conv"), dict(patch=6, image_size=12, stem="conv"), dict(stem="pool"),
]  # fmt: skip


@pytest.mark.parametrize("changes", REFUSED, ids=str)
def test_configs_that_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        config(**changes)


@pytest.mark.parametrize(
    "options, name",
    [
        (dict(images=jnp.zeros((1, 16, 18, 3))), "patch"),
        (dict(images=jnp.zeros((1, 16, 16, 1))), "images"),
        (dict(images=jnp.zeros((1, 16, 16, 3), jnp.uint8)), "images"),
        (dict(masks=jnp.zeros((1, 9), bool)), "masks"),
        (dict(keep=jnp.zeros((2, 9), jnp.int32)), "keep"),
        (dict(keep=jnp.zeros((1, 17), jnp.int32)), "keep"),
        (dict(keys=jnp.zeros((1,), jnp.uint32)), "keys"),
        (dict(layers=(3,)), "layers"),
    ],
)
def test_inputs_that_are_refused(options, name):
    with pytest.raises(ValueError, match=name):
        vit.vit(config(mask_token=True)).apply({}, **{"images": pictures(1)} | options)


def test_masks_need_a_mask_token():
    with pytest.raises(ValueError, match="mask_token"):
        vit.vit(TINY).apply({}, pictures(1), masks=jnp.zeros((1, N), bool))
