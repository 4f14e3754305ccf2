"""MAE's objective against float64, and the order of pixels in a patch."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ssl_jax.losses.mae import mae, normalize_patches
from ssl_jax.models import position, vit
from ssl_jax.ops import patchify, unpatchify
from tests.finite import assert_finite
from tests.losses.reference import close


def reference(predicted, pixels, mask, normalize):
    """Loss, gradient with respect to predicted [B, n, P], and loss of flat patches; one patch at a
    time.
    """
    loss, gradient, flat = 0.0, np.zeros(predicted.shape), 0.0
    for b, i in zip(*np.nonzero(mask)):
        target = pixels[b, i].astype(np.float64)
        if normalize:
            mean = target.sum() / len(target)
            variance = ((target - mean) ** 2).sum() / (len(target) - 1)
            target = (target - mean) / np.sqrt(variance + 1e-6)
        error = predicted[b, i].astype(np.float64) - target
        loss += (error**2).mean() / mask.sum()
        flat += ((target - target.mean()) ** 2).mean() / mask.sum()
        gradient[b, i] = 2 * error / len(target) / mask.sum()
    return loss, gradient, flat


def inputs(seed=0, batch=3, patches=6, size=12, share=0.7, scale=1.0):
    rng = np.random.default_rng(seed)
    predicted, pixels = (
        rng.normal(size=(batch, patches, size)).astype(np.float32) * scale for _ in range(2)
    )
    return predicted, pixels, rng.random((batch, patches)) < share


def run(predicted, pixels, mask, normalize):
    def loss(predicted):
        terms = mae(predicted, pixels, mask, normalize_pixels=normalize)
        return terms["loss"], terms

    return jax.grad(loss, has_aux=True)(predicted)


run = jax.jit(run, static_argnums=3)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("share", [0.7, 1.0, 0.0])
def test_equals_the_reference(normalize, share):
    predicted, pixels, mask = inputs(share=share)
    pixels[0, 0] = 0.25  # a flat patch
    gradient, terms = run(predicted, pixels, mask, normalize)
    loss, by_predicted, flat = reference(predicted, pixels, mask, normalize)
    close(terms["loss"], loss)
    close(gradient, by_predicted)
    close(terms["variance"], flat)
    close(terms["masked"], mask.mean())
    close(terms["explained"], 1 - loss / flat if flat else 0)


def test_the_variance_is_unbiased():
    """With the biased one the targets of a patch of two values would be -1 and 1."""
    pixels = np.array([[[0.0, 2.0]]], np.float32)
    close(mae(np.zeros((1, 1, 2)), pixels, np.ones((1, 1), bool))["loss"], 0.5)


def test_only_masked_patches_matter():
    predicted, pixels, mask = inputs()
    gradient, terms = run(predicted, pixels, mask, True)
    assert not np.any(np.asarray(gradient)[~mask]) and np.all(
        np.any(np.asarray(gradient)[mask], axis=-1)
    )
    again, same = run(np.where(mask[..., None], predicted, np.nan), pixels, mask, True)
    assert same["loss"] == terms["loss"] and np.array_equal(again, gradient)


def test_meters_of_a_perfect_and_of_a_flat_prediction():
    _, pixels, mask = inputs()
    perfect = mae(normalize_patches(pixels)[0], pixels, mask)
    close(perfect["loss"], 0)
    close(perfect["explained"], 1)
    flat = mae(
        np.broadcast_to(pixels.mean(axis=-1, keepdims=True), pixels.shape),
        pixels,
        mask,
        normalize_pixels=False,
    )
    close(flat["loss"], flat["variance"])
    close(flat["explained"], 0)


def test_normalised_targets_forget_brightness_and_contrast():
    predicted, pixels, mask = inputs()
    close(
        mae(predicted, 3 * pixels + 7, mask)["loss"],
        mae(predicted, pixels, mask)["loss"],
        relative=1e-4,
    )


def test_pixels_have_no_gradient():
    predicted, pixels, mask = inputs()

    def total(predicted, pixels):
        return sum((value**2).sum() for value in mae(predicted, pixels, mask).values())

    # variance and explained are meters of the target
    by_predicted, by_pixels = jax.jit(jax.grad(total, (0, 1)))(predicted, pixels)
    assert np.any(by_predicted) and not np.any(by_pixels)


@hypothesis.settings(max_examples=25, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    dtype=st.sampled_from((jnp.float32, jnp.bfloat16, jnp.float16)),
    scale=st.sampled_from((0.0, 1e-4, 1.0, 1e4)),
    normalize=st.booleans(),
    flat=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_finite_for_every_input(dtype, scale, normalize, flat, seed):
    predicted, pixels, mask = inputs(seed, scale=scale)
    if flat:
        pixels[:] = pixels[..., :1]
    low = jnp.asarray(predicted, dtype), jnp.asarray(pixels, dtype)
    gradient, terms = run(*low, mask, normalize)
    assert terms["loss"].dtype == jnp.float32 and gradient.dtype == dtype
    assert_finite(gradient, terms)
    if not flat:
        loss, by_predicted, _ = reference(
            *(np.asarray(x, np.float32) for x in low), mask, normalize
        )
        close(terms["loss"], loss, relative=1e-4)
        close(
            gradient,
            by_predicted,
            relative=max(1e-4, float(jnp.finfo(dtype).eps)),
            absolute=1e-6 * max(1, scale),
        )


def test_sharded_batch_agrees_with_a_single_device():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    arrays = inputs(batch=16)
    placed = (jax.device_put(x, jax.NamedSharding(mesh, jax.P("data"))) for x in arrays)
    gradient, terms = run(*placed, True)
    want = run(*arrays, True)
    np.testing.assert_allclose(terms["loss"], want[1]["loss"], rtol=1e-6)
    close(gradient, want[0])


def test_patches_have_the_published_order():
    """Patch i, row p, column q, channel c at [i, (p * patch + q) * channels + c]: MAE's
    "nchpwq->nhwpqc".
    """
    rng = np.random.default_rng(0)
    images = rng.random((2, 6, 9, 3))
    patches = np.asarray(patchify(images, 3))
    assert patches.shape == (2, 6, 27)
    for i, (p, q, c) in ((0, (0, 0, 0)), (1, (0, 2, 1)), (5, (2, 1, 2))):
        row, column = divmod(i, 3)
        np.testing.assert_allclose(
            patches[:, i, (p * 3 + q) * 3 + c], images[:, row * 3 + p, column * 3 + q, c], rtol=1e-6
        )
    np.testing.assert_array_equal(unpatchify(patches, 3, (2, 3)), images.astype(np.float32))
    np.testing.assert_array_equal(patchify(images[0], 3), patches[0])


def test_patches_of_the_loss_are_those_of_the_network():
    """The network's embedding of a patch is its pixels, in this order, times the kernel."""
    model = vit.vit(
        vit.ViTConfig(
            width=12, depth=1, heads=1, patch=2, image_size=4, cls=False, position="sincos"
        )
    )
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda s: jnp.zeros(s.shape), shapes)
    params["patch"]["kernel"] = jnp.eye(12)
    params["norm"]["scale"] = jnp.ones(12)
    images = jnp.asarray(np.random.default_rng(0).random((1, 4, 4, 3)), jnp.float32)
    embedded = (
        patchify(images, 2).reshape(1, 4, 4, 3) - jnp.array([0.485, 0.456, 0.406])
    ) / jnp.array([0.229, 0.224, 0.225])
    x = np.asarray(embedded, np.float64).reshape(4, 12) + position.sincos_2d(2, 12)
    want = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(model.apply(params, images).patches[0], want, atol=1e-4)


def test_errors():
    predicted, pixels, mask = inputs()
    for wrong, message in (
        ((predicted[0], pixels, mask), r"shape of predicted is \(6, 12\)"),
        (
            (predicted, pixels[..., :9], mask),
            r"shape of pixels is \(3, 6, 9\); it must be \[3, 6, 12\] as predicted",
        ),
        ((predicted, pixels, mask[:, :5]), r"shape of mask is \(3, 5\)"),
        ((predicted, pixels, mask.astype(int)), "type of mask is int64|type of mask is int32"),
        ((predicted[:, :0], pixels, mask), "B, n, P >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            mae(*wrong)
    with pytest.raises(ValueError, match="eps is 0"):
        mae(predicted, pixels, mask, eps=0)
    with pytest.raises(ValueError, match="number of values of a patch is 1"):
        normalize_patches(np.zeros((6, 1)))
