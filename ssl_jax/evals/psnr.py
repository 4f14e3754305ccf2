"""PSNR of test images that the network reconstructs from its tokens."""

from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from ssl_jax.config import InputError
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import BASELINES, NoSettings, register_module
from ssl_jax.features.windows import filled
from ssl_jax.methods.pictures.reconstructions import pixels
from ssl_jax.models import tokenizer
from ssl_jax.scores import rebuild


def batches(case: Case, scale: Sequence[float] = ()) -> Iterator[tuple[np.ndarray, int]]:
    """Yields (images [B, H, W, 3], number of images without padding) of an evaluation's test
    images, or of random crops of them (see `Case.batches`). The last batch is padded, so that
    functions of the batches are compiled once."""
    for images in case.batches(scale=scale):
        yield filled(images, case.batch_size), len(images)


def rebuilt(
    case: Case, scale: Sequence[float] = (), whole: bool = False
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yields (images, reconstructions [B, H, W, 3], number of images without padding), see
    `batches`. whole: reconstructions have the size that a tokenizer decodes, and images are resized
    to it.

    Raises InputError for a network that does not reconstruct images.
    """
    for images, count in batches(case, scale):
        _, extras = case.network.with_extras(images)
        if "rebuilt" not in extras:
            raise InputError(
                f"{case.config.type} needs a network that reconstructs images, and this one has no"
                ' decoder; leave it out of evals.tasks, or use the type "decode", which trains a'
                " decoder for any network"
            )
        shown = pixels(case.network.config, extras["rebuilt"], whole)
        yield fitted(images, shown), shown, count


def fitted(images: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """Images [B, H, W, 3] resized to the height and width of `shown`, by torch's bicubic."""
    if images.shape == shown.shape:
        return images
    return np.clip(np.asarray(tokenizer.resize(jnp.asarray(images), *shown.shape[1:3])), 0.0, 1.0)


def score(case: Case, settings: NoSettings) -> dict[str, float]:
    """`psnr`, mean over the test images in dB."""
    values = [rebuild.psnr(images, shown)[:count] for images, shown, count in rebuilt(case)]
    return {"psnr": float(np.concatenate(values).mean())}


register_module(__name__, heading="PSNR, dB", one_size=True, baselines=BASELINES[:1])
