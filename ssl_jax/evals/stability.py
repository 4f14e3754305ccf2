"""How tokens ("what") and their maps ("where") change when an image is shifted or cropped (STELLAR
figure 2), see `scores.stability`.

STELLAR's sparse tokens S should not change, and its localization maps L should move with the image.
For other networks the image vector is the only token, and the patch map replaces L.
"""

import dataclasses
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ssl_jax.config import InputError, field
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import Protocol, register_module
from ssl_jax.features.network import adopt
from ssl_jax.features.windows import filled
from ssl_jax.methods.pictures.base import Chart, Curve
from ssl_jax.scores import stability

SHIFTS, CROPS, SCALE = (0, 2, 4, 8, 16), 4, (0.36, 1.0)

_STELLAR = dict(
    data=dict(size=256),
    crop=224,
    shifts=(0, 2, 4, 8, 12, 16, 20, 24, 28, 32),
    crops=CROPS,
    scale=SCALE,
    test_examples=1000,
)
PROTOCOLS = {"stellar": Protocol("STELLAR figure 2", _STELLAR)}


@dataclasses.dataclass(frozen=True)
class Settings:
    shifts: tuple[int, ...] = field(
        SHIFTS,
        "distances by which images are shifted, within the margin that data.size leaves around"
        " crop (crop=0: a margin of the largest shift)",
        "pixels",
        least=0,
    )
    crops: int = field(CROPS, "random crops per image, which are compared in pairs", least=2)
    scale: tuple[float, ...] = field(
        SCALE,
        "(least, largest) share of the image's area in a random crop",
        above=0,
        most=1,
        length=2,
        ordered=True,
    )


def parts(encoder: Any, images: np.ndarray) -> stability.Parts:
    """S and L of a network with localization maps; image vector and patches of other networks."""
    features, extras = adopt(encoder).with_extras(images)
    if "localization" in extras:
        return stability.Parts(*(np.asarray(extras[name]) for name in ("tokens", "localization")))
    return stability.Parts(np.asarray(features.image)[:, None], np.asarray(features.patches))


def _measured(case: Case, settings: Settings) -> tuple[stability.Shifted, tuple[float, float]]:
    """`scores.stability.measured` of a case. Raises InputError for images too small or too few."""

    def function(images):  # padded, so that the network has one shape
        rows = parts(case.network, filled(images, case.batch_size))
        return stability.Parts(*(x[: len(images)] for x in rows))

    try:
        return stability.measured(
            function,
            case.batches(whole=True),  # with the margin in which windows move
            shifts=settings.shifts,
            crops=settings.crops,
            scale=settings.scale,
            window=case.config.crop,
            patch=case.patch,
            seed=case.seed,
        )
    except ValueError as error:
        raise InputError(f"stability: {error}; raise data.size, or lower crop or shifts") from error


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Scores in percent, means over shifts above 0: `stability`, the cosine of matched tokens (or
    image vectors); `stability_where`, the relative Frobenius change of the maps;
    `stability_follows`, that change from maps moved with the image, over shifts by whole patches.
    `stability_what_8` and `stability_where_8` are the first two for a shift of 8 pixels.

    `stability_crops` is the cosine of tokens of two random crops. `stability_other` and
    `stability_crops_other` are the cosines for different images: compare with them, as a constant
    output is stable too.
    """
    moved, pairs = case.cached("stability", lambda case: _measured(case, settings))
    values = stability.means(settings.shifts, moved, pairs)
    return {f"stability{name}": 100 * x for name, x in values.items()}


def figures(case: Case, settings: Settings) -> dict[str, Chart]:
    """{"shifts": the cosine and the change of maps against the shift}."""
    moved, _ = case.cached("stability", lambda case: _measured(case, settings))
    shifts, other = settings.shifts, [moved.other] * len(settings.shifts)
    curves = (
        Curve("what: cosine of matched tokens", shifts, moved.what),
        Curve("the same of different images", shifts, other, dashed=True),
        Curve("where: change of the maps", shifts, moved.where),
        Curve("change of maps moved along", shifts, moved.follows, dashed=True),
    )
    title = "What and where when the image is shifted"
    return {"shifts": Chart(title, curves, x="shift, pixels", y="cosine, relative change")}


def check(name: str, settings: Settings, data: ConfigDict) -> None:
    """Raises InputError if all shifts are 0."""
    if max(settings.shifts) == 0:
        raise InputError(f"{name}.shifts is {settings.shifts}; give at least one above 0")


register_module(__name__, heading="stability", one_size=True)
