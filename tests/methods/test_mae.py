"""MAE: what the encoder sees, what the loss and its meters say, pictures."""

import functools

import jax
import numpy as np
import pytest

from ssl_jax import methods, trees
from ssl_jax.evals import pictures
from ssl_jax.losses.mae import normalize_patches
from ssl_jax.methods import mae
from ssl_jax.methods.encoder import Encoder
from ssl_jax.ops import patchify
from ssl_jax.train import optim
from ssl_jax.views import recipe
from tests import tiny

pytestmark = pytest.mark.slow

MEAN, STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
KEPT, N = 4, 16

SETTINGS = tiny.values("""
    views.jitter_prob=0.0 views.gray_prob=0.0 views.blur_prob=(0.0,0.0,0.0) model.drop_path=0.0
    model.init_std=0.25 optim.batch_size=4
""")


def resolved(**changes):
    """Views of 16 patches of which 4 are kept, without photometric draws."""
    return tiny.resolved(tiny.config("mae", **SETTINGS | changes), num_records=40)


@functools.cache
def bound(**changes):
    """The method of a resolved config."""
    return methods.make(resolved(**changes))


@functools.cache
def setup():
    """(params, prepared batch, jitted encode of images [B, 16, 16, 3])."""
    method = bound()
    params, carry = jax.jit(method.init)(jax.random.key(0))
    assert carry is None and method.constants() is None
    batch = recipe.prepare(method.views, tiny.random_batch(method.views), 0)

    @jax.jit
    def encode(images):
        views = batch | {"global": batch["global"]._replace(images=images[:, None])}
        keys = jax.random.split(jax.random.key(1), 4)
        return method.encode(params, None, None, views, keys, None)

    return params, batch, encode


def test_one_masked_view_without_photometric_draws():
    (group,) = (group for _, group in bound().views.groups)
    assert group.count == 1 and group.photometric == () and group.flip == 0.5
    batch = setup()[1]["global"]
    assert batch.keep.shape == (4, 1, KEPT) and np.all(batch.masks.sum(axis=-1) == N - KEPT)


def test_the_encoder_does_not_see_dropped_patches():
    _, batch, encode = setup()
    group = batch["global"]
    images = np.asarray(group.images[:, 0])
    outputs = encode(images)
    assert outputs.predicted.shape == outputs.pixels.shape == (4, N, 48)
    np.testing.assert_allclose(outputs.pixels, patchify(images, 4), atol=1e-6)
    hidden = np.repeat(np.repeat(group.masks[:, 0].reshape(4, 4, 4), 4, axis=1), 4, axis=2)[
        ..., None
    ]
    blind = encode(np.where(hidden, 0.9 - images, images)).predicted
    np.testing.assert_array_equal(blind, outputs.predicted)
    other = encode(np.where(hidden, images, 0.9 - images)).predicted
    assert np.all(np.any(np.abs(other - outputs.predicted) > 1e-6, axis=-1))


def objective(predicted, images, mask, method):
    outputs = mae.Outputs(predicted, patchify(images, 4), mask)
    loss, output = method.objective(None, None, outputs, None, None, None)
    return float(loss), output.metrics


@pytest.mark.parametrize("normalize", [True, False])
def test_loss_and_psnr_of_known_predictions(normalize):
    method = bound(mae__normalize_pixels=normalize)
    images = np.random.default_rng(3).random((2, 16, 16, 3), np.float32)
    mask = np.random.default_rng(4).random((2, N)) < 0.7
    target = patchify((images - MEAN) / STD, 4)
    scale = np.ones((2, N, 1))
    if normalize:
        target, _, scale = normalize_patches(target)
    loss, metrics = objective(target, images, mask, method)
    assert loss < 1e-10 and metrics["psnr"] > 70 and metrics["reconstruction_explained"] > 0.999
    # An error of .1 in every target value, inwards so that nothing is clipped.
    inwards = np.where(np.asarray(patchify(images, 4)) > 0.5, -0.1, 0.1)
    loss, metrics = objective(target + inwards, images, mask, method)
    np.testing.assert_allclose(loss, 0.01, rtol=1e-4)
    error = (np.asarray(scale) * 0.1 * np.tile(STD, 16)) ** 2
    by_image = [error[b][mask[b]].mean() for b in range(2)]
    np.testing.assert_allclose(
        metrics["psnr"], np.mean([-10 * np.log10(e) for e in by_image]), rtol=1e-4
    )


def test_decay_goes_by_rank_as_published():
    params, *_ = setup()
    rules, leaves = optim.assign_rules(bound().rules, params), trees.shapes(params)
    decayed = {path for path, leaf in leaves.items() if optim.is_decayed(path, leaf, rules[path])}
    assert {"backbone/cls", "decoder/mask_token", "decoder/embed/kernel"} <= decayed
    assert not any(path.endswith(("bias", "scale")) for path in decayed)
    assert not any("position" in path for path in rules), "sine-cosine codes are no parameters"


def test_the_image_may_be_the_mean_of_its_patches():
    images = np.random.default_rng(0).random((2, 16, 16, 3), np.float32)
    method = bound(mae__global_token="mean")
    out = jax.jit(lambda p: method.features(p, images))(setup()[0])
    np.testing.assert_allclose(out.image, out.patches.mean(axis=(1, 2)), atol=1e-6)


def test_pictures_show_image_mask_and_reconstruction():
    encoder = Encoder(resolved(), setup()[0])
    # not the native size: codes are resized
    images = np.random.default_rng(0).random((2, 24, 16, 3), np.float32)
    picture = pictures.draw(encoder, images)["reconstructions"]
    for row, image in zip(picture.rows, images, strict=True):
        whole, masked, filled = (np.asarray(panel.image) for panel in row)
        assert filled.shape == image.shape and 0 <= filled.min() and filled.max() <= 1
        np.testing.assert_array_equal(whole, image)
        hidden = np.all(masked == 0.5, axis=-1)
        assert hidden.mean() == 0.75
        for panel in (filled, masked):
            np.testing.assert_allclose(panel[~hidden], image[~hidden], atol=1e-6)
        assert np.any(np.abs(filled[hidden] - image[hidden]) > 1e-3)
