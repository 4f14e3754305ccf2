"""t-SNE of image vectors: which images the network finds alike (SOP figures C.2 and C.3).

A picture first; its score says how far the picture can be trusted.
"""

import dataclasses

import numpy as np

from ssl_jax.config import InputError, field
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import Protocol, register_module
from ssl_jax.features.extract import Extracted
from ssl_jax.methods.pictures.base import Scatter, class_name
from ssl_jax.scores import tsne

PROTOCOLS = {"sop": Protocol("SOP figures C.2 and C.3", {"perplexity": 30.0, "dimensions": 3})}


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of this type of evaluation."""

    perplexity: float = field(30.0, "about how many neighbours a point has", above=1, most=10000)
    dimensions: int = field(2, "of the picture", least=2, most=3)


def _points(case: Case, settings: Settings) -> tuple[Extracted, np.ndarray]:
    """The test images' vectors, and a point for each. Raises InputError for too few of them."""
    test = case.features("test", "image")

    def embedded(case):
        how = dict(perplexity=settings.perplexity, dimensions=settings.dimensions, seed=case.seed)
        try:
            return tsne.embed(test.image, **how)
        except ValueError as error:
            raise InputError(f"{error}; raise test_examples or lower perplexity") from error

    return test, case.cached("tsne", embedded)


def score(case: Case, settings: Settings) -> dict[str, float]:
    """`tsne`: trustworthiness in percent: 100 where the neighbours in the picture are neighbours
    among the features (Venna & Kaski 2001, scikit-learn)."""
    test, points = _points(case, settings)
    return {"tsne": 100 * tsne.trust(test.image, points)}


def figures(case: Case, settings: Settings) -> dict[str, Scatter]:
    """{"tsne": the test images as points, coloured by class where there are classes}."""
    test, points = _points(case, settings)
    labels, names = test.labels, case.test.class_names
    classes = () if labels is None else np.unique(labels).tolist()
    legend = tuple((label, class_name(names, label)) for label in classes)
    title = f"t-SNE of {len(points)} image vectors, perplexity {settings.perplexity:g}"
    return {"tsne": Scatter(title, points, labels, legend)}


register_module(__name__)
