"""The vision transformer against an independent NumPy float64 forward pass, and what every option
promises.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from ssl_jax.models import layers as layers_lib
from ssl_jax.models import position, vit

TINY = vit.ViTConfig(width=16, depth=3, heads=2, patch=4, image_size=16)
N = 16  # patches at the native size


def config(**changes):
    return dataclasses.replace(TINY, **changes)


def randomised(model, seed=0):
    """Parameters large enough that every bias, scale and code matters."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape) * 0.3, jnp.float32), shapes)


def pictures(batch=2, height=16, width=16, seed=0):
    return jnp.asarray(
        np.random.default_rng(seed).uniform(size=(batch, height, width, 3)), jnp.float32
    )


def reference(params, images, c, *, masks=None, keep=None, keys=None):
    """Float64 forward pass, one image and one head at a time. Returns normed tokens [B, N, d] and
    last attention [B, h, N, N].
    """
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    d = c.width // c.heads

    def linear(x, w):
        return x @ w["kernel"] + w["bias"]

    def norm(x, w):
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) / np.sqrt(var + c.norm_eps) * w["scale"] + w["bias"]

    def gelu(x):
        if c.gelu == "tanh":
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return 0.5 * x * (1 + erf(x / np.sqrt(2)))

    rows, columns = images.shape[1] // c.patch, images.shape[2] // c.patch
    native = (
        position.sincos_2d(c.grid, c.width)
        if c.position == "sincos"
        else p["position"][int(c.cls) :]
    )
    codes = native
    if (rows, columns) != (c.grid, c.grid):
        weights = [
            position.resize_matrix(c.grid, t, rule=c.position_resize, kernel=c.resize_kernel)
            for t in (rows, columns)
        ]
        codes = np.einsum("ar,bc,rcd->abd", *weights, native.reshape(c.grid, c.grid, -1)).reshape(
            rows * columns, -1
        )

    scales = np.ones((c.depth, 2, len(images)))
    if keys is not None:
        scales = np.asarray(layers_lib.drop_path_scales(keys, c.drop_path, c.depth), np.float64)
    outputs, attention = [], []
    for b, image in enumerate(np.asarray(images, np.float64)):
        image = (image - np.array(c.mean)) / np.array(c.std)
        patches = []
        for i in range(rows):
            for j in range(columns):
                square = image[i * c.patch : (i + 1) * c.patch, j * c.patch : (j + 1) * c.patch]
                patches.append(linear(square.ravel(), p["patch"]))
        x = np.stack(patches)
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
        for i in range(c.depth):
            block = jax.tree.map(lambda a: a[i], p["blocks"])  # noqa: B023
            q, k, v = np.split(linear(norm(x, block["norm1"]), block["attn"]["qkv"]), 3, axis=1)
            heads, maps = [], []
            for h in range(c.heads):
                part = slice(h * d, (h + 1) * d)
                scores = np.exp(q[:, part] @ k[:, part].T / np.sqrt(d))
                maps.append(scores / scores.sum(1, keepdims=True))
                heads.append(maps[-1] @ v[:, part])
            gamma1, gamma2 = (block[f"ls{k}"]["gamma"] if c.layer_scale else 1.0 for k in (1, 2))
            mixed = linear(np.concatenate(heads, 1), block["attn"]["proj"])
            x = x + scales[i, 0, b] * gamma1 * mixed
            hidden = gelu(linear(norm(x, block["norm2"]), block["mlp"]["fc1"]))
            x = x + scales[i, 1, b] * gamma2 * linear(hidden, block["mlp"]["fc2"])
        outputs.append(norm(x, p["norm"]))
        attention.append(maps)
    shown = [i for i in range(len(x)) if not c.cls <= i < c.cls + c.registers]
    attention = np.array(attention)[:, :, shown][..., shown]
    return np.array(outputs)[:, shown], attention


def run(model, params, images, **options):
    """model.apply, compiled once per call: far fewer small compilations than operation by
    operation.
    """
    static = {k: options.pop(k) for k in ("layers", "attention") if k in options}
    return jax.jit(lambda p, x, o: model.apply(p, x, **o, **static))(params, images, options)


def all_tokens(tokens, np=np):
    parts = [None if tokens.cls is None else tokens.cls[:, None], tokens.patches, tokens.queries]
    return np.concatenate([p for p in parts if p is not None], axis=1)


MASKS = np.random.default_rng(5).uniform(size=(2, N)) < 0.4
KEEP = np.array([[3, 0, 7], [15, 2, 9]], np.int32)
KEYS = jax.random.split(jax.random.key(7), 2)


