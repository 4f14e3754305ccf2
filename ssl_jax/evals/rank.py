"""RankMe: the effective rank of image features, a label-free meter of collapse."""

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import register


def rank_me(features: ArrayLike) -> float:
    """exp of the entropy of the normalised singular values of [N, d]: 1 (collapsed) to min(N, d).

    Source: Garrido et al. 2023, "RankMe", eq. 1.
    """
    s = np.linalg.svd(np.asarray(features, np.float64), compute_uv=False)
    p = s / (s.sum() + 1e-7) + 1e-7
    return float(np.exp(-(p * np.log(p)).sum()))


def run(case: Case) -> dict[str, float]:
    """`rank`: RankMe of the test images' features (not in percent)."""
    test = case.part("test")
    assert test.image is not None
    return {"rank": rank_me(test.image)}


register("rank", run, dict)
