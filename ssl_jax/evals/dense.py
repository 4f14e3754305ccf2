"""Dense retrieval: a test patch takes the class of its nearest training patches (Hummingbird; CrIBo
table 1).

CrIBo leaves open the similarity, the votes, the level of the score and the treatment of ignored
pixels. Here: cosine; plain votes, or softmax(similarity / 0.1); training patches whose majority
label is "ignore" are dropped; mIoU over patches and over pixels.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ssl_jax import ops
from ssl_jax.config import InputError, key
from ssl_jax.evals import features, knn
from ssl_jax.evals.case import Case
from ssl_jax.evals.metrics import ABSENT, class_iou, confusion, mean_iou
from ssl_jax.evals.pictures import segmentation
from ssl_jax.evals.pictures.base import IGNORE, Picture
from ssl_jax.evals.registry import register

NEIGHBOURS = 50
TEMPERATURE = 0.1  # of the softmax vote
_SHOWN = 6  # test images of the picture


def defaults() -> dict:
    """The keys of this type of evaluation."""
    return dict(
        k=key(NEIGHBOURS, "nearest patches that vote", "patches", above=0),
        vote=key(
            "plain",
            '"plain", or "softmax" (votes weigh exp(cosine / 0.1))',
            choices=("plain", "softmax"),
        ),
        absent=key(
            "zero",
            'a class that is predicted somewhere but is not in the truth: "zero" counts its IoU as'
            ' 0 (as mmsegmentation), "skip" leaves it out of the mean',
            choices=ABSENT,
        ),
        subsample=key(1, "keep one training image in this many", "images", above=0),
        runs=key(1, "draws of that subsample, averaged", "draws", above=0),
    )


class Retrieval(NamedTuple):
    """Predictions of N test images and their scores."""

    predicted: np.ndarray  # [N, h, w] int32, class of each patch
    truth: np.ndarray  # [N, h, w] int32, majority label of each patch, 255 = ignore
    patch_iou: np.ndarray  # [c] float64, NaN for classes that do not count, see `class_iou`
    pixel_iou: np.ndarray  # the same, predictions enlarged by nearest neighbour to the masks' size


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
            f"masks of {height}x{width} pixels cannot be cut into {h}x{w} equal patches"
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


def nearest_streamed(
    queries: np.ndarray,
    bank: np.ndarray,
    *,
    k: int = NEIGHBOURS,
    query_chunk: int = 2048,
    bank_chunk: int = 65536,
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest rows of `bank` by cosine, exactly; the bank goes to the device in pieces, with
    a running top k.

    Args:
      queries: [q, d], bank: [n, d], on the host. k: limited to n.
      query_chunk, bank_chunk: rows per device call; device memory holds the queries, one piece of
        the bank and [query_chunk, bank_chunk] similarities at most. Results do not depend on them.

    Returns:
      similarity [q, k] float32 (descending), index [q, k] int32 into the bank; equal similarities
      in order of the index.
    """
    if not len(bank) or not len(queries):
        raise ValueError(
            f"nothing to retrieve: {len(queries)} queries, {len(bank)} rows in the bank"
        )
    k, query_chunk = min(k, len(bank)), min(query_chunk, len(queries))
    bank_chunk = max(min(bank_chunk, len(bank)), k)
    pieces = [
        knn.normalize(_padded(queries, start, query_chunk))
        for start in range(0, len(queries), query_chunk)
    ]
    nothing = jnp.full((query_chunk, k), -jnp.inf), jnp.zeros((query_chunk, k), jnp.int32)
    best = [nothing] * len(pieces)
    for start in range(0, len(bank), bank_chunk):
        part = knn.normalize(_padded(bank, start, bank_chunk))
        where = jnp.arange(bank_chunk) < len(bank) - start
        best = [_merge(piece, part, where, start, *b, k=k) for piece, b in zip(pieces, best)]
    similarity, index = (
        np.concatenate([np.asarray(x) for x in xs])[: len(queries)] for xs in zip(*best)
    )
    return similarity, index


def _padded(rows, start, size):
    """`size` rows from `start` on, filled up with zeros, so that every piece has one shape."""
    part = np.asarray(rows[start : start + size], np.float32)
    return np.pad(part, ((0, size - len(part)), (0, 0)))


@functools.partial(jax.jit, static_argnames="k")
def _merge(queries, bank, where, offset, similarity, index, *, k):
    """Top k of the best so far and of this piece of the bank; earlier rows win ties."""
    # Both sides have length 1.
    new_similarity, new_index = ops.nearest(queries, bank, k=k, where=where, metric="dot")
    similarity, best = jax.lax.top_k(jnp.concatenate([similarity, new_similarity], axis=1), k)
    return similarity, jnp.take_along_axis(
        jnp.concatenate([index, new_index + offset], axis=1), best, axis=1
    )


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
    **chunks: int,
) -> np.ndarray:
    """Class [q] int32 of each query patch [q, d] by a vote of its k nearest bank patches [n, d]
    with labels [n].

    Args:
      rule: "plain" (one vote per neighbour) or "softmax" (weights softmax(similarity / 0.1)). Equal
        scores go to the lowest class.
      chunks: see `nearest_streamed`.
    """
    if rule not in ("plain", "softmax"):
        raise ValueError(f'the vote is "plain" or "softmax", got {rule!r}')
    similarity, index = nearest_streamed(queries, bank, k=k, **chunks)
    return np.asarray(
        _vote(
            jnp.asarray(np.asarray(bank_labels, np.int32)[index]),
            similarity,
            num_classes=num_classes,
            rule=rule,
        )
    )


