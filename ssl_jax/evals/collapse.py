"""Meters of collapse: what features look like that say the same of all images, or use few of their
dimensions. No labels are needed.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import field
from ssl_jax.evals.case import Case
from ssl_jax.evals.rank import rank_me
from ssl_jax.evals.registry import register_module
from ssl_jax.evals.stability import SCALE, random_crop
from ssl_jax.features.windows import filled, window

_DEAD = 0.01  # a dimension is dead below this share of the root mean square of all deviations
_ROWS = 1024  # of a piece in which pairs are made


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of this type of evaluation."""

    scale: tuple[float, ...] = field(
        SCALE,
        "of the two random crops for alignment, least and largest share of the area",
        above=0,
        most=1,
    )


def mean_cosine(features: ArrayLike) -> float:
    """Mean cosine of all pairs of different rows of [N, d]: 1 = all alike, 0 = no preferred
    direction. N is at least 2."""
    unit = _unit(features)
    n = len(unit)
    return float((np.square(unit.sum(axis=0)).sum() - np.square(unit).sum()) / (n * (n - 1)))


def deviation(features: ArrayLike) -> float:
    """Mean over dimensions of the standard deviation of unit vectors, times sqrt(d): 0 = all alike,
    1 = spread evenly (Chen & He 2021, "SimSiam", figure 2)."""
    unit = _unit(features)
    return float(unit.std(axis=0).mean() * np.sqrt(unit.shape[1]))


def dead(features: ArrayLike) -> float:
    """Share of dimensions of [N, d] whose standard deviation is below 1 % of the root mean square
    of all; 1 where nothing varies."""
    values = np.asarray(features, np.float64)
    spread = values.std(axis=0)
    # What rounding leaves of a constant counts as nothing.
    least = max(_DEAD * np.sqrt(np.square(spread).mean()), 1e-7 * np.abs(values).max())
    return float((spread <= least).mean())


def effective_rank(features: ArrayLike) -> float:
    """exp of the entropy of the normalised singular values of the CENTRED rows [N, d]: from 1 to
    min(N - 1, d), 0 where all rows are alike (Roy & Vetterli 2007). RankMe, of `rank`, does not
    centre: a common direction of all rows lowers it."""
    values = np.asarray(features, np.float64)
    s = np.linalg.svd(values - values.mean(axis=0), compute_uv=False)
    if s[0] <= 1e-9 * max(np.abs(values).max(), 1e-300) * np.sqrt(values.size):
        return 0.0
    p = s[s > 0] / s.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def uniformity(features: ArrayLike) -> float:
    """log of the mean of exp(-2 |x - y|^2) over pairs of different unit rows [N, d]: 0 = all alike,
    near -4 = spread evenly (Wang & Isola 2020, section 4.1.2)."""
    unit = jnp.asarray(_unit(features), jnp.float32)
    n, total = len(unit), 0.0
    for start in range(0, n, _ROWS):
        total += float(_potential(unit[start : start + _ROWS], unit))
    return float(np.log((total - n) / (n * (n - 1))))


@jax.jit
def _potential(rows, columns):
    """Sum of exp(-2 |x - y|^2) = exp(4 x y - 4) over all pairs."""
    product = jnp.einsum("id,jd->ij", rows, columns, precision=jax.lax.Precision.HIGHEST)
    return jnp.exp(4 * jnp.minimum(product, 1.0) - 4).sum()


def alignment(first: ArrayLike, second: ArrayLike) -> float:
    """Mean of |x - y|^2 over the pairs of unit rows of two views [N, d]: 0 = the same, 2 = no
    relation (Wang & Isola 2020, section 4.1.1)."""
    return float(np.square(_unit(first) - _unit(second)).sum(axis=1).mean())


def _unit(features):
    values = np.asarray(features, np.float64)
    return values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-12)


def _views(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Features [N, d] of two random crops of each test image."""
    rng = np.random.Generator(np.random.Philox(key=case.seed))
    found: tuple[list, list] = ([], [])
    for images in case.batches(whole=True):
        size = window(images[0].shape, case.config.crop, case.patch).size
        for view in found:
            crops = np.stack([random_crop(rng, x, size, case.config.scale) for x in images])
            features = case.encoder(filled(crops, case.batch_size))
            view.append(np.asarray(features.image)[: len(images)])
    first, second = (np.concatenate(x) for x in found)
    return first, second


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Of the test images' vectors: `collapse`, the mean cosine of two of them in percent (100 = all
    alike); `collapse_deviation` in percent of an even spread; `collapse_dead`, dimensions that do
    not vary, in percent; `collapse_rank` (RankMe) and `collapse_effective_rank`, in dimensions;
    `collapse_uniformity`, `collapse_alignment` (of two random crops), as their authors give them;
    `collapse_patches`: the mean cosine of two patches of an image, in percent.
    """
    test, maps = case.part("test", "image"), case.part("test", "patches")
    assert test.image is not None and maps.patches is not None
    case.need(len(test.image) > 1, "two test images")
    patches = maps.patches.reshape(len(maps.patches), -1, maps.patches.shape[-1])
    return {
        "collapse": 100 * mean_cosine(test.image),
        "collapse_deviation": 100 * deviation(test.image),
        "collapse_dead": 100 * dead(test.image),
        "collapse_rank": rank_me(test.image),
        "collapse_effective_rank": effective_rank(test.image),
        "collapse_uniformity": uniformity(test.image),
        "collapse_alignment": alignment(*_views(case)),
        "collapse_patches": 100 * float(np.mean([mean_cosine(x) for x in patches])),
    }


register_module(__name__, one_size=True)
