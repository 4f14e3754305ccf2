"""MAE's objective: the published variance, masks, and the order of pixels in a patch."""

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax.losses.mae import mae, normalize_patches
from ssl_jax.models import position, vit
from ssl_jax.ops import patchify
from tests.losses import cases
from tests.losses.reference import close


def run(predicted, pixels, mask, **settings):
    arrays = {"predicted": predicted, "pixels": pixels, "mask": mask}
    return cases.run("mae", arrays, **settings)[0]


def test_the_variance_is_unbiased():
    """With the biased one the targets of a patch of two values would be -1 and 1."""
    pixels = np.array([[[0.0, 2.0]]], np.float32)
    close(mae(np.zeros((1, 1, 2)), pixels, np.ones((1, 1), bool))["loss"], 0.5)


def test_meters_of_a_perfect_and_of_a_flat_prediction():
    _, pixels, mask = cases.make("mae").values()
    perfect = run(normalize_patches(pixels)[0], pixels, mask)
    close(perfect["loss"], 0)
    close(perfect["explained"], 1)
    mean = np.broadcast_to(pixels.mean(axis=-1, keepdims=True), pixels.shape)
    flat = run(mean, pixels, mask, normalize_pixels=False)
    close(flat["loss"], flat["variance"])
    close(flat["explained"], 0)


def test_patches_of_the_loss_are_those_of_the_network():
    """The network's embedding of a patch is its pixels, in this order, times the kernel."""
    model = vit.vit(
        vit.ViTConfig(
            width=12, depth=1, heads=1, patch=2, image_size=4, cls=False, position="sincos"
        )
    )
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda s: np.zeros(s.shape, np.float32), shapes)
    params["patch"]["kernel"] = np.eye(12, dtype=np.float32)
    params["norm"]["scale"] = np.ones(12, np.float32)
    images = np.random.default_rng(0).random((1, 4, 4, 3), np.float32)
    pixels = np.asarray(patchify(jnp.asarray(images), 2), np.float64).reshape(4, 4, 3)
    embedded = (pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    x = embedded.reshape(4, 12) + position.sincos_2d(2, 12)
    want = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(jax.jit(model.apply)(params, images).patches[0], want, atol=1e-4)
