"""Counted FLOPs against the formula, arithmetic by hand and XLA's own count."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.models import flops, heads, tokenizer, vit, zoo


def shape(*sizes, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def params_of(model):
    return jax.eval_shape(model.init, jax.random.key(0))


def by_xla(function, *inputs):
    return jax.jit(function).lower(*inputs).cost_analysis()["flops"]


ENCODERS = [
    ({}, None, 96),
    (dict(queries=4), 9, 64),
    (dict(registers=4, layer_scale=1e-5, cls=False), None, 96),
    (dict(stem="conv"), 9, 64),
]


@pytest.mark.parametrize("changes, kept, height", ENCODERS)
def test_encoder(changes, kept, height):
    """Attention, norms and GELU add what XLA counts beyond the products."""
    config = vit.ViTConfig(width=768, depth=2, heads=12, patch=16, image_size=96, **changes)
    model = vit.vit(config)
    keep = None if kept is None else jnp.zeros((2, kept), jnp.int32)
    encode, images = functools.partial(model.apply, keep=keep), shape(2, height, 96, 3)
    formula = 2 * zoo.forward_flops(config, height, 96, kept)
    # Position embeddings of 6 x 6 patches become those of 4 x 6: rows first, then columns.
    resizing = 0 if height == 96 else 2 * 768 * (4 * 6 * 6 + 4 * 6 * 6)
    counted = flops.matmul_flops(encode, params_of(model), images)
    assert counted == formula + resizing
    assert counted < by_xla(encode, params_of(model), images) < 1.02 * counted


def test_a_scan_counts_every_step_and_a_gradient_thrice():
    config = dict(width=64, depth=3, heads=2, patch=4, image_size=16)
    images = shape(1, 16, 16, 3)
    plain, scanned = (vit.vit(vit.ViTConfig(**config, scan=scan)) for scan in (False, True))
    counts = [flops.matmul_flops(m.apply, params_of(m), images) for m in (plain, scanned)]
    assert counts[0] == counts[1] == zoo.forward_flops(vit.ViTConfig(**config), 16, 16)
    gradient = jax.grad(lambda params, x: plain.apply(params, x).patches.sum())
    # The images need no gradient.
    embed = 2 * 16 * 48 * 64
    both = flops.matmul_flops(gradient, params_of(plain), images)
    assert both == 3 * counts[0] - embed


def test_head_by_hand():
    head = heads.dino_head(8, 30, hidden=16, bottleneck=5, layers=3)
    by_hand = 2 * (8 * 16 + 16 * 16 + 16 * 5 + 5 * 30)
    assert flops.matmul_flops(head.apply, params_of(head), shape(7, 8)) == 7 * by_hand
    head = heads.projection_head(8, hidden=16, out=5, layers=2)
    assert flops.matmul_flops(head.apply, params_of(head), shape(7, 8)) == 7 * 2 * (8 * 16 + 16 * 5)


def test_convolutions_of_the_tokenizer():
    """XLA leaves out the products with the padding, and adds norms and activations."""
    vqgan = tokenizer.maskgit_vqgan()
    inputs = vqgan.shapes, shape(1, 128, 128, 3)
    counted = flops.matmul_flops(vqgan.encode, *inputs)
    np.testing.assert_allclose(by_xla(vqgan.encode, *inputs), counted, rtol=0.04)


def test_the_dearest_branch_counts():
    def choose(x):
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ x @ x, lambda x: x @ x, x)

    assert flops.matmul_flops(choose, shape(4, 4)) == 2 * 2 * 4**3
