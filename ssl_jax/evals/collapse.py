"""Measures of collapse: whether features are the same for all images, or use few dimensions. They
need no labels.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from ssl_jax.config import field
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import register_module
from ssl_jax.evals.stability import SCALE
from ssl_jax.features.windows import filled, window
from ssl_jax.scores import collapse
from ssl_jax.scores.stability import random_crop


@dataclasses.dataclass(frozen=True)
class Settings:
    scale: tuple[float, ...] = field(
        SCALE,
        "(least, largest) share of the image's area in the two random crops that measure alignment",
        above=0,
        most=1,
    )


def _views(case: Case, scale: Sequence[float]) -> Iterable[np.ndarray]:
    """Features [N, d] of two random crops of each test image."""
    rng = np.random.Generator(np.random.Philox(key=case.seed))
    views: tuple[list, list] = ([], [])
    for images in case.batches(whole=True):
        size = window(images[0].shape, case.config.crop, case.patch).size
        for view in views:
            crops = np.stack([random_crop(rng, x, size, scale) for x in images])
            features = case.network(filled(crops, case.batch_size))
            view.append(np.asarray(features.image)[: len(images)])
    return map(np.concatenate, views)


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Scores of the test images' vectors, see `scores.collapse`: `collapse`, the mean cosine of
    pairs in percent (100 = all equal); `collapse_deviation`, in percent of an even spread;
    `collapse_dead`, dimensions that do not vary, in percent; `collapse_rank` (RankMe) and
    `collapse_effective_rank`, in dimensions; `collapse_uniformity` and `collapse_alignment` (of two
    random crops), in their authors' units; `collapse_patches`, the mean cosine of two patches of an
    image, in percent.
    """
    vectors, maps = case.features("test", "image").image, case.features("test", "patches").patches
    case.need(len(vectors) > 1, "two test images")
    patches = maps.reshape(len(maps), -1, maps.shape[-1])
    return {
        "collapse": 100 * collapse.mean_cosine(vectors),
        "collapse_deviation": 100 * collapse.deviation(vectors),
        "collapse_dead": 100 * collapse.dead(vectors),
        "collapse_rank": collapse.rank_me(vectors),
        "collapse_effective_rank": collapse.effective_rank(vectors),
        "collapse_uniformity": collapse.uniformity(vectors),
        "collapse_alignment": collapse.alignment(*_views(case, settings.scale)),
        "collapse_patches": 100 * float(np.mean([collapse.mean_cosine(x) for x in patches])),
    }


_LOWER = ("", "_dead", "_uniformity", "_alignment", "_patches")
register_module(__name__, one_size=True, lower=_LOWER)
