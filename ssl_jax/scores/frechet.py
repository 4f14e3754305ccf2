"""The Fréchet distance of two sets of features, as in FID (Heusel et al. 2017)."""

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import InputError


class Moments:
    """Accumulates mean and covariance of batches of rows in float64."""

    def __init__(self, dim: int):
        self.count, self._origin = 0, np.zeros(dim)
        self._sum, self._products = np.zeros(dim), np.zeros((dim, dim))

    def add(self, rows: ArrayLike) -> None:
        """Adds rows [n, dim]."""
        rows = np.asarray(rows, np.float64)
        if not self.count and len(rows):
            # Sums about a point near the mean avoid cancellation for large features.
            self._origin = rows.mean(axis=0)
        rows = rows - self._origin
        self.count += len(rows)
        self._sum += rows.sum(axis=0)
        self._products += rows.T @ rows

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean [dim] and covariance [dim, dim], divided by count - 1 as in FID. Raises InputError
        for fewer than 2 rows."""
        if self.count < 2:
            raise InputError(
                f"a Fréchet distance needs at least 2 images, got {self.count}; raise test_examples"
            )
        shift = self._sum / self.count
        covariance = (self._products - self.count * np.outer(shift, shift)) / (self.count - 1)
        return self._origin + shift, covariance


def distance(
    first_mean: ArrayLike, first_cov: ArrayLike, second_mean: ArrayLike, second_cov: ArrayLike
) -> float:
    """|m_1 - m_2|^2 + tr(C_1 + C_2 - 2 (C_1 C_2)^(1/2)): the squared 2-Wasserstein distance of two
    normal distributions, in float64, not below 0.

    The trace is computed from the symmetric (C_1^(1/2) C_2 C_1^(1/2))^(1/2), which has the same
    one, so that singular covariances (fewer images than dimensions) need no correction.

    Args:
      means [d], covariances [d, d], symmetric and positive semidefinite.

    Raises:
      ValueError: shapes do not fit, or a value is not finite.
    """
    m1, c1, m2, c2 = (
        np.asarray(x, np.float64) for x in (first_mean, first_cov, second_mean, second_cov)
    )
    (d,) = m1.shape
    if m2.shape != (d,) or c1.shape != (d, d) or c2.shape != (d, d):
        raise ValueError(
            f"means {m1.shape} and {m2.shape} and covariances {c1.shape} and {c2.shape} must be"
            " [d] and [d, d]"
        )
    if not all(np.isfinite(x).all() for x in (m1, c1, m2, c2)):
        raise ValueError("a mean or covariance is not finite")
    values, vectors = np.linalg.eigh(c1)
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    inner = root @ c2 @ root
    overlap = np.sqrt(np.maximum(np.linalg.eigvalsh((inner + inner.T) / 2), 0)).sum()
    result = np.square(m1 - m2).sum() + np.trace(c1) + np.trace(c2) - 2 * overlap
    return max(float(result), 0.0)  # rounding may make it negative for two equal sets
