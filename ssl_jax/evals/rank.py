"""RankMe: the effective rank of image features, a label-free meter of collapse. Of images without
labels, their nearest neighbours are drawn (with labels `knn` does so).
"""

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax import ops
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import neighbours
from ssl_jax.evals.pictures.base import Picture
from ssl_jax.evals.registry import BASELINES, NoSettings, register_module
from ssl_jax.features.extract import subset
from ssl_jax.scores.streamed import normalize

_QUERIES, _SHOWN = 6, 8  # of the picture: test images, neighbours of each
_SEARCHED = 10000  # training images among which these are looked for, at most


def rank_me(features: ArrayLike) -> float:
    """exp of the entropy of the normalised singular values of [N, d]: 1 (collapsed) to min(N, d).

    Source: Garrido et al. 2023, "RankMe", eq. 1.
    """
    s = np.linalg.svd(np.asarray(features, np.float64), compute_uv=False)
    p = s / (s.sum() + 1e-7) + 1e-7
    return float(np.exp(-(p * np.log(p)).sum()))


def score(case: Case, settings: NoSettings) -> dict[str, float]:
    """`rank`: RankMe of the test images' features (not in percent)."""
    test = case.part("test")
    assert test.image is not None
    return {"rank": rank_me(test.image)}


def figures(case: Case, settings: NoSettings) -> dict[str, Picture]:
    """{"neighbours": some test images with their nearest training images}; {} where both parts have
    labels, by which `knn` can say which are right."""
    if case.train.num_classes is not None and case.test.num_classes is not None:
        return {}
    count = min(case.config.train_examples or _SEARCHED, _SEARCHED)
    train = case.of(case.train, subset(len(case.train), count, case.seed))
    test = case.part("test")
    assert train.image is not None and test.image is not None
    shown = min(_SHOWN, len(train.image))
    queries, bank = normalize(test.image[:_QUERIES]), normalize(train.image)
    similarity, index = map(np.asarray, ops.nearest(queries, bank, k=shown, metric="dot"))
    images = [case.images(case.train, train.index[row]) for row in index]
    shown_queries = case.images(case.test, test.index[:_QUERIES])
    return {"neighbours": neighbours.unjudged(shown_queries, images, similarity)}


# Of pixels it would count other dimensions, of which there are thousands.
register_module(__name__, heading="RankMe, dimensions", baselines=BASELINES[:1])
