"""Features of queries and of a gallery, and the gallery's images relevant to each query."""

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
    """Queries and gallery, with their records and targets."""

    queries: np.ndarray  # [q, d], L2-normalised
    gallery: np.ndarray  # [n, d], L2-normalised
    targets: dict[str, list[ranking.Query]]  # by level of the benchmark, or under ""
    query_records: np.ndarray  # [q] records of the source
    gallery_records: np.ndarray  # [n] records of the source
    titles: Sequence[str]  # of the queries
    boxes: np.ndarray | None  # [q, 4] (left, top, right, bottom), to which queries are cropped


def benchmark(case: Case, settings: Settings) -> Gallery:
    """Encodes the queries and images of a ground truth. Raises InputError for missing images."""
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

    source = derived.Needed(case.test, "cannot read an image of the benchmark")

    def vectors(records, boxes=None):
        def show(row, record):
            box = None if boxes is None else boxes[row]
            return View((), shown(record["image"], settings, box))

        return _encoded(case, settings, source, records, show)[0]

    targets = ranking.levels(truth.easy, truth.hard, truth.junk)
    features = vectors(queries, boxes), vectors(images)
    return Gallery(*features, targets, queries, images, truth.queries, boxes)


def labelled(case: Case, settings: Settings) -> Gallery:
    """Encodes the readable test images, each of which is a query for all others. Raises InputError
    if an image has no label, or no two images share one."""
    chosen = case.records("test").indices

    def show(row, record):
        number, label = int(chosen[row]), record.get("label")
        if label is None:
            raise InputError(
                f"{case.test.name(number)} has no label; retrieval needs labels or a `ground_truth`"
            )
        return View((number, int(label)), shown(record["image"], settings))

    vectors, facts = _encoded(case, settings, case.test, chosen, show)
    records, labels = facts.reshape(-1, 2).T
    check_classes("retrieval", case.test, [labels], "labels")
    if len(labels) == len(np.unique(labels)):
        raise InputError(
            f"no two of the {len(labels)} test images share a label; use more of them"
            " (test_examples) or another set"
        )
    titles = [class_name(case.test.class_names, label) for label in labels]
    targets = {"": ranking.same_label(labels)}
    return Gallery(vectors, vectors, targets, records, records, titles, None)


def shown(image: np.ndarray, settings: Settings, box: np.ndarray | None = None) -> np.ndarray:
    """Crops an image to a box, if given, and shrinks it to `settings.fit`, before scaling."""
    return scales.shrunk(image if box is None else cut_out(image, box), settings.fit)


def cut_out(image: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Crops an image to a box (left, top, right, bottom), rounded to whole pixels. Returns the
    whole image if the box is empty."""
    left, top, right, bottom = (max(0, round(float(x))) for x in box)
    part = image[top:bottom, left:right]
    return part if part.size else image


def _encoded(
    case: Case, settings: Settings, source: Any, records: np.ndarray, show: Callable
) -> list[np.ndarray]:
    """Encodes images, divided among the processes: [unit vectors [n, d], numbers that `show`, a
    function (row, record) -> View, put into its views]."""
    rows = distributed.share(np.arange(len(records)), case.shared)
    about, sums = scales.encoded(
        case.network,
        source,
        records[rows],
        lambda row, record: show(int(rows[row]), record),
        scales=settings.scales,
        patch=case.patch,
        kind=settings.tokens,
        layers=settings.layers,
        batch_size=case.batch_size,
    )
    sums, facts = derived.gather_rows([sums, np.array(about, np.int64)], case.shared)
    return [np.asarray(normalize.on_device(sums)), facts]
