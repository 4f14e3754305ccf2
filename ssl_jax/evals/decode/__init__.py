"""Measures how much of an image frozen features retain: a new decoder is trained on them and
reconstructs the test images (STELLAR table 3).

For every network the decoder is STELLAR's (linear layer, random Fourier codes, transformer blocks,
no mask tokens), trained with AdamW at a constant learning rate on the evaluation crop, by default
without augmentation. Its input is the dense map of patch tokens or, for STELLAR, the low-rank map
L S of the sparse tokens. It predicts pixels (squared error) or the codes of a frozen tokenizer
(cross-entropy), whose own decoder converts them to pixels.
"""

from collections.abc import Iterator

import numpy as np
from ml_collections import ConfigDict

from ssl_jax.config import InputError
from ssl_jax.evals import psnr, reconstruct
from ssl_jax.evals.case import Case
from ssl_jax.evals.decode.settings import PROTOCOLS, Settings
from ssl_jax.evals.registry import register_module
from ssl_jax.features import latents
from ssl_jax.methods.pictures import reconstructions
from ssl_jax.methods.pictures.base import Picture
from ssl_jax.models import tokenizer
from ssl_jax.ops import numerics
from ssl_jax.scores import rebuild

__all__ = ["PROTOCOLS", "Settings", "check", "figures", "score"]
_SHOWN = 6  # test images of the picture


def check(name: str, settings: Settings, data: ConfigDict) -> None:
    """Raises InputError if files of the evaluation `name` are missing, or its width and heads do
    not fit."""
    reconstruct.check(name, settings, data)
    if settings.width % settings.heads or settings.width % 2:
        raise InputError(
            f"{name}.width is {settings.width}; it must be even and a multiple of heads ="
            f" {settings.heads}"
        )
    if settings.target == "vq":
        try:
            tokenizer.maskgit_vqgan().load(settings.tokenizer, decoder=True)
        except InputError as error:
            raise InputError(f'{name}.target="vq" needs {name}.tokenizer: {error}') from error


def train(case: Case, settings: Settings) -> tuple[rebuild.Decoder, tokenizer.Target]:
    """Trains the decoder on the training images; returns it with its target."""
    source, records = case.records("train")
    records = latents.readable(source, records, settings.batch)
    scale, unresized = settings.crop_scale, source.unresized

    def image_of(record, epoch):
        if scale:
            return case.crop_of(unresized[int(record)], scale, int(record), epoch)
        return case.images(source, [record])[0]

    size = min(settings.batch, len(records))
    goal = tokenizer.target(settings.target, case.patch)
    first = image_of(records[0], 0)[None]
    _, h, w, dim = latents.latents(case.network, first, settings.tokens).shape
    batches = latents.shuffled(
        case.network,
        image_of,
        records,
        kind=settings.tokens,
        size=size,
        epochs=settings.epochs,
        seed=case.seed,
    )
    fields = ("width", "depth", "heads", "epochs", "lr", "weight_decay", "clip")
    trained = rebuild.fit_decoder(
        batches,
        goal,
        grid=(h, w),
        dim=dim,
        key=numerics.key(case.seed),
        constants=goal.constants(settings.tokenizer),
        steps=len(records) // size,
        **{name: getattr(settings, name) for name in fields},
    )
    return trained, goal


def rebuilt(case: Case, settings: Settings) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yields (test images, reconstructions, number of images without padding) per batch. The
    decoder is trained once for the scores and the picture of an evaluation."""
    trained, goal = case.cached("decode", lambda case: train(case, settings))
    for images, count in psnr.batches(case, settings.crop_scale):
        cells = latents.latents(case.network, images, settings.tokens)
        b, h, w, dim = cells.shape
        shown = goal.show(trained.apply(trained.params, cells.reshape(b, h * w, dim)), (h, w))
        if goal.decode is not None:
            shown = goal.decode(settings.tokenizer, shown, settings.whole)
        yield psnr.fitted(images, np.asarray(shown)), np.asarray(shown), count


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Scores on the test images: `decode`, PSNR in dB; `decode_ssim` (0 to 1); if set,
    `decode_lpips_*` and `decode_rfid_*` (lower is better).
    """
    return reconstruct.scores("decode", settings, rebuilt(case, settings))


def figures(case: Case, settings: Settings) -> dict[str, Picture]:
    """{"decoded": test images, their reconstructions, and the error}."""
    images, shown, count = next(iter(rebuilt(case, settings)))
    part = min(_SHOWN, count)
    title = "Images rebuilt from frozen features by a new decoder"
    return {"decoded": reconstructions.picture(images[:part], shown[:part], title)}


# No raw-pixel baseline: a decoder would just copy the pixels.
register_module(__name__, heading="decoded PSNR, dB", trains=True, **reconstruct.REGISTERED)
