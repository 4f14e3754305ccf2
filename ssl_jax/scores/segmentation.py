"""Segmentation by retrieval: a test patch takes the class of its nearest training patches
(Hummingbird; CrIBo table 1).

CrIBo does not state the similarity, the vote, whether pixels or patches are scored, and how ignored
pixels are treated. Here the similarity is the cosine; votes are equal, or weighted by
softmax(similarity / 0.1); training patches whose majority label is "ignore" are dropped; and mIoU
is computed over patches and over pixels. Images may differ in size; the bank may be larger than
device memory or, in a file, than host memory.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.features.store import Grids
from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.scores import neighbours
from ssl_jax.scores.metrics import class_iou, confusion

NEIGHBOURS = 50


class Retrieval(NamedTuple):
    """Predictions for N test images and their scores; `predicted` and `truth` are lists if the
    images differ in size."""

    predicted: Any  # [N, h, w] int32, class of each patch
    truth: Any  # [N, h, w] int32, majority label of each patch, 255 = ignore
    patch_iou: np.ndarray  # [c] float64, IoU over patches, see `class_iou`
    pixel_iou: np.ndarray  # [c] float64, IoU over pixels, predictions enlarged to the masks
    patch_counts: np.ndarray  # [c, c] int64, patches by true (row) and predicted class


def patch_labels(
    masks: ArrayLike, grid: tuple[int, int], *, num_classes: int, ignore: int = IGNORE
) -> np.ndarray:
    """Majority label of each patch.

    Args:
      masks: [N, H, W] int in [0, num_classes) or `ignore`.
      grid: (h, w), a partition of the mask into equal patches.

    Returns:
      [N, h, w] int32; a tie goes to the lowest class, with `ignore` last.

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
        # "ignore" is the last column, so ties go to a class.
        column = np.where(masks[i] == ignore, num_classes, masks[i])
        counts = np.bincount(
            (patch * (num_classes + 1) + column).ravel(), minlength=h * w * (num_classes + 1)
        )
        result[i] = counts.reshape(h * w, num_classes + 1).argmax(axis=1)
    return np.where(result == num_classes, ignore, result).reshape(n, h, w).astype(np.int32)


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
) -> Retrieval:
    """Labels the patches of test images by retrieval from the training images.

    Args:
      train: [M, h, w, d] patch features, train_masks: [M, H, W] labels (255 = ignore); or Grids.
      test, test_masks: likewise for N images.
      k, rule: see `neighbours.retrieve`. absent: see `class_iou`.
      images: indices of the training images to retrieve from; None = all.

    Raises:
      ValueError: every training patch is ignored, all have one class, or shapes do not fit.
    """
    of_images = labels_of(train_masks, train, num_classes=num_classes)
    labels = np.concatenate([of_image.ravel() for of_image in of_images])
    valid = labels != IGNORE
    if images is not None:
        number = np.repeat(np.arange(len(of_images)), [of_image.size for of_image in of_images])
        valid &= np.isin(number, images)
    if not valid.any():
        raise ValueError("every training patch is ignored")
    if images is None and len(np.unique(labels[valid])) == 1:
        raise ValueError(f"every training patch is of class {labels[valid][0]}")
    truth = labels_of(test_masks, test, num_classes=num_classes)
    classes = neighbours.retrieve(
        Grids.of(train).rows,
        labels,
        Grids.of(test).rows,
        num_classes=num_classes,
        k=k,
        rule=rule,
        rows=None if valid.all() else np.flatnonzero(valid),
    )
    parts = np.split(classes, np.cumsum([labels.size for labels in truth])[:-1])
    predicted = [part.reshape(labels.shape) for part, labels in zip(parts, truth)]
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
    """Majority labels [h, w] of the patches of each image, see `patch_labels`."""
    if len(masks) != len(patches):
        raise ValueError(f"{len(masks)} masks and patches of {len(patches)} images")
    shapes = [patches[i].shape[:2] for i in range(len(patches))]
    return [
        patch_labels(masks[i][None], shapes[i], num_classes=num_classes)[0]
        for i in range(len(masks))
    ]


def enlarge(grids: np.ndarray, size: Sequence[int]) -> np.ndarray:
    """Enlarges [N, h, w] to [N, H, W] by nearest neighbour; size (H, W) is a multiple of (h, w)."""
    return grids.repeat(size[0] // grids.shape[1], axis=1).repeat(size[1] // grids.shape[2], axis=2)
