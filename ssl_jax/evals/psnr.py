"""How well images are rebuilt from a network's tokens, on images it was not trained on."""

from collections.abc import Iterator

import jax
import numpy as np
from ml_collections import ConfigDict

from ssl_jax.config import InputError
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import BASELINES, NoSettings, register_module
from ssl_jax.features.windows import filled
from ssl_jax.models import tokenizer
from ssl_jax.scores import rebuild


def pixels(config: ConfigDict, rebuilt: jax.Array | np.ndarray) -> np.ndarray:
    """What a network rebuilt, as pixels [B, H, W, 3] in [0, 1].

    config: of the run, whose method's section names the tokenizer if there is one. rebuilt: the
    extra of that name: pixels, or codes int [B, h, w] of the tokenizer.
    """
    if not np.issubdtype(rebuilt.dtype, np.integer):
        return np.asarray(rebuilt)
    decode = tokenizer.target("vq", config.model.patch).decode
    assert decode is not None
    return np.asarray(decode(config[config.method].tokenizer, rebuilt))


def batches(case: Case) -> Iterator[tuple[np.ndarray, int]]:
    """Test images [B, H, W, 3] of an evaluation and how many of the B count. All have one shape,
    so that functions of them are compiled once: the last is filled up with its last image."""
    for images in case.batches():
        yield filled(images, case.batch_size), len(images)


def rebuilt(case: Case) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """`batches` with what the network makes of them: images, rebuilt [B, H, W, 3], how many count.

    Raises InputError for a network that rebuilds no images.
    """
    for images, count in batches(case):
        _, extras = case.network.with_extras(images)
        if "rebuilt" not in extras:
            raise InputError(
                f"{case.config.type} needs a network that rebuilds images, and this one has no"
                ' decoder; leave it out of evals.tasks, or use the type "decode", which trains a'
                " decoder for any network"
            )
        yield images, pixels(case.network.config, extras["rebuilt"]), count


def score(case: Case, settings: NoSettings) -> dict[str, float]:
    """`psnr`: mean over the test images, in dB.

    Raises InputError for a network that rebuilds no images.
    """
    values = [rebuild.psnr(images, shown)[:count] for images, shown, count in rebuilt(case)]
    return {"psnr": float(np.concatenate(values).mean())}


register_module(__name__, heading="PSNR, dB", one_size=True, baselines=BASELINES[:1])
