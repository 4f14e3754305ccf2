"""Image retrieval without training.

With `ground_truth`: the revisited Oxford and Paris benchmark (SOP and SOVE table 5, as iBOT and
DINO evaluate it). Without: any labelled set, each test image against all others; what has its label
is relevant.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from ml_collections import ConfigDict
from PIL import Image

from ssl_jax.config import InputError, field, local
from ssl_jax.data.decode import Unreadable
from ssl_jax.evals import revisited
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import neighbours
from ssl_jax.evals.pictures.base import Picture, class_name
from ssl_jax.evals.registry import Protocol, register_module
from ssl_jax.features import native, tokens, windows
from ssl_jax.features.extract import on_all_devices
from ssl_jax.runtime import distributed
from ssl_jax.scores import ranking, streamed
from ssl_jax.scores.metrics import check_classes

_QUERIES, _SHOWN, _SIDE = (
    6,
    8,
    224,
)  # of the picture: queries, neighbours, pixels of the longer side


@dataclasses.dataclass(frozen=True)
class Settings(tokens.Settings):
    """The keys of this type of evaluation."""

    ground_truth: str = field(
        "",
        'the benchmark\'s "gnd_roxford5k.pkl" or "gnd_rparis6k.pkl" (or .json of the same'
        ' content), in data.dir or anywhere; "" = labels say what is relevant',
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
    return _CHANGES | dict(data=data, ground_truth=f"gnd_{name}.pkl")


_SOURCE = "SOP and SOVE table 5"
PROTOCOLS = {
    "oxford": Protocol(_SOURCE, _benchmark("roxford5k")),
    "paris": Protocol(_SOURCE, _benchmark("rparis6k")),
}


# --- features


def shrunk(image: np.ndarray, side: int) -> np.ndarray:
    """uint8 [H, W, 3], smaller by Lanczos resampling so that it fits side x side pixels; as it is
    if it fits, or side is 0."""
    if not side or max(image.shape[:2]) <= side:
        return image
    small = Image.fromarray(image)
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return np.asarray(small)


def scaled(image: np.ndarray, scale: float, patch: int) -> np.ndarray:
    """float32 [H, W, 3] at another scale (bilinear, not antialiased, as DINO does it), without the
    rows and columns at the bottom and the right that fill no patch."""
    size = [int(side * scale) for side in image.shape[:2]]
    if scale != 1:
        size = [max(side, 1) for side in size]
        image = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR)
    height, width = windows.floored((size[0], size[1]), patch)
    return image[:height, :width]


def embed(
    read: Callable[[np.ndarray], Any],
    images: Iterable[np.ndarray],
    *,
    scales: Sequence[float],
    patch: int,
    batch_size: int,
) -> np.ndarray:
    """[n, d] float32 of length 1: each image's mean over its features at the scales.

    read: images [B, H, W, 3] -> [B, d], see `tokens.reader`.
    images: [H, W, 3] uint8, or float in [0, 1], of any size.
    """

    def views() -> Iterator[tuple[int, np.ndarray]]:
        for row, image in enumerate(images):
            whole = windows.unit(image)
            for scale in scales:
                yield row, scaled(whole, scale, patch)

    sums: dict[int, np.ndarray] = {}
    for row, vector in native.encoded(read, views(), batch_size=batch_size):
        sums[row] = sums[row] + vector if row in sums else vector
    if not sums:
        return np.empty((0, 0), np.float32)
    return np.asarray(streamed.normalize(np.stack([sums[row] for row in range(len(sums))])))


# --- what is asked for


class _Gallery(NamedTuple):
    """Features, what each query should find, and where the images are."""

    queries: np.ndarray  # [q, d]
    gallery: np.ndarray  # [n, d]
    wanted: dict[str, list[ranking.Query]]  # by setting
    query_records: np.ndarray  # [q] records of the source
    gallery_records: np.ndarray  # [n]
    titles: list[str]  # of the queries
    boxes: np.ndarray | None  # [q, 4] (left, top, right, bottom): what is cut out of the queries


def settings(truth: revisited.GroundTruth) -> dict[str, list[ranking.Query]]:
    """The three settings of the benchmark: what is relevant, and what is left out of the ranking.

    "easy": easy images, without hard and junk ones. "medium": easy and hard, without junk. "hard":
    hard, without easy and junk. The query's own image is among the junk.
    """
    join = np.concatenate
    entries = list(zip(truth.easy, truth.hard, truth.junk))
    return {
        "medium": [ranking.Query(join([easy, hard]), junk) for easy, hard, junk in entries],
        "hard": [ranking.Query(hard, join([easy, junk])) for easy, hard, junk in entries],
        "easy": [ranking.Query(easy, join([hard, junk])) for easy, hard, junk in entries],
    }


def same_label(labels: np.ndarray) -> list[ranking.Query]:
    """Each of the images against all others: those with its label [n] are relevant."""
    rows = np.arange(len(labels))
    return [ranking.Query(rows[(labels == labels[i]) & (rows != i)], rows[i : i + 1]) for i in rows]


def cut_out(image: np.ndarray, box: np.ndarray) -> np.ndarray:
    """The part of an image within a box (left, top, right, bottom), rounded to whole pixels; all of
    it where the box shows nothing."""
    left, top, right, bottom = (max(0, round(float(x))) for x in box)
    part = image[top:bottom, left:right]
    return part if part.size else image


def _gallery(case: Case) -> _Gallery:
    """Computed once for `run` and `figures`."""
    make = _benchmark_gallery if case.config.ground_truth else _labelled_gallery
    return case.once("retrieval", make)


def _truth(settings: Settings, data: ConfigDict) -> revisited.GroundTruth:
    path = local(settings.ground_truth)
    place = path if path.is_file() else local(data.dir) / path
    return revisited.read(place)


def check(name: str, settings: Settings, data: ConfigDict) -> None:
    """Refuses an evaluation `name` whose ground truth is not there. Raises InputError."""
    if settings.ground_truth:
        try:
            _truth(settings, data)
        except InputError as error:
            raise InputError(f"{name}.ground_truth: {error}") from error


def _benchmark_gallery(case: Case) -> _Gallery:
    c = case.config
    truth = _truth(c, c.data)
    record_of = {Path(case.test.name(i)).stem: i for i in range(len(case.test))}
    missing = [name for name in (*truth.images, *truth.queries) if name not in record_of]
    if missing:
        raise InputError(
            f"{len(missing)} images of {c.ground_truth} are not in {case.test}, the first is"
            f' {missing[0]}; data.dir must be the folder that holds "jpg" with all images'
        )
    images, queries = (
        np.array([record_of[name] for name in names], np.int64)
        for names in (truth.images, truth.queries)
    )
    boxes = truth.boxes if c.crop_queries else None
    return _Gallery(
        _embedded(case, queries, boxes),
        _embedded(case, images),
        settings(truth),
        queries,
        images,
        list(truth.queries),
        boxes,
    )


def _labelled_gallery(case: Case) -> _Gallery:
    records, labels = [], []
    for i in case.chosen("test")[1]:
        try:
            record = case.test[int(i)]
        except Unreadable:
            continue
        if record.get("label") is None:
            raise InputError(
                f"{case.test.name(int(i))} has no label; retrieval needs a labelled set, or"
                " `ground_truth` of the revisited Oxford or Paris benchmark"
            )
        records.append(int(i))
        labels.append(int(record["label"]))
    rows, of_row = np.array(records, np.int64), np.array(labels, np.int64)
    check_classes("retrieval", case.test, [of_row], "labels")
    if len(of_row) == len(np.unique(of_row)):
        raise InputError(
            f"no two of the {len(of_row)} test images share a label, so nothing can be retrieved;"
            " use more of them (test_examples) or another set"
        )
    vectors = _embedded(case, rows)
    class_names = getattr(case.test, "class_names", None)
    titles = [class_name(class_names, label) for label in labels]
    return _Gallery(vectors, vectors, {"": same_label(of_row)}, rows, rows, titles, None)


def _embedded(case, records, boxes=None):
    """Features [n, d] of records of the test set; of the part within a box [n, 4] each."""
    c = case.config
    order = np.arange(len(records))
    mine = distributed.share(order) if case.shared else order

    vectors = embed(
        tokens.reader(on_all_devices(case.encoder), c.tokens, c.layers),
        (_image(case, records[i], None if boxes is None else boxes[i]) for i in mine),
        scales=tuple(c.scales),
        patch=case.patch,
        batch_size=case.batch_size,
    )
    if not case.shared:
        return vectors
    width = max(distributed.told(vectors.shape[1]))
    return distributed.joined(vectors.reshape(len(vectors), width))


def _image(case, record, box=None):
    """An image of the test set as it is shown to the network, before it is scaled."""
    try:
        image = case.test[int(record)]["image"]
    except Unreadable as error:
        raise InputError(f"cannot read an image of the benchmark: {error}") from error
    return shrunk(image if box is None else cut_out(image, box), case.config.fit)


# --- the evaluation


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Mean average precision in percent: `retrieval`, of the benchmark's Medium setting or of a
    labelled set; `retrieval_hard`, `retrieval_easy`, `retrieval_medium` of the benchmark; and the
    mean precision among the first k of each, `retrieval_p5`, `retrieval_hard_p5`.

    Raises InputError for a set without labels, or a ground truth that does not fit it.
    """
    found = _gallery(case)
    result: dict[str, float] = {}
    for setting, wanted in found.wanted.items():
        scores = ranking.evaluate(found.queries, found.gallery, wanted, tuple(case.config.k))
        name = f"retrieval_{setting}" if setting else "retrieval"
        result.setdefault("retrieval", 100.0 * scores.mean_ap)
        result[name] = 100.0 * scores.mean_ap
        result |= {f"{name}_p{k}": 100.0 * value for k, value in scores.precision.items()}
    return result


