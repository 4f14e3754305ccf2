"""Dense retrieval: a test patch takes the class of its nearest training patches (Hummingbird; CrIBo
table 1).

CrIBo leaves open the similarity, the votes, the level of the score and the treatment of ignored
pixels. Here: cosine; plain votes, or softmax(similarity / 0.1); training patches whose majority
label is "ignore" are dropped; mIoU over patches and over pixels. Images may differ in size; the
bank may be larger than the memory of a device or, in a file, of the machine.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import InputError, field
from ssl_jax.evals import knn
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import segmentation
from ssl_jax.evals.pictures.base import Classes, Picture
from ssl_jax.evals.pictures.confusion import picture as picture_of_classes
from ssl_jax.evals.registry import Protocol, register_module
from ssl_jax.features import extract, store, tokens
from ssl_jax.features.store import Grids
from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.scores.metrics import (
    ABSENT,
    check_classes,
    class_iou,
    confusion,
    mean_iou,
    num_classes,
)
from ssl_jax.scores.streamed import BLOCK, nearest_streamed

NEIGHBOURS = 50
TEMPERATURE = 0.1  # of the softmax vote
PROTOCOLS = {
    "cribo": Protocol(
        "CrIBo tables 1 and 4: VOC 2012 (augmented) and ADE20K at their native sizes",
        dict(data=dict(size=0), crop=0, k=NEIGHBOURS, subsample=(1, 8, 64, 128), runs=5),
    )
}
_SHOWN = 6  # test images of the picture


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of this type of evaluation."""

    k: int = field(NEIGHBOURS, "nearest patches that vote", "patches", above=0)
    vote: str = field(
        "plain",
        '"plain", or "softmax" (votes weigh exp(cosine / 0.1))',
        choices=("plain", "softmax"),
    )
    absent: str = field(
        "zero",
        'a class that is predicted somewhere but is not in the truth: "zero" counts its IoU as'
        ' 0 (as mmsegmentation), "skip" leaves it out of the mean',
        choices=ABSENT,
    )
    subsample: tuple[int, ...] = field(
        (1,),
        "keep one training image in this many; each is reported, and the first is the score",
        "images",
        above=0,
    )
    runs: int = field(5, "draws of a subsample above 1, averaged", "draws", above=0)
    layers: int = tokens.layers_field()


class Retrieval(NamedTuple):
    """Predictions of N test images and their scores; lists where the images differ in size."""

    predicted: Any  # [N, h, w] int32, class of each patch
    truth: Any  # [N, h, w] int32, majority label of each patch, 255 = ignore
    patch_iou: np.ndarray  # [c] float64, NaN for classes that do not count, see `class_iou`
    pixel_iou: np.ndarray  # the same, predictions enlarged by nearest neighbour to the masks' size
    patch_counts: np.ndarray  # [c, c] int64, patches by true (row) and predicted class


