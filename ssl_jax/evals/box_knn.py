"""k-NN on patches of the largest box (FLSL tables 5, 6, 9, 11-14: every ablation).

The largest box of an image is divided into 3 x 3 cells; the features of the nine patches at their
centres stand for the image. Each of a test image's nine votes on its own, as in `knn`, among the
nine of every training image; the image is right if any of them names its class.

The class is the label of the image; where a set has none, that of the box. Images without a
visible box are left out.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import InputError, field
from ssl_jax.data import base, decode
from ssl_jax.data.lookup import pixels
from ssl_jax.evals import knn
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import neighbours
from ssl_jax.evals.pictures.base import Panel, Picture, class_name
from ssl_jax.evals.registry import Protocol, register_module
from ssl_jax.features import native, tokens, windows
from ssl_jax.features.extract import on_all_devices
from ssl_jax.runtime import distributed
from ssl_jax.scores import streamed
from ssl_jax.scores.metrics import check_classes

PAPER_K = 140  # 20 * 7
_BELOW = 1e-3  # pixels
_VOTES = 2**26  # votes by class that are held at a time
_SHOWN, _COLUMNS = 12, 6  # test images of the picture, side by side


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of this type of evaluation."""

    k: tuple[int, ...] = field(
        (PAPER_K, *knn.KS),
        "numbers of neighbours; each is reported, and the first is the score",
        "neighbours",
        above=0,
    )
    temperature: float = knn.temperature_field()
    cells: int = field(3, "a box is divided into this many cells along each side", "cells", above=0)
    boxes: str = field(
        "exact",
        'how boxes follow the image: "exact", or as in FLSL\'s script, which scales height and'
        " width to data.size each although the image keeps its aspect",
        choices=("exact", "script"),
    )


_CHANGES: dict[str, Any] = dict(
    data=dict(size=256, test_split="val"), crop=224, temperature=0.07, cells=3
)
_TABLES = "FLSL tables 5, 6, 9, 11-14"
PROTOCOLS = {
    "paper": Protocol(_TABLES, _CHANGES | dict(k=(PAPER_K,), boxes="exact")),
    "script": Protocol(_TABLES, _CHANGES | dict(k=(10, 20, 100, 200), boxes="script")),
}


# --- geometry


def follow(
    boxes: ArrayLike, size: tuple[int, int], *, resize: int = 256, crop: int = 224
) -> np.ndarray:
    """Boxes in an image whose shorter side is resized to `resize` and of which the central square
    of `crop` pixels is kept, cut at its border.

    boxes: [n, 4] (y, x, height, width) in the pixels of the original of `size` (height, width).
    Returns the same as float64 [n, 4]; one that lies outside has no area.
    """
    y, x, side = decode.central_square(*size)
    scale, shift = resize / side, (resize - crop) // 2
    return _mapped(boxes, (scale, scale), (shift + y * scale, shift + x * scale), (crop, crop))


def follow_script(
    boxes: ArrayLike, size: tuple[int, int], *, resize: int = 256, crop: int = 224
) -> np.ndarray:
    """As `follow`, but like FLSL's script: as if the image were squeezed to `resize` x `resize`."""
    shift = (resize - crop) // 2
    return _mapped(boxes, (resize / size[0], resize / size[1]), (shift, shift), (crop, crop))


def _mapped(boxes, scale, shift, window):
    """Boxes times `scale` minus `shift` (for y and x), cut to 0..window; what lies beyond ends just
    before the window does, as in FLSL's script, so that the middle of a whole image belongs to the
    patch above and to the left of it."""
    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    corner = boxes[:, :2] * scale - shift
    opposite = corner + boxes[:, 2:] * scale
    last = np.asarray(window) - _BELOW
    corner, opposite = (np.where(x > window, last, np.maximum(x, 0)) for x in (corner, opposite))
    return np.concatenate([corner, opposite - corner], axis=1)


def centres(box: ArrayLike, cells: int = 3) -> np.ndarray:
    """Centres (y, x) of the cells x cells parts of a box (y, x, height, width): float64
    [cells**2, 2], row by row."""
    y, x, height, width = np.asarray(box, np.float64)
    part = (np.arange(cells) + 0.5) / cells
    rows, columns = np.meshgrid(y + part * height, x + part * width, indexing="ij")
    return np.stack([rows.ravel(), columns.ravel()], axis=1)


def patches_at(points: ArrayLike, patch: int, grid: tuple[int, int]) -> np.ndarray:
    """The patch whose centre is nearest to each point (y, x): int64 [n] into the h * w patches.

    That is the patch which contains the point; points on or beyond the last border belong to the
    last patch.
    """
    places = np.floor(np.asarray(points) / patch).astype(np.int64)
    rows, columns = np.clip(places, 0, np.asarray(grid) - 1).T
    return rows * grid[1] + columns


# --- features and votes


