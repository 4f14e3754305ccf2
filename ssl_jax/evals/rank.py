"""RankMe: the effective rank of image features, a measure of collapse without labels. For images
without labels it also draws nearest neighbours, as `knn` does for images with labels.
"""

import numpy as np

from ssl_jax import ops
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import neighbours
from ssl_jax.evals.registry import BASELINES, NoSettings, register_module
from ssl_jax.features.monitored import subset
from ssl_jax.methods.pictures.base import Picture
from ssl_jax.scores import normalize
from ssl_jax.scores.collapse import rank_me

_QUERIES, _SHOWN = 6, 8  # of the picture: test images, neighbours of each
_SEARCHED = 10000  # training images among which neighbours are searched, at most


def score(case: Case, settings: NoSettings) -> dict[str, float]:
    """`rank`, RankMe of the test images' features, in dimensions."""
    return {"rank": rank_me(case.features("test").image)}


def figures(case: Case, settings: NoSettings) -> dict[str, Picture]:
    """{"neighbours": some test images with their nearest training images}; {} if both parts have
    labels, for which `knn` draws this picture."""
    if case.train.num_classes is not None and case.test.num_classes is not None:
        return {}
    count = min(case.config.train_examples or _SEARCHED, _SEARCHED)
    train = case.features_of(case.train, subset(len(case.train), count, case.seed))
    test = case.features("test")
    k = min(_SHOWN, len(train.image))
    queries, bank = map(normalize.on_device, (test.image[:_QUERIES], train.image))
    similarity, index = map(np.asarray, ops.nearest(queries, bank, k=k, metric="dot"))
    images = [case.images(case.train, train.index[row]) for row in index]
    picture = neighbours.rows(
        case.images(case.test, test.index[:_QUERIES]),
        images,
        [[f"{x:.3f}" for x in cosines] for cosines in similarity],
        query_titles=["query"] * len(images),
        title="Nearest training images, with cosine similarity",
    )
    return {"neighbours": picture}


# No raw-pixel baseline: its rank would be among thousands of other dimensions.
register_module(__name__, heading="RankMe, dimensions", baselines=BASELINES[:1])
