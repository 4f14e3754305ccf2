"""The decoder against an independent NumPy float64 forward pass, and what masks and the class token
do.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from ssl_jax.models import decoder

IN, OUT, WIDTH, HEADS, N = 6, 5, 8, 2, 7
KEEP = np.array([[3, 0, 6], [1, 5, 2]], np.int32)


def small(**options):
    return decoder.decoder(IN, OUT, width=WIDTH, depth=2, heads=HEADS, **options)


def randomised(model, seed=0):
    """Parameters large enough that every bias, scale and token matters."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape) * 0.3, jnp.float32), shapes)


def inputs(m, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(2, m, IN)).astype(np.float32), rng.normal(size=(N, WIDTH)).astype(
        np.float32
    )


def reference(params, tokens, codes, *, keep=None, cls=False, tanh=False, eps=1e-6):
    """Float64, one image and one head at a time: [B, n, OUT]."""
    p = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    d = WIDTH // HEADS

    def linear(x, w):
        return x @ w["kernel"] + w["bias"]

    def norm(x, w):
        return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * w[
            "scale"
        ] + w["bias"]

    def gelu(x):
        inner = np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)) if tanh else erf(x / np.sqrt(2))
        return 0.5 * x * (1 + inner)

    outputs = []
    for b, rows in enumerate(np.asarray(tokens, np.float64)):
        embedded = linear(rows, p["embed"])
        x = np.empty((N, WIDTH))
        places = range(N) if keep is None else keep[b]
        if keep is not None:
            x[:] = p["mask_token"]
        for place, row in zip(places, embedded[int(cls) :], strict=True):
            x[place] = row
        x = x + codes
        if cls:
            x = np.concatenate([embedded[:1], x])
        for i in range(2):
            block = jax.tree.map(lambda a: a[i], p["blocks"])  # noqa: B023
            q, k, v = np.split(linear(norm(x, block["norm1"]), block["attn"]["qkv"]), 3, axis=1)
            mixed = []
            for h in range(HEADS):
                part = slice(h * d, (h + 1) * d)
                scores = np.exp(q[:, part] @ k[:, part].T / np.sqrt(d))
                mixed.append(scores / scores.sum(1, keepdims=True) @ v[:, part])
            x = x + linear(np.concatenate(mixed, 1), block["attn"]["proj"])
            x = x + linear(
                gelu(linear(norm(x, block["norm2"]), block["mlp"]["fc1"])), block["mlp"]["fc2"]
            )
        outputs.append(linear(norm(x, p["norm"]), p["out"])[int(cls) :])
    return np.array(outputs)


@pytest.mark.parametrize(
    ("options", "keep"),
    [
        ({}, None),
        (dict(gelu="tanh", norm_eps=1e-3), None),
        (dict(mask_token=True), KEEP),
        (dict(mask_token=True, cls=True), KEEP),
        (dict(mask_token=True, cls=True), None),
    ],
)
def test_matches_numpy(options, keep):
    model = small(**options)
    params, cls = randomised(model), options.get("cls", False)
    tokens, codes = inputs((N if keep is None else keep.shape[1]) + cls)
    got = jax.jit(model.apply)(params, tokens, codes, keep=keep)
    want = reference(
        params,
        tokens,
        codes,
        keep=keep,
        cls=cls,
        tanh="gelu" in options,
        eps=options.get("norm_eps", 1e-6),
    )
    assert got.shape == (2, N, OUT) and got.dtype == jnp.float32
    np.testing.assert_allclose(got, want, atol=2e-5)


def test_order_of_the_kept_tokens_says_nothing():
    model = small(mask_token=True)
    params = randomised(model)
    tokens, codes = inputs(3)
    apply = jax.jit(model.apply)
    order = [2, 0, 1]
    np.testing.assert_allclose(
        apply(params, tokens[:, order], codes, keep=KEEP[:, order]),
        apply(params, tokens, codes, keep=KEEP),
        atol=1e-6,
    )


def test_remat_changes_no_gradient_and_the_mask_token_learns():
    tokens, codes = inputs(3)
    gradients = []
    for remat in ("none", "block"):
        model = small(mask_token=True, remat=remat)

        def loss(params, tokens, model=model):
            return jnp.square(model.apply(params, tokens, codes, keep=KEEP)).mean()

        gradients.append(jax.jit(jax.grad(loss, (0, 1)))(randomised(model), tokens))
    for a, b in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert all(np.any(g) for g in jax.tree.leaves(gradients[0]))


@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 1e4])
def test_bfloat16_is_finite_and_near_float32(scale):
    params = randomised(small())
    tokens, codes = inputs(N)
    low = jax.jit(small(dtype="bfloat16").apply)(
        params, jnp.asarray(tokens * scale, jnp.bfloat16), codes
    )
    assert low.dtype == jnp.float32 and np.isfinite(low).all()
    if scale <= 1:
        np.testing.assert_allclose(
            low, jax.jit(small().apply)(params, tokens * scale, codes), atol=0.05
        )


def test_initial_values():
    params = small(mask_token=True).init(jax.random.key(0))
    assert set(params) == {"embed", "mask_token", "blocks", "norm", "out"}
    assert params["blocks"]["norm1"]["scale"].shape == (2, WIDTH)
    assert params["mask_token"].shape == (1, WIDTH) and np.any(params["mask_token"])
    assert "mask_token" not in jax.eval_shape(small().init, jax.random.key(0))
    wide = decoder.decoder(256, 3, width=256, depth=1, init_std=0.1).init(jax.random.key(0))
    np.testing.assert_allclose(np.std(wide["embed"]["kernel"]), 0.1, rtol=0.02)


def test_errors():
    for options, message in (
        (dict(depth=0), "depth is 0"),
        (dict(width=8, heads=3), "width is 8; it must be a multiple of heads = 3"),
        (dict(width=8, heads=2, mlp_ratio=0.1), r"mlp_ratio \* width is 0"),
        (dict(gelu="relu"), 'gelu is "relu"; choose one of erf, tanh'),
        (dict(init_std=0.0), "init_std is 0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            decoder.decoder(IN, OUT, **options)
    tokens, codes = inputs(3)
    full = inputs(N)[0]
    for model, arguments, keep, message in (
        (
            small(),
            (tokens[..., :4], codes),
            None,
            r"tokens have shape \(2, 3, 4\); wanted \[B, m, 6\]",
        ),
        (small(cls=True), (tokens[:, :1], codes), None, r"wanted \[B, 1 \+ m, 6\]"),
        (small(), (full, codes[:, :4]), None, r"codes have shape \(7, 4\); wanted \[n, 8\]"),
        (small(), (tokens, codes), None, "tokens are for 3 cells but codes for 7"),
        (small(), (tokens, codes), KEEP, "make the model with mask_token=True"),
        (
            small(mask_token=True),
            (tokens, codes),
            KEEP[:, :2],
            r"keep is int32 of shape \(2, 2\); wanted integers of shape \(2, 3\)",
        ),
        (small(mask_token=True), (tokens, codes), KEEP.astype(np.float32), "keep is float32"),
        (small(mask_token=True), (tokens, codes[:2]), KEEP, "keep places 3 tokens in 2 cells"),
    ):
        with pytest.raises(ValueError, match=message):
            model.apply(randomised(model), *arguments, keep=keep)