def patch_labels(
    masks: ArrayLike, grid: tuple[int, int], *, num_classes: int, ignore: int = IGNORE
) -> np.ndarray:
    """Majority label of each patch.

    Args:
      masks: [N, H, W] int in [0, num_classes) or `ignore`.
      grid: (h, w), a partition of the mask into equal patches.

    Returns:
      [N, h, w] int32; a tie goes to the lowest class, and to a class rather than to `ignore`.

    Raises:
      ValueError: the grid does not divide the masks, or a label is out of range.
    """
    masks = np.asarray(masks)
    n, height, width = masks.shape
    h, w = grid
    if height % h or width % w:
        raise ValueError(
            f"masks of {width}x{height} pixels cannot be divided into {w}x{h} equal patches"
        )
    wrong = (masks >= num_classes) & (masks != ignore) | (masks < 0)
    if wrong.any():
        raise ValueError(
            f"mask label {masks[wrong][0]} is neither below {num_classes} nor {ignore} (ignore)"
        )
    patch = np.arange(h * w).reshape(h, w).repeat(height // h, axis=0).repeat(width // w, axis=1)
    result = np.empty((n, h * w), np.int32)
    for i in range(n):
        # "ignore" comes last, so ties go to a class.
        column = np.where(masks[i] == ignore, num_classes, masks[i])
        counts = np.bincount(
            (patch * (num_classes + 1) + column).ravel(), minlength=h * w * (num_classes + 1)
        )
        result[i] = counts.reshape(h * w, num_classes + 1).argmax(axis=1)
    return np.where(result == num_classes, ignore, result).reshape(n, h, w).astype(np.int32)


@functools.partial(jax.jit, static_argnames=("num_classes", "rule"))
def _vote(labels, similarity, *, num_classes, rule):
    weights = (
        jax.nn.softmax(similarity / TEMPERATURE, axis=1)
        if rule == "softmax"
        else jnp.ones_like(similarity)
    )
    return knn.vote(labels, weights, num_classes=num_classes, ks=(labels.shape[1],))[0]


def retrieve(
    bank: np.ndarray,
    bank_labels: ArrayLike,
    queries: np.ndarray,
    *,
    num_classes: int,
    k: int = NEIGHBOURS,
    rule: str = "plain",
    rows: np.ndarray | None = None,
    **chunks: int,
) -> np.ndarray:
    """Class [q] int32 of each query patch [q, d] by a vote of its k nearest bank patches [n, d]
    with labels [n].

    Args:
      rule: "plain" (one vote per neighbour) or "softmax" (weights softmax(similarity / 0.1)). Equal
        scores go to the lowest class.
      rows, chunks: see `nearest_streamed`.
    """
    if rule not in ("plain", "softmax"):
        raise ValueError(f'the vote is "plain" or "softmax", got {rule!r}')
    labels = np.asarray(bank_labels, np.int32)
    classes = []
    for start in range(0, len(queries), BLOCK):
        similarity, index = nearest_streamed(
            queries[start : start + BLOCK], bank, rows=rows, k=k, **chunks
        )
        found = _vote(jnp.asarray(labels[index]), similarity, num_classes=num_classes, rule=rule)
        classes.append(np.asarray(found))
    return np.concatenate(classes)


def segment(
    train: np.ndarray | Grids,
    train_masks: np.ndarray | Grids,
    test: np.ndarray | Grids,
    test_masks: np.ndarray | Grids,
    *,
    num_classes: int,
    k: int = NEIGHBOURS,
    rule: str = "plain",
    absent: str = "zero",
    images: Sequence[int] | np.ndarray | None = None,
    **chunks: int,
) -> Retrieval:
    """Labels the patches of test images by retrieval from the training images.

    Args:
      train: [M, h, w, d] patch features, train_masks: [M, H, W] labels (255 = ignore); or Grids.
      test, test_masks: likewise for N images.
      k, rule, chunks: see `retrieve`. absent: see `class_iou`.
      images: the training images to retrieve from; None: all.

    Raises:
      ValueError: every training patch is ignored, all have one class, or shapes do not fit.
    """
    known = labels_of(train_masks, train, num_classes=num_classes)
    of_image = np.repeat(np.arange(len(known)), [labels.size for labels in known])
    labels = np.concatenate([labels.ravel() for labels in known])
    valid = labels != IGNORE
    if images is not None:
        valid &= np.isin(of_image, images)
    if images is None:
        check_classes("dense", "the training images", [labels], "patches")
    if not valid.any():
        raise ValueError("every training patch is ignored")
    truth = labels_of(test_masks, test, num_classes=num_classes)
    found = retrieve(
        store.rows_of(train),
        labels,
        store.rows_of(test),
        num_classes=num_classes,
        k=k,
        rule=rule,
        rows=None if valid.all() else np.flatnonzero(valid),
        **chunks,
    )
    ends = np.cumsum([labels.size for labels in truth])
    predicted = [
        found[end - labels.size : end].reshape(labels.shape) for labels, end in zip(truth, ends)
    ]
    counts = np.zeros((2, num_classes, num_classes), np.int64)
    for right, guess, mask in zip(truth, predicted, test_masks):
        enlarged = enlarge(guess[None], mask.shape)[0]
        counts[0] += confusion(right, guess, num_classes=num_classes)
        counts[1] += confusion(mask, enlarged, num_classes=num_classes)
    one_size = not isinstance(test, Grids)
    return Retrieval(
        predicted=np.stack(predicted) if one_size else predicted,
        truth=np.stack(truth) if one_size else truth,
        patch_iou=class_iou(counts[0], absent),
        pixel_iou=class_iou(counts[1], absent),
        patch_counts=counts[0],
    )


def labels_of(
    masks: np.ndarray | Grids, patches: np.ndarray | Grids, *, num_classes: int
) -> list[np.ndarray]:
    """[h, w] majority labels of the patches of each image, see `patch_labels`."""
    shapes = [patches[i].shape[:2] for i in range(len(patches))]
    return [
        patch_labels(masks[i][None], shapes[i], num_classes=num_classes)[0]
        for i in range(len(masks))
    ]


def enlarge(grids: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """[N, h, w] -> [N, H, W] by nearest neighbour; size (H, W) is a multiple of (h, w)."""
    return grids.repeat(size[0] // grids.shape[1], axis=1).repeat(size[1] // grids.shape[2], axis=2)


def _classes(case, *masks):
    """Number of classes of the masks. Raises InputError for labels that the set does not name."""
    seen, names = num_classes(*masks), getattr(case.test, "mask_names", None)
    if names and seen > len(names):
        raise InputError(
            f"a mask of {case.test} has class {seen - 1}, but the set names {len(names)} classes,"
            f" 0 to {len(names) - 1}; {IGNORE} means ignore"
        )
    return seen


def _features(case):
    """Training and test features with masks. Raises InputError for a set without masks, or with
    those of one class."""
    train, test = case.features(tokens.DENSE, case.config.layers)
    case.need(train.masks is not None and test.masks is not None, "masks")
    check_classes("dense", case.train, train.masks, "masks")
    return train, test


def score(case: Case, settings: Settings) -> dict[str, float]:
    """`dense`: patch-level mIoU in percent; `dense_pixel`: pixel-level; both with the first
    subsample, and `dense_1in8`, ... with each of several. A subsample above 1 is the mean over
    `runs` draws of training images, drawn from the seed (CrIBo: 5 draws), and `_sd` their standard
    deviation.

    Raises InputError for a set without masks, or with labels that it does not name.
    """
    train, test = _features(case)
    c = case.config
    classes = _classes(case, train.masks, test.masks)
    scores: dict[str, float] = {}
    for part in c.subsample:
        draws = []
        for draw in range(c.runs if part > 1 else 1):
            count = max(1, len(train.masks) // part)
            images = extract.subset(len(train.masks), count, case.seed + draw)
            try:
                result = segment(
                    train.patches,
                    train.masks,
                    test.patches,
                    test.masks,
                    num_classes=classes,
                    k=c.k,
                    rule=c.vote,
                    absent=c.absent,
                    images=None if part == 1 else images,
                )
            except InputError:
                raise
            except ValueError as error:
                raise InputError(
                    f"dense retrieval from one training image in {part} ({count} images): {error}"
                ) from error
            case.extracted.setdefault(case.own("dense"), result)  # the first one, for the pictures
            draws.append((mean_iou(result.patch_iou), mean_iou(result.pixel_iou)))
        patch, pixel = 100.0 * np.mean(draws, axis=0)
        name = "dense" if part == c.subsample[0] else f"dense_1in{part}"
        scores |= {name: float(patch), f"{name}_pixel": float(pixel)}
        if len(draws) > 1:
            scores[f"{name}_sd"] = float(100.0 * np.std(draws, axis=0, ddof=1)[0])
    return scores


def figures(case: Case, settings: Settings) -> dict[str, Picture | Classes]:
    """{"segmentation": the first test images, their true classes and those retrieved;
    "dense_classes": IoU of each class and what its patches are taken for, if it was scored}."""
    train, test = _features(case)
    c, shown = case.config, range(min(_SHOWN, len(test.patches)))
    images = [case.images(case.test, [i])[0] for i in test.index[: len(shown)]]
    masks = [test.masks[i] for i in shown]
    names = getattr(case.test, "mask_names", None)
    scored = case.extracted.get(case.own("dense"))
    if scored is None and isinstance(test.patches, Grids):
        return {}
    result = scored or segment(
        train.patches,
        train.masks,
        test.patches[:_SHOWN],
        test.masks[:_SHOWN],
        num_classes=_classes(case, train.masks, test.masks),
        k=c.k,
        rule=c.vote,
    )
    pictures: dict[str, Picture | Classes] = {
        "segmentation": segmentation.picture(
            images,
            masks,
            [result.truth[i] for i in shown],
            [result.predicted[i] for i in shown],
            title=f"Dense retrieval: the class of each patch from its {c.k} nearest training"
            " patches",
            class_names=names,
        )
    }
    if scored:
        pictures["dense_classes"] = picture_of_classes(
            scored.patch_counts,
            scored.patch_iou,
            names=names,
            title="IoU of each class, and the predicted classes of its patches",
            measure="IoU",
        )
    return pictures


register_module(__name__, heading="dense mIoU", needs="masks")