@pytest.mark.parametrize(
    "changes, size, inputs",
    [
        ({}, (16, 16), {}),
        (dict(gelu="tanh", position_resize="dino_offset"), (24, 8), {}),
        (dict(drop_path=0.8), (16, 16), {"keys": KEYS}),
        (
            dict(resize_kernel="antialias-0.5", queries=2, mask_token=True),
            (16, 16),
            {"masks": MASKS},
        ),
        (dict(position="sincos", cls=False, mlp_ratio=2.0), (20, 16), {}),
        (
            dict(position="sincos", mask_token=True, norm_eps=1e-3),
            (16, 16),
            {"masks": MASKS, "keep": KEEP},
        ),
        (dict(layer_scale=0.5, registers=3, drop_path=0.8), (20, 16), {"keys": KEYS}),
        (dict(registers=2, queries=2, cls=False, scan=True), (16, 16), {"keep": KEEP}),
    ],
)
def test_matches_numpy(changes, size, inputs):
    c = config(**changes)
    model = vit.vit(c)
    params, images = randomised(model), pictures(2, *size)
    tokens = run(model, params, images, attention=True, **inputs)
    want, weights = reference(params, images, c, **inputs)
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
    assert (
        shapes["cls"] == shapes["mask_token"] == (1, 64)
    )  # two-dimensional: decayed, as in the published code
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
    shallow = vit.vit(config(depth=1, **wide)).init(
        jax.random.key(0)
    )  # a block's draw does not depend on the depth
    assert all(
        np.array_equal(one[0], all[0])
        for one, all in zip(*map(jax.tree.leaves, (shallow["blocks"], params["blocks"])))
    )


def test_options_add_parameters_and_change_no_draw():
    plain = vit.vit(config(queries=2)).init(jax.random.key(0))
    rich = vit.vit(config(queries=2, registers=3, layer_scale=1e-5)).init(jax.random.key(0))
    registers = rich.pop("registers")
    assert registers.shape == (3, 16) and 0 < np.abs(registers).max() < 1e-5
    for name in ("ls1", "ls2"):
        gamma = rich["blocks"].pop(name)["gamma"]
        np.testing.assert_array_equal(gamma, np.full((3, 16), 1e-5, np.float32))
    jax.tree.map(np.testing.assert_array_equal, rich, plain)


def test_position_std_scales_the_position_codes_alone():
    before, after = (vit.vit(config(position_std=x)).init(jax.random.key(0)) for x in (0.0, 1.0))
    np.testing.assert_allclose(after["position"], before["position"] * 50, rtol=1e-6)
    del before["position"], after["position"]
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_scan_and_remat_change_no_gradient():
    images, params = pictures(3), randomised(vit.vit(config(depth=2)))

    def outcome(**changes):
        model = vit.vit(config(depth=2, **changes))

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


def test_scan_covers_all_blocks_and_every_cut():
    """Intermediate layers, attention and drop-path, wherever the stack is cut."""
    images, keys, params = (
        pictures(3),
        jax.random.split(jax.random.key(3), 3),
        randomised(vit.vit(TINY)),
    )
    plain = run(
        vit.vit(config(drop_path=0.5)), params, images, keys=keys, layers=(0, 1, 2), attention=True
    )
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
    rich = run(model, params, images, layers=(2, 0), attention=True)
    np.testing.assert_allclose(all_tokens(plain), all_tokens(rich), atol=1e-6)
    assert plain.layers == {} and plain.attention is None
    assert sorted(rich.layers) == [0, 2]
    np.testing.assert_array_equal(rich.layers[2].patches, rich.patches)
    assert np.abs(rich.layers[0].cls - rich.cls).max() > 1e-2
    np.testing.assert_allclose(rich.attention.sum(-1), 1, atol=1e-6)
    short = vit.vit(config(depth=1))
    only = jax.tree.map(lambda leaf: leaf[:1], params["blocks"])
    first = run(short, {**params, "blocks": only}, images)
    np.testing.assert_allclose(all_tokens(rich.layers[0]), all_tokens(first), atol=1e-6)


def test_masked_and_dropped_patches_are_not_seen():
    model = vit.vit(config(depth=1, mask_token=True))
    params = randomised(model)
    seen = jnp.zeros((1, N), bool).at[0, 5].set(True)
    others = jnp.asarray([[i for i in range(N) if i != 5]])
    gradient = jax.jit(jax.grad(lambda x, options: model.apply(params, x, **options).cls.sum()))
    for options, hidden in (({}, False), (dict(masks=seen), True), (dict(keep=others), True)):
        influence = (
            np.abs(gradient(pictures(1), options))
            .reshape(4, 4, 4, 4, 3)
            .max(axis=(1, 3, 4))
            .ravel()
        )
        assert np.array_equal(influence == 0, (np.arange(N) == 5) & hidden)


def test_no_mask_and_full_keep_are_the_plain_pass():
    model, images = vit.vit(config(depth=1, mask_token=True)), pictures()
    params = randomised(model)
    plain = all_tokens(run(model, params, images))
    for options in (
        dict(masks=jnp.zeros((2, N), bool)),
        dict(keep=jnp.tile(jnp.arange(N), (2, 1))),
    ):
        np.testing.assert_allclose(
            all_tokens(run(model, params, images, **options)), plain, atol=1e-6
        )