class Selected(NamedTuple):
    """Features of the boxes of N images, P of each."""

    features: np.ndarray  # [N, P, d] float32
    labels: np.ndarray  # [N] int32
    # [N] int64, record of the source
    index: np.ndarray  # type: ignore[assignment]  # hides tuple.index
    points: np.ndarray  # [N, P, 2] float32, (y, x) in 0..1 of the image that was seen


def classify(
    memory: np.ndarray,
    labels: ArrayLike,
    queries: np.ndarray,
    *,
    num_classes: int,
    ks: Collection[int],
    temperature: float = knn.TEMPERATURE,
    **chunks: Any,
) -> dict[int, np.ndarray]:
    """Classes that the features of test images vote for.

    Args:
      memory: [n, p, d] features of the training images, labels: [n] int in [0, num_classes).
      queries: [m, p, d].
      ks: numbers of neighbours; each is limited to n p.
      chunks: see `streamed.nearest_streamed`.

    Returns:
      {k: int32 [m, p]}; equal scores go to the lowest class.
    """
    bank, dim = memory.reshape(-1, memory.shape[-1]), queries.shape[-1]
    of_row = np.repeat(np.asarray(labels, np.int32), memory.shape[1])
    ks = tuple(sorted({min(k, len(bank)) for k in ks}))
    rows = queries.reshape(-1, dim)
    similarity, index = streamed.nearest_streamed(rows, bank, k=ks[-1], **chunks)
    chunk = max(1, _VOTES // num_classes)
    how: dict[str, Any] = dict(num_classes=num_classes, ks=ks, temperature=temperature)
    winners = knn.winners(of_row[index], similarity, chunk=chunk, **how)
    return {k: predicted.reshape(queries.shape[:2]) for k, predicted in winners.items()}


def select(
    network: Callable[[np.ndarray], Any],
    source: Any,
    indices: ArrayLike,
    *,
    patch: int,
    batch_size: int,
    resize: int = 0,
    crop: int = 0,
    boxes: str = "exact",
    cells: int = 3,
    shared: bool = True,
) -> Selected:
    """Features of the largest box of each image that has one.

    Of several boxes the one that shows most after resizing and cropping counts.

    Args:
      source: records as they are stored, see `Prepared.unresized`.
      resize: the shorter side; 0: as stored. crop: 0: all of the image, cut to a multiple of the
        patch.
      boxes: "exact" or "script", see `follow`. shared: see `features.extract`.

    Raises:
      InputError: no record has a box, or one has neither a label nor one for its boxes.
    """
    indices = np.asarray(indices, np.int64)
    mine = distributed.share(indices) if shared else indices
    what: list[tuple] = []  # (record, label, points) of each image

    def images() -> Iterator[tuple[tuple, np.ndarray]]:
        for i in map(int, mine):
            try:
                record = source[i]
            except decode.Unreadable:
                continue
            mapped, image = _seen(record, resize, crop, patch, boxes, source.name(i))
            areas = mapped[:, 2] * mapped[:, 3]
            if not len(areas) or not areas.max():
                continue
            best = int(areas.argmax())
            points = centres(mapped[best], cells)
            grid = image.shape[0] // patch, image.shape[1] // patch
            row = len(what)
            label = _label(record, best, source.name(i))
            what.append((i, label, points / image.shape[:2]))
            yield (row, patches_at(points, patch, grid)), windows.unit(image)

    rows: dict[int, np.ndarray] = {}
    read = tokens.reader(on_all_devices(network), tokens.DENSE)
    for (row, places), patches in native.encoded(read, images(), batch_size=batch_size):
        rows[row] = patches.reshape(-1, patches.shape[-1])[places]
    count = cells**2
    dim = next(iter(rows.values())).shape[-1] if rows else 0
    if shared:
        dim = max(distributed.told(dim))
    if not dim:
        raise InputError(
            f"no image of {source} shows a box; the box-aligned k-NN needs a set with"
            " boxes, or leave it out of evals.tasks"
        )
    columns = (
        np.array([rows[row] for row in range(len(rows))], np.float32).reshape(-1, count, dim),
        np.array([label for _, label, _ in what], np.int32),
        np.array([i for i, _, _ in what], np.int64),
        np.array([points for _, _, points in what], np.float32).reshape(-1, count, 2),
    )
    return Selected(*(distributed.joined(x) if shared else x for x in columns))


def _seen(record, resize, crop, patch, boxes, name=""):
    """The boxes [n, 4] of a record in the image that the network sees, and that image."""
    image, stored = record["image"], np.asarray(record.get("boxes", ()), np.float64)
    if stored.size % 4 or not np.isfinite(stored).all() or (stored.reshape(-1, 4)[:, 2:] < 0).any():
        raise InputError(
            f"{name} has the boxes {stored.tolist()}; expected [n, 4]: y, x, height, width"
        )
    stored = stored.reshape(-1, 4)
    size = image.shape[:2]
    if resize:
        image = decode.resize_square(image, resize)
    kept = windows.floored((crop, crop) if crop else image.shape[:2], patch)
    if kept[0] > image.shape[0] or kept[1] > image.shape[1]:
        raise InputError(
            f"the evaluation crop is {crop} pixels but the images are"
            f" {pixels(image.shape)}; use a larger `size` or a smaller crop"
        )
    top, left = ((a - b) // 2 for a, b in zip(image.shape[:2], kept))
    if resize and boxes == "script":
        mapped = follow_script(stored, size, resize=resize, crop=kept[0])
    elif resize:
        mapped = follow(stored, size, resize=resize, crop=kept[0])
    else:
        mapped = _mapped(stored, (1, 1), (top, left), kept)
    return mapped, image[top : top + kept[0], left : left + kept[1]]


def _label(record, box, name):
    """The class of a record: its own, or that of the box."""
    if record.get("label") is not None:
        return int(record["label"])
    of_boxes = record.get("box_labels", record.get("labels"))
    if of_boxes is None:
        raise InputError(
            f"{name} has boxes but neither a label nor labels of its boxes; the box-aligned k-NN"
            " needs one of them"
        )
    if len(of_boxes) <= box:
        raise InputError(f"{name} has {len(of_boxes)} box labels, but a box {box}")
    return int(of_boxes[box])


# --- the evaluation


class _Result(NamedTuple):
    """What `run` finds and `figures` shows."""

    predicted: dict[int, np.ndarray]  # k -> [M, P]
    labels: np.ndarray  # [M]
    records: np.ndarray  # [M]
    points: np.ndarray  # [M, P, 2]


def _result(case: Case) -> _Result:
    c = case.config
    parts = []
    for name in ("train", "test"):
        source, records = case.chosen(name)
        stored, resize = _unresized(source, c.data.size)
        parts.append(
            select(
                case.encoder,
                stored,
                records,
                patch=case.patch,
                batch_size=case.batch_size,
                resize=resize,
                crop=c.crop,
                boxes=c.boxes,
                cells=c.cells,
                shared=case.shared,
            )
        )
    train, test = parts
    case.need(min(train.labels.min(), test.labels.min()) >= 0, "labels from 0 on")
    check_classes("box_knn", case.train, [train.labels], "labels")
    predicted = classify(
        train.features,
        train.labels,
        test.features,
        num_classes=1 + int(max(train.labels.max(), test.labels.max())),
        ks=tuple(c.k),
        temperature=c.temperature,
    )
    first = c.k[0] if c.k[0] in predicted else max(predicted)  # more than there are: all
    predicted = {first: predicted[first], **predicted}
    return _Result(predicted, test.labels, test.index, test.points)


def score(case: Case, settings: Settings) -> dict[str, float]:
    """`box_knn_k20` and so on: share of test images with a visible box of which any feature names
    the class, in percent; `box_knn`: with the first k; `box_knn_best`: the best of several on the
    test images.

    Raises InputError for a set without boxes.
    """
    result = case.once("box_knn", _result)
    accuracy = {
        f"box_knn_k{k}": 100.0 * float((p == result.labels[:, None]).any(axis=1).mean())
        for k, p in result.predicted.items()
    }
    best = {"box_knn_best": max(accuracy.values())} if len(accuracy) > 1 else {}
    return {"box_knn": next(iter(accuracy.values())), **best, **accuracy}


def figures(case: Case, settings: Settings) -> dict[str, Picture]:
    """{"box_neighbours": the first test images, the points whose patches voted, and how many of
    them name the class}."""
    result, c = case.once("box_knn", _result), case.config
    k, predicted = next(iter(result.predicted.items()))
    panels = []
    for i in range(min(_SHOWN, len(result.labels))):
        label = int(result.labels[i])
        votes = int((predicted[i] == label).sum())
        color, mark = neighbours.judged(votes > 0)
        name = class_name(_names(case.test), label)
        stored, resize = _unresized(case.test, c.data.size)
        record = stored[int(result.records[i])]
        _, image = _seen(record, resize, c.crop, case.patch, c.boxes)
        panels.append(
            Panel(
                windows.unit(image),
                marks=tuple(map(tuple, result.points[i])),
                title=f"{mark} {name}: {votes} of {predicted.shape[1]} say so",
                frame=color,
            )
        )
    rows = tuple(tuple(panels[i : i + _COLUMNS]) for i in range(0, len(panels), _COLUMNS))
    title = f"Patches at the centres of the cells of the largest box; {k} neighbours of each vote"
    return {"box_neighbours": Picture(title, rows)}


def _unresized(source, size):
    """The source of the records as they are stored, and to what to resize them; (source, 0) for
    one that has its size already, as embedded sets do."""
    stored = base.unresized(source)
    return stored, 0 if stored is source else size


def _names(source):
    """Names of the classes: of the images, else of the boxes."""
    return getattr(source, "class_names", None) or getattr(source, "box_names", None)


register_module(__name__, heading="box k-NN", needs="boxes", share=True)
