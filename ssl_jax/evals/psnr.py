"""PSNR of test images that the network reconstructs from its tokens."""

from collections.abc import Iterator, Sequence

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import BASELINES, NoSettings, register_module
from ssl_jax.features.windows import filled
from ssl_jax.methods.pictures.reconstructions import pixels
from ssl_jax.scores import rebuild


def batches(case: Case, scale: Sequence[float] = ()) -> Iterator[tuple[np.ndarray, int]]:
    """Yields (images [B, H, W, 3], number of images without padding) of an evaluation's test
    images, or of random crops of them (see `Case.batches`). The last batch is padded, so that
    functions of the batches are compiled once."""
    for images in case.batches(scale=scale):
        yield filled(images, case.batch_size), len(images)


def rebuilt(
    case: Case, scale: Sequence[float] = ()
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yields (images, reconstructions [B, H, W, 3], number of images without padding), see
    `batches`.

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
        yield images, pixels(case.network.config, extras["rebuilt"]), count


def score(case: Case, settings: NoSettings) -> dict[str, float]:
    """`psnr`, mean over the test images in dB."""
    values = [rebuild.psnr(images, shown)[:count] for images, shown, count in rebuilt(case)]
    return {"psnr": float(np.concatenate(values).mean())}


register_module(__name__, heading="PSNR, dB", one_size=True, baselines=BASELINES[:1])
