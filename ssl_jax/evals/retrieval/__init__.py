"""Image retrieval without training.

With `ground_truth`: the revisited Oxford and Paris benchmark (SOP and SOVE table 5, as iBOT and
DINO evaluate it). Without: any labelled set, each test image against all others; what has its label
is relevant.
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

# DINO's script, which iBOT, SOVE and SOP use, computes queries from whole images; the benchmark
# itself cuts them out.
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
    """Refuses an evaluation `name` whose ground truth is not there. Raises InputError."""
    if settings.ground_truth:
        try:
            ground_truth.read(settings.ground_truth, data.dir)
        except InputError as error:
            raise InputError(f"{name}.ground_truth: {error}") from error


def _gallery(case: Case, settings: Settings) -> gallery.Gallery:
    make = gallery.benchmark if settings.ground_truth else gallery.labelled
    return case.cached("retrieval", lambda case: make(case, settings))


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Mean average precision in percent: `retrieval`, of the benchmark's Medium setting or of a
    labelled set; `retrieval_hard`, `retrieval_easy`, `retrieval_medium` of the benchmark; and the
    mean precision among the first k of each, `retrieval_p5`, `retrieval_hard_p5`.

    Raises InputError for a set without labels, or a ground truth that does not fit it.
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
    """{"retrieved": some queries with their nearest images}, as Medium judges them."""
    return {"retrieved": pictures.retrieved(case, settings, _gallery(case, settings))}


register_module(__name__, heading="retrieval mAP", rgb=True, needs="labels")
