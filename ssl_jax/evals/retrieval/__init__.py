"""Image retrieval without training.

With `ground_truth` it is the revisited Oxford and Paris benchmark (SOP and SOVE table 5, with the
protocol of DINO and iBOT). Without it, each image of a labelled test set is a query, for which the
other images with its label are relevant.
"""

from typing import Any

from ml_collections import ConfigDict

from ssl_jax.config import InputError
from ssl_jax.evals.case import Case
from ssl_jax.evals.registry import Protocol, register_module
from ssl_jax.evals.retrieval import gallery, ground_truth, pictures
from ssl_jax.evals.retrieval.settings import Settings
from ssl_jax.methods.pictures.base import Picture
from ssl_jax.scores import ranking

# DINO's script, which iBOT, SOVE and SOP use, encodes whole query images; the benchmark crops them
# to the queried object.
_CHANGES: dict[str, Any] = dict(
    tokens="cls", crop_queries=False, fit=512, scales=(1.0, 2**-0.5, 0.5), k=(1, 5, 10)
)


def _benchmark(name: str) -> dict:
    data = dict(kind="folder", split="jpg", test_split="jpg")
    return _CHANGES | dict(data=data, ground_truth=f"gnd_{name}.json")


_SOURCE = "SOP and SOVE table 5"
PROTOCOLS = {
    "oxford": Protocol(_SOURCE, _benchmark("roxford5k")),
    "paris": Protocol(_SOURCE, _benchmark("rparis6k")),
}


def check(name: str, settings: Settings, data: ConfigDict) -> None:
    """Raises InputError if the ground truth of the evaluation `name` cannot be read."""
    if settings.ground_truth:
        try:
            ground_truth.read(settings.ground_truth, data.dir)
        except InputError as error:
            raise InputError(f"{name}.ground_truth: {error}") from error


def _gallery(case: Case, settings: Settings) -> gallery.Gallery:
    make = gallery.benchmark if settings.ground_truth else gallery.labelled
    return case.cached("retrieval", lambda case: make(case, settings))


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Mean average precision in percent: `retrieval`, of the benchmark's level Medium or of a
    labelled set; `retrieval_hard`, `retrieval_easy`, `retrieval_medium`, of the benchmark's levels.
    For each also the mean precision among the first k: `retrieval_p5`, `retrieval_hard_p5`, ...
    """
    searched = _gallery(case, settings)
    result: dict[str, float] = {}
    for level, targets in searched.targets.items():
        scores = ranking.evaluate(searched.queries, searched.gallery, targets, settings.k)
        name = f"retrieval_{level}" if level else "retrieval"
        result.setdefault("retrieval", 100.0 * scores.mean_ap)
        result[name] = 100.0 * scores.mean_ap
        result |= {f"{name}_p{k}": 100.0 * value for k, value in scores.precision.items()}
    return result


def figures(case: Case, settings: Settings) -> dict[str, Picture]:
    """{"retrieved": some queries with their nearest images, judged by the level Medium}."""
    return {"retrieved": pictures.retrieved(case, settings, _gallery(case, settings))}


register_module(__name__, heading="retrieval mAP", rgb=True, needs="labels")