def figures(case: Case, settings: Settings) -> dict[str, Picture]:
    """{"retrieved": some queries with their nearest images}, as Medium judges them."""
    found = _gallery(case)
    wanted = next(iter(found.wanted.values()))
    able = [i for i in range(len(wanted)) if len(wanted[i].relevant)]
    # of each title one, then the second, ...: not six towers
    turn = [sum(found.titles[j] == found.titles[i] for j in able[:n]) for n, i in enumerate(able)]
    chosen = [able[n] for n in np.argsort(turn, kind="stable")[:_QUERIES]]
    rows, right, titles = [], [], []
    for i in chosen:
        order = ranking.ranking(found.queries[i : i + 1], found.gallery)[0]
        order = order[~np.isin(order, wanted[i].ignored)][:_SHOWN]
        rows.append([_thumbnail(_image(case, found.gallery_records[row])) for row in order])
        right.append(np.isin(order, wanted[i].relevant))
        titles.append([f"{found.queries[i] @ found.gallery[row]:.2f}" for row in order])
    shown = min(map(len, titles))
    queries = [
        _image(case, found.query_records[i], None if found.boxes is None else found.boxes[i])
        for i in chosen
    ]
    marks = np.array([row[:shown] for row in right])
    picture = neighbours.judged_rows(
        [_thumbnail(image) for image in queries],
        rows,
        marks,
        query_titles=[f"query: {found.titles[i]}" for i in chosen],
        titles=titles,
        title=f"Nearest images, with cosine similarity: {100 * marks.mean():.0f} % of those shown"
        " are relevant",
        meaning=("relevant", "not relevant"),
    )
    return {"retrieved": picture}


def _thumbnail(image):
    return windows.unit(shrunk(image, _SIDE) if image.dtype == np.uint8 else image)


register_module(__name__, heading="retrieval mAP", needs="labels")