def segment(
    train: np.ndarray,
    train_masks: np.ndarray,
    test: np.ndarray,
    test_masks: np.ndarray,
    *,
    num_classes: int,
    k: int = NEIGHBOURS,
    rule: str = "plain",
    absent: str = "zero",
    **chunks: int,
) -> Retrieval:
    """Labels the patches of test images by retrieval from the training images.

    Args:
      train: [M, h, w, d] patch features, train_masks: [M, H, W] labels (255 = ignore).
      test, test_masks: likewise for N images.
      k, rule, chunks: see `retrieve`. absent: see `class_iou`.

    Raises:
      ValueError: every training patch is ignored, or shapes do not fit.
    """
    dim = train.shape[-1]
    labels = patch_labels(train_masks, train.shape[1:3], num_classes=num_classes).ravel()
    valid = labels != IGNORE
    if not valid.any():
        raise ValueError("every training patch is ignored")
    bank = train.reshape(-1, dim)
    if not valid.all():
        bank, labels = bank[valid], labels[valid]
    truth = patch_labels(test_masks, test.shape[1:3], num_classes=num_classes)
    predicted = retrieve(
        bank, labels, test.reshape(-1, dim), num_classes=num_classes, k=k, rule=rule, **chunks
    ).reshape(truth.shape)
    enlarged = enlarge(predicted, test_masks.shape[1:])
    return Retrieval(
        predicted=predicted,
        truth=truth,
        patch_iou=class_iou(confusion(truth, predicted, num_classes=num_classes), absent),
        pixel_iou=class_iou(confusion(test_masks, enlarged, num_classes=num_classes), absent),
    )


def enlarge(grids: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """[N, h, w] -> [N, H, W] by nearest neighbour; size (H, W) is a multiple of (h, w)."""
    return grids.repeat(size[0] // grids.shape[1], axis=1).repeat(size[1] // grids.shape[2], axis=2)


def num_mask_classes(*masks: np.ndarray) -> int:
    """1 + the largest label in the masks, `ignore` left out."""
    return 1 + max(int(np.where(m == IGNORE, 0, m).max()) for m in masks)


def run(case: Case) -> dict[str, float]:
    """`dense`: patch-level mIoU in percent; `dense_pixel`: pixel-level. Means over `runs` draws of
    one training image in `subsample`, drawn from the seed (CrIBo: 5 draws).

    Raises InputError for a set without masks.
    """
    train, test = case.features("patches")
    if train.masks is None or test.masks is None:
        raise InputError(
            "dense retrieval needs masks; point the evaluation's data at a set with masks, or leave"
            " it out of evals.tasks"
        )
    assert train.patches is not None and test.patches is not None
    c = case.config
    scores = []
    for draw in range(c.runs if c.subsample > 1 else 1):
        count = max(1, len(train.masks) // c.subsample)
        rows = features.subset(len(train.masks), count, case.seed + draw)
        whole = len(rows) == len(train.masks)
        patches, masks = (
            (train.patches, train.masks) if whole else (train.patches[rows], train.masks[rows])
        )
        result = segment(
            patches,
            masks,
            test.patches,
            test.masks,
            num_classes=num_mask_classes(train.masks, test.masks),
            k=c.k,
            rule=c.vote,
            absent=c.absent,
        )
        scores.append((mean_iou(result.patch_iou), mean_iou(result.pixel_iou)))
    patch, pixel = np.mean(scores, axis=0)
    return {"dense": 100.0 * float(patch), "dense_pixel": 100.0 * float(pixel)}


def figures(case: Case) -> dict[str, Picture]:
    """{"segmentation": the first test images, their true classes and those retrieved}."""
    train, test = case.features("patches")
    assert train.patches is not None and test.patches is not None
    assert train.masks is not None and test.masks is not None
    masks = test.masks[:_SHOWN]
    result = segment(
        train.patches,
        train.masks,
        test.patches[:_SHOWN],
        masks,
        num_classes=num_mask_classes(train.masks, test.masks),
        k=case.config.k,
        rule=case.config.vote,
    )
    return {
        "segmentation": segmentation.picture(
            case.images(case.test, test.index[:_SHOWN]),
            masks,
            result.truth,
            result.predicted,
            title=f"Dense retrieval: the class of each patch from its {case.config.k} nearest"
            " training patches",
            class_names=getattr(case.test, "mask_names", None),
        )
    }


register("dense", run, defaults, heading="dense mIoU", needs="masks", figures=figures)
