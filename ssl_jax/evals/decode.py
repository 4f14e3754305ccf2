"""Measures how much of an image frozen features retain: a new decoder is trained on them and
reconstructs the test images (STELLAR table 3).

For every network the decoder is STELLAR's (linear layer, random Fourier codes, transformer blocks,
no mask tokens), trained with AdamW at a constant learning rate on the evaluation crop, by default
without augmentation. Its input is the dense map of patch tokens or, for STELLAR, the low-rank map
L S of the sparse tokens. It predicts pixels (squared error) or the codes of a frozen tokenizer
(cross-entropy), whose own decoder converts them to pixels.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
from ml_collections import ConfigDict

from ssl_jax.config import InputError, field
from ssl_jax.evals import psnr, reconstruct
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import BASELINES, Protocol, register_module
from ssl_jax.features import latents
from ssl_jax.methods.pictures import reconstructions
from ssl_jax.methods.pictures.base import Picture
from ssl_jax.models import tokenizer
from ssl_jax.ops import numerics
from ssl_jax.scores import rebuild

_SHOWN = 6  # test images of the picture

_STELLAR = {
    "width": 512,
    "depth": 6,
    "heads": 8,
    "epochs": 20,
    "batch": 128,  # this and the next four are from the code; the paper does not state them
    "whole": True,
    "crop_scale": (0.36, 1.0),
    "clip": 5.0,
    "weight_decay": 1e-4,
    "lr": 1e-4,
    "target": "vq",
    "data": {"size": 256},
    "crop": 224,
    "lpips": "alex",
    "fid": rebuild.INCEPTION,
}
PROTOCOLS = {
    "sparse": Protocol("STELLAR table 3, 16 tokens", _STELLAR | {"tokens": "sparse"}),
    "dense": Protocol("STELLAR table 3, 196 tokens", _STELLAR | {"tokens": "dense"}),
}


@dataclasses.dataclass(frozen=True)
class Settings(reconstruct.Settings):
    tokens: str = field(
        "auto",
        'input of the decoder: patch tokens ("dense"), STELLAR\'s low-rank map of sparse tokens'
        ' ("sparse"), or "auto", sparse if the network has one, otherwise dense',
        choices=latents.KINDS,
    )
    target: str = field(
        "pixel",
        'what the decoder predicts of each patch: "pixel", or "vq", the code of a frozen tokenizer',
        choices=("pixel", "vq"),
    )
    tokenizer: str = field(
        "",
        f'file with the weights of the tokenizer for target="vq"; {tokenizer.FETCH}',
        path=True,
        acts="",
    )
    width: int = field(64, "width of the decoder", above=0)
    depth: int = field(2, "number of blocks of the decoder", "blocks", above=0)
    heads: int = field(
        4, "number of attention heads of the decoder; a divisor of `width`", "heads", above=0
    )
    epochs: int = field(20, "length of the decoder's training", "epochs", above=0)
    batch: int = field(64, "images per training step", "images", above=0)
    lr: float = field(1e-3, "constant learning rate of AdamW", above=0, most=10)
    weight_decay: float = field(1e-4, "weight decay of AdamW", least=0, most=10)
    clip: float = field(0.0, "largest L2 norm of a gradient; 0 = no limit", least=0)


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
register_module(
    __name__,
    heading="decoded PSNR, dB",
    trains=True,
    one_size=True,
    rgb=True,
    baselines=BASELINES[:1],
    lower=reconstruct.LOWER,
)
