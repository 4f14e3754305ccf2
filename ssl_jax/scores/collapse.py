"""Measures of collapse: whether features are the same for all images, or use few dimensions. All
raise ValueError for features that are not finite.
"""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.scores import checked, normalize

_DEAD = 0.01  # a dimension is dead below this share of the root mean square of all deviations
_ROWS = 1024  # rows whose pairs are computed at once


def _wide(features):
    return checked.finite(np.asarray(features, np.float64), "features")


def _unit(features):
    return normalize.on_host(_wide(features))


def mean_cosine(features: ArrayLike) -> float:
    """Mean cosine of all pairs of different rows of [N, d], N >= 2: 1 = all rows have the same
    direction, 0 = no preferred direction."""
    unit = _unit(features)
    n = len(unit)
    return float((np.square(unit.sum(axis=0)).sum() - np.square(unit).sum()) / (n * (n - 1)))


def deviation(features: ArrayLike) -> float:
    """Mean over dimensions of the standard deviation of unit rows of [N, d], times sqrt(d): 0 = all
    equal, 1 = spread evenly (Chen & He 2021, "SimSiam", figure 2)."""
    unit = _unit(features)
    return float(unit.std(axis=0).mean() * np.sqrt(unit.shape[1]))


def dead(features: ArrayLike) -> float:
    """Share of dimensions of [N, d] whose standard deviation is below 1 % of the root mean square
    of all deviations; 1 if nothing varies."""
    values = _wide(features)
    spread = values.std(axis=0)
    # The rounding error of a constant counts as no variation.
    least = max(_DEAD * np.sqrt(np.square(spread).mean()), 1e-7 * np.abs(values).max())
    return float((spread <= least).mean())


def rank_me(features: ArrayLike) -> float:
    """exp of the entropy of the normalised singular values of [N, d]: 1 (collapsed) to min(N, d).

    Source: Garrido et al. 2023, "RankMe", eq. 1.
    """
    s = np.linalg.svd(_wide(features), compute_uv=False)
    p = s / (s.sum() + 1e-7) + 1e-7
    return float(np.exp(-(p * np.log(p)).sum()))


def effective_rank(features: ArrayLike) -> float:
    """exp of the entropy of the normalised singular values of the CENTRED rows [N, d]: from 1 to
    min(N - 1, d), 0 if all rows are equal (Roy & Vetterli 2007). `rank_me` does not centre, so a
    common direction of all rows lowers it."""
    values = _wide(features)
    s = np.linalg.svd(values - values.mean(axis=0), compute_uv=False)
    if s[0] <= 1e-9 * max(np.abs(values).max(), 1e-300) * np.sqrt(values.size):
        return 0.0
    p = s[s > 0] / s.sum()
    return float(np.exp(-(p * np.log(p)).sum()))


def uniformity(features: ArrayLike) -> float:
    """log of the mean of exp(-2 |x - y|^2) over pairs of different unit rows [N, d]: 0 = all equal,
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
    """Mean of |x - y|^2 over the pairs of unit rows of two views [N, d]: 0 = equal, 2 = unrelated
    (Wang & Isola 2020, section 4.1.1)."""
    return float(np.square(_unit(first) - _unit(second)).sum(axis=1).mean())
