"""t-SNE of image vectors: which images the network finds alike (SOP figures C.2 and C.3).

A picture first; its score says how far the picture can be trusted.
"""

import dataclasses

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import InputError, field
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures.base import Scatter, class_name
from ssl_jax.evals.registry import Protocol, register_module

_NEIGHBOURS = 5  # whose trustworthiness is measured

PROTOCOLS = {"sop": Protocol("SOP figures C.2 and C.3", {"perplexity": 30.0, "dimensions": 3})}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of this type of evaluation."""

    perplexity: float = field(30.0, "about how many neighbours a point has", above=1, most=10000)
    dimensions: int = field(2, "of the picture", least=2, most=3)


def embed(
    features: ArrayLike, *, perplexity: float = 30.0, dimensions: int = 2, seed: int = 0
) -> np.ndarray:
    """Points [N, dimensions] float32 of rows [N, d]: scikit-learn's t-SNE from a random start
    (van der Maaten & Hinton 2008).

    Raises InputError for no more rows than the perplexity, or fewer than 3.
    """
    from sklearn.manifold import TSNE

    features = np.asarray(features, np.float32)
    if len(features) <= max(perplexity, 2):
        raise InputError(
            f"t-SNE has {len(features)} images; it needs at least 3, and more than the perplexity"
            f" of {perplexity:g}"
        )
    model = TSNE(dimensions, perplexity=perplexity, init="random", random_state=seed)
    return model.fit_transform(features)


def _points(case: Case):
    test = case.part("test", "image")
    image, c = test.image, case.config
    assert image is not None
    how = dict(perplexity=c.perplexity, dimensions=c.dimensions, seed=case.seed)
    return test, case.once("tsne", lambda _: embed(image, **how))


def score(case: Case, settings: Settings) -> dict[str, float]:
    """`tsne`: trustworthiness in percent: 100 where the neighbours in the picture are neighbours
    among the features (Venna & Kaski 2001, scikit-learn)."""
    from sklearn.manifold import trustworthiness

    test, points = _points(case)
    count = min(_NEIGHBOURS, (len(points) - 1) // 2)
    return {"tsne": 100 * float(trustworthiness(test.image, points, n_neighbors=count))}


def figures(case: Case, settings: Settings) -> dict[str, Scatter]:
    """{"tsne": the test images as points, coloured by class where there are classes}."""
    test, points = _points(case)
    labels, names = test.labels, getattr(case.test, "class_names", None)
    known = {} if labels is None else {int(k): class_name(names, int(k)) for k in np.unique(labels)}
    title = f"t-SNE of {len(points)} image vectors, perplexity {case.config.perplexity:g}"
    return {"tsne": Scatter(title, points, labels, tuple(known.items()))}


register_module(__name__)
