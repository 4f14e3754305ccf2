"""Image retrieval without training.

With `ground_truth`: the revisited Oxford and Paris benchmark (SOP and SOVE table 5, as iBOT and
DINO evaluate it). Without: any labelled set, each test image against all others; what has its label
is relevant.
"""

import dataclasses
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ssl_jax.config import InputError, field
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import neighbours
from ssl_jax.evals.pictures.base import Picture
from ssl_jax.evals.registry import Protocol, register_module
from ssl_jax.evals.retrieval import gallery, ground_truth
from ssl_jax.features import tokens, windows
from ssl_jax.features.scales import shrunk
from ssl_jax.scores import ranking

_QUERIES, _SHOWN, _SIDE = 6, 8, 224  # of the picture: queries, neighbours, pixels of a longer side


@dataclasses.dataclass(frozen=True)
class Settings(tokens.Settings):
    """The keys of this type of evaluation."""

    ground_truth: str = field(
        "",
        'the benchmark\'s "gnd_roxford5k.json" or "gnd_rparis6k.json" (its .pkl as JSON, see'
        ' launch/revisited_json.py), in data.dir or anywhere; "" = labels say what is relevant',
        path=True,
        acts="",
    )
    crop_queries: bool = field(True, "crop the benchmark's queries out of their images")
    fit: int = field(
        0,
        "images are shrunk to fit a square of this side, keeping their aspect; 0 = as they are",
        "pixels",
        least=0,
        most=16384,
    )
    scales: tuple[float, ...] = field(
        (1.0,), "an image is the mean over its features at these scales", above=0, most=16
    )
    k: tuple[int, ...] = field(
        ranking.KS, "precision among the first k is reported", "images", above=0
    )


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


def _gallery(case, settings) -> gallery.Gallery:
    make = gallery.benchmark if settings.ground_truth else gallery.labelled
    return case.once("retrieval", lambda case: make(case, settings))


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
    searched = _gallery(case, settings)
    targets, names = next(iter(searched.targets.values())), searched.titles
    able = [i for i in range(len(targets)) if len(targets[i].relevant)]
    turns = neighbours.turns([names[i] for i in able])  # not six towers
    chosen = [able[n] for n in np.argsort(turns, kind="stable")[:_QUERIES]]

    def image(record, box=None):
        shown = gallery.shown(case.test[int(record)]["image"], settings, box)
        return windows.unit(shrunk(shown, _SIDE) if shown.dtype == np.uint8 else shown)

    queries, rows, right, titles = [], [], [], []
    for i in chosen:
        order = ranking.ranking(searched.queries[i : i + 1], searched.gallery)[0]
        order = order[~np.isin(order, targets[i].ignored)][:_SHOWN]
        box = None if searched.boxes is None else searched.boxes[i]
        queries.append(image(searched.query_records[i], box))
        rows.append([image(searched.gallery_records[row]) for row in order])
        right.append(np.isin(order, targets[i].relevant))
        titles.append([f"{searched.queries[i] @ searched.gallery[row]:.2f}" for row in order])
    marks = np.array([row[: min(map(len, titles))] for row in right])
    picture = neighbours.judged_rows(
        queries,
        rows,
        marks,
        query_titles=[f"query: {names[i]}" for i in chosen],
        titles=titles,
        title=f"Nearest images, with cosine similarity: {100 * marks.mean():.0f} % of those shown"
        " are relevant",
        meaning=("relevant", "not relevant"),
    )
    return {"retrieved": picture}


register_module(__name__, heading="retrieval mAP", needs="labels")