def test_a_clean_network_reads_trees_with_and_without_mask_token():
    masked, clean = vit.vit(config(depth=1, mask_token=True)), vit.vit(config(depth=1))
    params = randomised(masked)
    teacher = {k: v for k, v in params.items() if k != "mask_token"}
    want = run(masked, params, pictures()).cls
    np.testing.assert_array_equal(run(clean, params, pictures()).cls, want)
    np.testing.assert_array_equal(run(clean, teacher, pictures()).cls, want)


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
    np.testing.assert_allclose(
        tokens.attention.sum(-1), 1, atol=1e-6
    )  # the softmax was not rounded


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_finite_for_extreme_images(dtype):
    model = vit.vit(config(depth=1, dtype=dtype))
    params = randomised(model)
    grad = jax.jit(jax.value_and_grad(lambda p, x: jnp.square(model.apply(p, x).cls[:, 0]).sum()))
    extremes = [
        jnp.zeros((1, 16, 16, 3)),
        jnp.full((1, 16, 16, 3), 0.5),
        *(pictures(1) * s for s in (1e-4, 1e4)),
    ]
    for images in extremes:
        leaves = jax.tree.leaves(grad(params, images))
        assert all(leaf.dtype == jnp.float32 and np.all(np.isfinite(leaf)) for leaf in leaves)


def test_vmap_over_views_equals_a_merged_batch():
    model, views = vit.vit(config(depth=2, drop_path=0.5)), pictures(4).reshape(2, 2, 16, 16, 3)
    params, keys = randomised(model), jax.random.split(jax.random.key(1), (2, 2))
    mapped = jax.jit(jax.vmap(lambda x, k: model.apply(params, x, keys=k).cls))(views, keys)
    merged = run(model, params, views.reshape(4, 16, 16, 3), keys=keys.reshape(4)).cls
    np.testing.assert_allclose(mapped.reshape(4, -1), merged, atol=1e-6)


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(width=15), r"width is 15, not a multiple of 2 \(heads\); use 14 or 16"),
        (dict(image_size=18), r"image_size is 18, not a multiple of 4 \(patch\); use 16 or 20"),
        (dict(depth=0), "depth is 0; it must be at least 1"),
        (dict(drop_path=1.0), "drop_path is 1.0; it must be"),
        (dict(position_std=-1.0), "position_std is -1.0; it must be"),
        (dict(position="rope"), 'position is "rope"; it must be one of learned, sincos'),
        (dict(position="sincos", width=18), "width is 18, not a multiple of 4"),
        (dict(dtype="float16"), 'dtype is "float16"'),
        (
            dict(in_channels=1),
            r"mean is \(.*\); it must hold one number for each of the 1 channels",
        ),
        (dict(std=(0.2, 0.0, 0.2)), r"std is \(0.2, 0.0, 0.2\); it must be .*above 0"),
        (dict(queries=-1), "queries is -1"),
        (dict(registers=-1), "registers is -1"),
        (dict(layer_scale=-1.0), "layer_scale is -1.0"),
        (dict(norm_eps=0.0), "norm_eps is 0.0; it must be above 0"),
        (dict(mlp_ratio=0.0), "mlp_ratio is 0.0"),
        (dict(mlp_ratio=0.01), "mlp_ratio is 0.01, which leaves the MLP of width 16 no hidden"),
    ],
)
def test_config_errors(changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


@pytest.mark.parametrize(
    "images, options, message",
    [
        (jnp.zeros((1, 16, 18, 3)), {}, "16 x 18 pixels; both must be multiples of patch = 4"),
        (
            jnp.zeros((1, 16, 16, 1)),
            {},
            r"images have shape \(1, 16, 16, 1\); wanted \[B, H, W, 3\]",
        ),
        (jnp.zeros((1, 16, 16, 3), jnp.uint8), {}, "images are uint8; wanted floating point"),
        (
            jnp.zeros((1, 16, 16, 3)),
            dict(masks=jnp.zeros((1, 9), bool)),
            r"shape \(1, 9\); wanted bool of shape \(1, 16\)",
        ),
        (
            jnp.zeros((1, 16, 16, 3)),
            dict(keep=jnp.zeros((2, 9), jnp.int32)),
            r"wanted integers of shape \(1, m\)",
        ),
        (
            jnp.zeros((1, 16, 16, 3)),
            dict(keep=jnp.zeros((1, 17), jnp.int32)),
            "keep lists 17 patches",
        ),
        (
            jnp.zeros((1, 16, 16, 3)),
            dict(keys=jnp.zeros((1,), jnp.uint32)),
            "wanted typed PRNG keys",
        ),
        (
            jnp.zeros((1, 16, 16, 3)),
            dict(layers=(3,)),
            "layers asks for block 3; blocks are numbered 0 to 2",
        ),
    ],
)
def test_input_errors(images, options, message):
    model = vit.vit(config(mask_token=True))
    with pytest.raises(ValueError, match=message):
        model.apply({}, images, **options)


def test_the_module_computes_the_same():
    model = vit.vit(TINY)
    params = randomised(model)
    module = model.module(params)
    np.testing.assert_array_equal(
        jax.jit(lambda x: module(x).patches)(pictures()), run(model, params, pictures()).patches
    )


def test_masks_need_a_mask_token():
    with pytest.raises(ValueError, match="make the model with mask_token=True"):
        vit.vit(TINY).apply({}, pictures(1), masks=jnp.zeros((1, N), bool))
