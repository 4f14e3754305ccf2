"""How much of an image frozen features hold: a new decoder is trained on them, and rebuilds images
that nobody has seen (STELLAR table 3).

The decoder is STELLAR's (linear layer, random Fourier codes, transformer blocks, no mask tokens)
for every network, trained with AdamW at a constant learning rate on images as they are evaluated,
without augmentation. It gets the dense map of patch tokens, or for STELLAR the low-rank map L S of
its sparse tokens, and says pixels (squared error) or the codes of a frozen tokenizer
(cross-entropy), which the tokenizer's own decoder makes into pixels.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from ml_collections import ConfigDict

from ssl_jax.config import InputError, field
from ssl_jax.data.decode import Unreadable
from ssl_jax.evals import psnr, quality
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import BASELINES, Protocol, register_module
from ssl_jax.features.ahead import ahead
from ssl_jax.losses import reconstruction
from ssl_jax.methods.pictures import reconstructions
from ssl_jax.methods.pictures.base import Picture
from ssl_jax.models import decoder, factorise, tokenizer
from ssl_jax.ops import numerics

_SHOWN = 6  # test images of the picture

_STELLAR = {
    "width": 512,
    "depth": 6,
    "heads": 8,
    "epochs": 20,
    "lr": 1e-4,
    "target": "vq",
    "data": {"size": 256},
    "crop": 224,
    "lpips": "alex",
    "fid": quality.INCEPTION,
}
PROTOCOLS = {
    # Batch size and weight decay are not in the paper.
    "sparse": Protocol("STELLAR table 3, 16 tokens", _STELLAR | {"tokens": "sparse"}),
    "dense": Protocol("STELLAR table 3, 196 tokens", _STELLAR | {"tokens": "dense"}),
}


@dataclasses.dataclass(frozen=True)
class Settings(quality.Settings):
    """The keys of this type of evaluation."""

    tokens: str = field(
        "auto",
        'what the decoder gets: "dense", the patch tokens; "sparse", the low-rank map of'
        ' STELLAR\'s sparse tokens; "auto", sparse where there is one',
        choices=("auto", "dense", "sparse"),
    )
    target: str = field(
        "pixel",
        'what it predicts of each patch: "pixel", or "vq", the code of a frozen tokenizer',
        choices=("pixel", "vq"),
    )
    tokenizer: str = field(
        "", f'file with the weights for target="vq"; {tokenizer.FETCH}', path=True, acts=""
    )
    width: int = field(64, "of the decoder", above=0)
    depth: int = field(2, "blocks of the decoder", "blocks", above=0)
    heads: int = field(4, "of its attention; divides width", "heads", above=0)
    epochs: int = field(20, "of training the decoder", "epochs", above=0)
    batch: int = field(64, "images per step", "images", above=0)
    lr: float = field(1e-3, "learning rate of AdamW, constant", above=0, most=10)
    weight_decay: float = field(1e-4, "of AdamW", least=0, most=10)


def check(name: str, settings: Settings, data: ConfigDict) -> None:
    """Refuses an evaluation `name` whose files are missing, or whose decoder cannot be. Raises
    InputError."""
    quality.check(name, settings, data)
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


class Decoder(NamedTuple):
    """A trained decoder.

    losses: [epochs], the mean training loss of each. apply(params, latents) -> outputs [B, n, c].
    """

    params: Any
    losses: np.ndarray
    apply: Callable


def fit(
    batches: Callable[[int], Iterable[tuple[np.ndarray, np.ndarray]]],
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
    lr: float | optax.Schedule = 1e-3,
    weight_decay: float = 1e-4,
) -> Decoder:
    """Trains a decoder from scratch. Everything follows from `key` and the batches.

    Args:
      batches: epoch -> (latents [B, h w, dim], images [B, H, W, 3] in [0, 1]) of its steps, all of
        one shape.
      goal: what it says of each patch; constants: of the goal.
      grid: (h, w), cells of the latents and patches of the images.
      width, depth, heads: of the decoder. lr: a number or a schedule over steps.

    Raises:
      InputError: no batch, or a loss that is not finite.
    """
    key_init, key_codes = jax.random.split(key)
    model = decoder.decoder(dim, goal.width, width=width, depth=depth, heads=heads)
    codes = factorise.fourier_codes(factorise.fourier_matrix(key_codes, width), grid)
    optimizer = optax.adamw(lr, weight_decay=weight_decay)
    frozen = {} if constants is None else constants

    def loss(params, latents, wanted):
        predicted = model.apply(params, latents, codes)
        return reconstruction(predicted, wanted)["reconstruction_loss"]

    @jax.jit
    def step(params, moments, frozen, latents, images):
        wanted = goal.encode(frozen, images)
        value, gradient = jax.value_and_grad(loss)(params, latents, wanted)
        updates, moments = optimizer.update(gradient, moments, params)
        return optax.apply_updates(params, updates), moments, value

    params = model.init(key_init)
    moments, history = optimizer.init(params), []
    for epoch in range(epochs):
        values = []
        for latents, images in batches(epoch):
            params, moments, value = step(params, moments, frozen, latents, images)
            values.append(value)
        history.append(float(np.mean(jax.device_get(values))) if values else np.nan)
        if not np.isfinite(history[-1]):
            reason = "its loss is not finite; lower lr" if values else "no batch of images"
            raise InputError(f"the decoder cannot be trained: {reason}")
    apply = jax.jit(lambda params, latents: model.apply(params, latents, codes))
    return Decoder(params, np.array(history), apply)


def latents(encoder: Callable, images: np.ndarray, tokens: str = "auto") -> jax.Array:
    """What a decoder gets of images [B, H, W, 3]: [B, h, w, d], see `defaults` for `tokens`.

    Raises InputError where "sparse" is asked of a network without localization maps.
    """
    found = encoder(images, extras=tokens != "dense")
    if tokens == "dense":
        return found.patches
    extras = found.extras or {}
    if "localization" not in extras:
        if tokens == "auto":
            return found.patches
        raise InputError(
            'tokens="sparse" needs a network with sparse tokens and localization maps, as STELLAR;'
            ' use tokens="dense"'
        )
    maps = extras["localization"]
    b, h, w, r = maps.shape
    return factorise.recompose(maps.reshape(b, h * w, r), extras["tokens"]).reshape(b, h, w, -1)


def _readable(source: Any, record: int) -> bool:
    try:
        source[int(record)]
    except Unreadable:
        return False
    return True


def train(case: Case) -> tuple[Decoder, tokenizer.Target]:
    """The decoder of an evaluation, trained on its training images, and its goal."""
    c = case.config
    source, chosen = case.chosen("train")
    index = chosen[[_readable(source, i) for i in chosen]]
    size = min(c.batch, len(index))
    goal = tokenizer.target(c.target, case.patch)
    first = case.images(case.train, index[:1])
    _, h, w, dim = latents(case.encoder, first, c.tokens).shape

    def batches(epoch):
        rng = np.random.Generator(np.random.Philox(key=[case.seed, epoch]))
        order = rng.permutation(index)
        steps = order[: len(index) // size * size].reshape(-1, size)
        for made in ahead(lambda i: case.images(case.train, [i]), steps, 1):
            images = np.concatenate(made)
            found = latents(case.encoder, images, c.tokens)
            yield found.reshape(size, h * w, dim), images

    trained = fit(
        batches,
        goal,
        grid=(h, w),
        dim=dim,
        key=numerics.key(case.seed),
        constants=goal.constants(c.tokenizer),
        **{name: c[name] for name in ("width", "depth", "heads", "epochs", "lr", "weight_decay")},
    )
    return trained, goal


def rebuilt(
    case: Case, trained: Decoder, goal: tokenizer.Target
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Test images, what the decoder makes of them, and how many of a batch count."""
    for images, count in psnr.batches(case):
        found = latents(case.encoder, images, case.config.tokens)
        b, h, w, dim = found.shape
        shown = goal.show(trained.apply(trained.params, found.reshape(b, h * w, dim)), (h, w))
        if goal.decode is not None:
            shown = goal.decode(case.config.tokenizer, shown)
        yield images, np.asarray(shown), count


def _trained(case: Case) -> tuple[Decoder, tokenizer.Target]:
    """`train`, once for the scores and the picture of an evaluation."""
    return case.once("decode", train)


def score(case: Case, settings: Settings) -> dict[str, float]:
    """`decode`: PSNR in dB of the test images, `decode_ssim` (0 to 1), and if asked for
    `decode_lpips_*` and `decode_rfid_*` (lower is better).

    Raises InputError for settings or files that do not fit.
    """
    return quality.scores("decode", case.config, rebuilt(case, *_trained(case)))


def figures(case: Case, settings: Settings) -> dict[str, Picture]:
    """{"decoded": test images, rebuilt, and the error}."""
    images, shown, count = next(iter(rebuilt(case, *_trained(case))))
    part = min(_SHOWN, count)
    title = "Images rebuilt from frozen features by a new decoder"
    return {"decoded": reconstructions.picture(images[:part], shown[:part], title)}


# Raw pixels as features would be copied.
register_module(
    __name__, heading="decoded PSNR, dB", trains=True, one_size=True, baselines=BASELINES[:1]
)
