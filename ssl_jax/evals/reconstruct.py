"""Quality of test images that the network reconstructs, in all measures of `quality`.

`psnr` is the cheap version for scores during a run. Networks that do not reconstruct whole images
(MAE, DINO) can be compared by `decode`, which trains a decoder.
"""

from ssl_jax.evals import psnr, quality
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import BASELINES, Protocol, register_module
from ssl_jax.methods.pictures import reconstructions
from ssl_jax.methods.pictures.base import Picture
from ssl_jax.scores import rebuild

_SHOWN = 6  # test images of the picture

# For the jointly trained decoder on sparse tokens; images as in STELLAR's other evaluations.
_STELLAR = dict(
    data=dict(size=256),
    crop=224,
    crop_scale=(0.36, 1.0),  # from the code; the paper does not state it
    lpips="alex",
    fid=rebuild.INCEPTION,
)
PROTOCOLS = {"stellar": Protocol("STELLAR table 5", _STELLAR)}


def score(case: Case, settings: quality.Settings) -> dict[str, float]:
    """Scores on the test images: `reconstruct`, PSNR in dB; `reconstruct_ssim` (0 to 1); if set,
    `reconstruct_lpips_*` and `reconstruct_rfid_*` (lower is better).
    """
    return quality.scores("reconstruct", settings, psnr.rebuilt(case, settings.crop_scale))


def figures(case: Case, settings: quality.Settings) -> dict[str, Picture]:
    """{"rebuilt": test images, their reconstructions, and the error}."""
    images, rebuilt, count = next(iter(psnr.rebuilt(case, settings.crop_scale)))
    shown = min(_SHOWN, count)
    title = "Images rebuilt by the network's own decoder"
    return {"rebuilt": reconstructions.picture(images[:shown], rebuilt[:shown], title)}


register_module(
    __name__,
    heading="rebuilt PSNR, dB",
    one_size=True,
    rgb=True,
    settings=quality.Settings,
    baselines=BASELINES[:1],
    check=quality.check,
)
