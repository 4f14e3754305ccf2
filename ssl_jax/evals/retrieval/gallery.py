"""What is searched in retrieval: features of queries and of a gallery, and what should be found."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.evals.case import Case
from ssl_jax.evals.classes import check_classes
from ssl_jax.evals.retrieval import ground_truth
from ssl_jax.evals.retrieval.settings import Settings
from ssl_jax.features import derived, scales
from ssl_jax.features.feed import View
from ssl_jax.methods.pictures.base import class_name
from ssl_jax.runtime import distributed
from ssl_jax.scores import normalize, ranking


class Gallery(NamedTuple):
    """Features, what each query should find, and where the images are."""

    queries: np.ndarray  # [q, d] of length 1
    gallery: np.ndarray  # [n, d] of length 1
    targets: dict[str, list[ranking.Query]]  # by setting of the benchmark, or ""
    query_records: np.ndarray  # [q] records of the source
    gallery_records: np.ndarray  # [n]
    titles: Sequence[str]  # of the queries
    boxes: np.ndarray | None  # [q, 4] (left, top, right, bottom): what is cut out of the queries


def benchmark(case: Case, settings: Settings) -> Gallery:
    """The queries and the images of a ground truth. Raises InputError for images that are not
    there."""
    truth = ground_truth.read(settings.ground_truth, case.config.data.dir)
    record_of = {Path(case.test.name(i)).stem: i for i in range(len(case.test))}
    missing = [name for name in (*truth.images, *truth.queries) if name not in record_of]
    if missing:
        raise InputError(
            f"{len(missing)} images of {settings.ground_truth} are not in {case.test}, the first is"
            f' {missing[0]}; data.dir must be the folder that holds "jpg" with all images'
        )
    images, queries = (
        np.array([record_of[name] for name in names], np.int64)
        for names in (truth.images, truth.queries)
    )
    boxes = truth.boxes if settings.crop_queries else None

    def vectors(records, boxes=None):
        rows = distributed.share(np.arange(len(records)), case.shared)
        source = derived.Needed(case.test, "cannot read an image of the benchmark")

        def show(row, record):
            box = None if boxes is None else boxes[rows[row]]
            return View((), shown(record["image"], settings, box))

        return _encoded(case, settings, source, records[rows], show)[0]

    targets = ranking.levels(truth.easy, truth.hard, truth.junk)
    features = vectors(queries, boxes), vectors(images)
    return Gallery(*features, targets, queries, images, truth.queries, boxes)


def labelled(case: Case, settings: Settings) -> Gallery:
    """The test images that can be read, each against all others. Raises InputError for one without
    a label, or labels that no two share."""
    chosen = distributed.share(case.records("test")[1], case.shared)

    def show(row, record):
        number, label = int(chosen[row]), record.get("label")
        if label is None:
            raise InputError(
                f"{case.test.name(number)} has no label; retrieval needs a labelled set, or"
                " `ground_truth` of the revisited Oxford or Paris benchmark"
            )
        return View((number, int(label)), shown(record["image"], settings))

    vectors, facts = _encoded(case, settings, case.test, chosen, show)
    records, labels = facts.reshape(-1, 2).T
    check_classes("retrieval", case.test, [labels], "labels")
    if len(labels) == len(np.unique(labels)):
        raise InputError(
            f"no two of the {len(labels)} test images share a label, so nothing can be retrieved;"
            " use more of them (test_examples) or another set"
        )
    names = case.test.class_names
    titles = [class_name(names, label) for label in labels]
    targets = {"": ranking.same_label(labels)}
    return Gallery(vectors, vectors, targets, records, records, titles, None)


def shown(image: np.ndarray, settings: Settings, box: np.ndarray | None = None) -> np.ndarray:
    """An image as it is shown to the network before it is scaled, or the part of it within a
    box."""
    return scales.shrunk(image if box is None else cut_out(image, box), settings.fit)


def cut_out(image: np.ndarray, box: np.ndarray) -> np.ndarray:
    """The part of an image within a box (left, top, right, bottom), rounded to whole pixels; all of
    it where the box shows nothing."""
    left, top, right, bottom = (max(0, round(float(x))) for x in box)
    part = image[top:bottom, left:right]
    return part if part.size else image


def _encoded(
    case: Case, settings: Settings, source: Any, records: np.ndarray, show: Callable
) -> list[np.ndarray]:
    """Vectors [n, d] of length 1 of the images of all processes, and what `show` says of them."""
    about, sums = scales.encoded(
        case.network,
        source,
        records,
        show,
        scales=settings.scales,
        patch=case.patch,
        kind=settings.tokens,
        layers=settings.layers,
        batch_size=case.batch_size,
    )
    sums, facts = derived.gather_rows([sums, np.array(about, np.int64)], case.shared)
    return [np.asarray(normalize.on_device(sums)), facts]
