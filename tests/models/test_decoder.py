"""The decoder against an independent NumPy float64 forward pass, and what masks and the class token
do.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.models import decoder
from tests.models import reference
from tests.models.reference import linear, randomised

IN, OUT, WIDTH, HEADS, N = 6, 5, 8, 2, 7
KEEP = np.array([[3, 0, 6], [1, 5, 2]], np.int32)


def small(**options):
    return decoder.decoder(IN, OUT, width=WIDTH, depth=2, heads=HEADS, **options)


def inputs(m, seed=1):
    rng = np.random.default_rng(seed)
    tokens, codes = rng.normal(size=(2, m, IN)), rng.normal(size=(N, WIDTH))
    return tokens.astype(np.float32), codes.astype(np.float32)


def forward(params, tokens, codes, *, keep=None, cls=False, gelu="erf", norm_eps=1e-6):
    """Float64: [B, n, OUT]."""
    p, outputs = reference.float64(params), []
    for b, rows in enumerate(np.asarray(tokens, np.float64)):
        embedded = linear(rows, p["embed"])
        x = np.empty((N, WIDTH))
        if keep is not None:
            x[:] = p["mask_token"]
        for place, row in zip(range(N) if keep is None else keep[b], embedded[int(cls) :]):
            x[place] = row
        x = np.concatenate([embedded[: int(cls)], x + codes])
        x, _ = reference.blocks(p["blocks"], x, HEADS, gelu, norm_eps)
        outputs.append(linear(reference.norm(x, p["norm"], norm_eps), p["out"])[int(cls) :])
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
    params = randomised(model)
    tokens, codes = inputs((N if keep is None else keep.shape[1]) + options.get("cls", False))
    got = jax.jit(model.apply)(params, tokens, codes, keep=keep)
    known = {name: value for name, value in options.items() if name != "mask_token"}
    assert got.shape == (2, N, OUT) and got.dtype == jnp.float32
    np.testing.assert_allclose(got, forward(params, tokens, codes, keep=keep, **known), atol=2e-5)


def test_remat_changes_no_gradient_and_the_mask_token_learns():
    tokens, codes = inputs(3)
    gradients = []
    for remat in ("none", "block"):
        model = small(mask_token=True, remat=remat)

        def loss(params, tokens, model=model):
            return jnp.square(model.apply(params, tokens, codes, keep=KEEP)).mean()

        gradients.append(jax.jit(jax.grad(loss, (0, 1)))(randomised(model), tokens))
    chex.assert_trees_all_close(*gradients, rtol=1e-5, atol=1e-7)
    assert all(np.any(g) for g in jax.tree.leaves(gradients[0]))


REFUSED = [
    dict(depth=0), dict(width=8, heads=3), dict(mlp_ratio=0.1, width=8, heads=2),
    dict(gelu="relu"), dict(init_std=0.0),
]  # fmt: skip


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_options_that_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        decoder.decoder(IN, OUT, **options)


TOKENS, CODES = inputs(3)


@pytest.mark.parametrize(
    ("options", "tokens", "codes", "keep", "name"),
    [
        ({}, TOKENS[..., :4], CODES, None, "tokens"),
        (dict(cls=True), TOKENS[:, :1], CODES, None, r"1 \+ m"),
        ({}, inputs(N)[0], CODES[:, :4], None, "codes"),
        ({}, TOKENS, CODES, None, "codes"),
        ({}, TOKENS, CODES, KEEP, "mask_token"),
        (dict(mask_token=True), TOKENS, CODES, KEEP[:, :2], "keep"),
        (dict(mask_token=True), TOKENS, CODES, KEEP.astype(np.float32), "keep"),
        (dict(mask_token=True), TOKENS, CODES[:2], KEEP, "keep"),
    ],
)
def test_inputs_that_are_refused(options, tokens, codes, keep, name):
    model = small(**options)
    with pytest.raises(ValueError, match=name):
        jax.eval_shape(model.apply, randomised(model), tokens, codes, keep=keep)
