"""How well images are rebuilt from a network's tokens, on images it was not trained on."""

import jax
import numpy as np
from ml_collections import ConfigDict
from numpy.typing import ArrayLike

from ssl_jax.config import InputError
from ssl_jax.evals.case import Case
from ssl_jax.evals.features import subset
from ssl_jax.evals.registry import BASELINES, register
from ssl_jax.models import tokenizer

_LEAST_ERROR = 1e-10  # 100 dB


def psnr(images: ArrayLike, rebuilt: ArrayLike) -> np.ndarray:
    """Peak signal-to-noise ratio in dB of each image, for pixels in [0, 1].

    images, rebuilt: [B, H, W, 3]; returns [B] float64, 100 at most.
    """
    error = np.square(np.asarray(images, np.float64) - np.asarray(rebuilt, np.float64))
    return -10 * np.log10(np.maximum(error.mean(axis=(1, 2, 3)), _LEAST_ERROR))


def pixels(config: ConfigDict, rebuilt: jax.Array | np.ndarray) -> np.ndarray:
    """What STELLAR rebuilt, as pixels [B, H, W, 3] in [0, 1].

    config: of the run. rebuilt: the extra of that name: pixels, or a tokenizer's codes [B, h, w].
    """
    goal = tokenizer.target(config.stellar.target, config.model.patch)
    return np.asarray(
        rebuilt if goal.decode is None else goal.decode(config.stellar.tokenizer, rebuilt)
    )


def run(case: Case) -> dict[str, float]:
    """`psnr`: mean over the test images, in dB.

    Raises InputError for a network that rebuilds no images.
    """
    index = subset(len(case.test), case.config.test_examples, case.seed)
    values: list[float] = []
    for start in range(0, len(index), case.batch_size):
        rows = index[start : start + case.batch_size]
        # one shape for all batches, so one compilation: the last is filled up with its last image
        filled = np.append(rows, np.repeat(rows[-1:], case.batch_size - len(rows)))
        images = case.images(case.test, filled)
        extras = case.encoder(images, extras=True).extras
        if not extras or "rebuilt" not in extras:
            raise InputError(
                "psnr needs a network that rebuilds images, as STELLAR with"
                " stellar.weights.reconstruction above 0; leave it out of evals.tasks"
            )
        values.extend(psnr(images, pixels(case.encoder.config, extras["rebuilt"]))[: len(rows)])
    return {"psnr": float(np.mean(values))}


register("psnr", run, dict, heading="PSNR", baselines=BASELINES[:1])
