"""Scores of the evaluation `dense`."""

import numpy as np
import pytest

from ssl_jax import evals
from ssl_jax.config import InputError
from ssl_jax.evals.case import Masked
from ssl_jax.features.monitored import subset
from ssl_jax.features.store import Grids
from ssl_jax.scores import metrics, segmentation
from tests.evals import fakes

_RNG = np.random.default_rng(0)


def _part(count):
    """Masks [count, 8, 8] of 2-px blocks and patch features [count, 4, 4, 6] that hint at the
    class."""
    blocks = _RNG.integers(0, 3, (count, 4, 4))
    patches = np.eye(3, 6)[blocks] + 0.6 * _RNG.normal(size=(count, 4, 4, 6))
    masks = blocks.repeat(2, 1).repeat(2, 2).astype(np.uint8)
    masks[_RNG.random(masks.shape) < 0.1] = 255
    return Masked(patches.astype(np.float32), masks, np.arange(count))


_TRAIN, _TEST = _part(9), _part(4)


def _run(train=_TRAIN, test=_TEST, **changes):
    return evals.TYPES["dense"].run(fakes.case("dense", train, test, k=15, **changes))


def _segmented(rows):
    part = _TRAIN.patches[rows], _TRAIN.masks[rows]
    found = segmentation.segment(*part, *_TEST[:2], num_classes=3, k=15)
    return [100 * metrics.mean_iou(iou) for iou in (found.patch_iou, found.pixel_iou)]


def test_subsampled_banks_are_averaged_and_follow_the_seed():
    scores = _run(subsample=(3, 1), runs=2)
    draws = [_segmented(subset(9, 3, seed))[0] for seed in (0, 1)]
    assert draws[0] != draws[1]
    assert scores["dense"] == pytest.approx(np.mean(draws))
    assert scores["dense_sd"] == pytest.approx(np.std(draws, ddof=1))
    whole = _run()
    assert [whole["dense"], whole["dense_pixel"]] == pytest.approx(_segmented(np.arange(9)))
    assert scores["dense_1in1"] == whole["dense"] != scores["dense"]
    assert scores["dense_1in1_pixel"] == whole["dense_pixel"]


def test_labels_that_say_nothing_are_refused():
    with pytest.raises(InputError, match="class 2"):  # which the set does not name
        _run(source=fakes.Source(_TEST.patches, mask_names=("sky", "road")))
    rare = np.zeros_like(_TRAIN.masks)
    rare[0, 0, 0] = 1  # no patch is mostly of it
    with pytest.raises(InputError, match="class 0"):
        _run(_TRAIN._replace(masks=rare))
    for masks in (np.full_like(_TEST.masks, 255), np.where(rare[:4] == 1, rare[:4], 255)):
        with pytest.raises(InputError, match="dense"):
            _run(test=_TEST._replace(masks=masks))
    _run(test=_TEST._replace(masks=np.zeros_like(_TEST.masks)))  # one is enough to be scored


def test_images_of_different_sizes_have_figures():
    def grids(arrays):
        shapes = np.asarray([array.shape[:2] for array in arrays])
        return Grids(np.concatenate([a.reshape(-1, *a.shape[2:]) for a in arrays]), shapes)

    train, test = (Masked(grids(p.patches), grids(p.masks), p.index) for p in (_TRAIN, _TEST))
    source = fakes.Source(list(fakes.images(4)))
    case = fakes.case("dense", train, test, source, k=15)
    evals.TYPES["dense"].run(case)
    figures = evals.TYPES["dense"].figures(case)
    assert len(figures["segmentation"].rows) == 4 and "dense_classes" in figures
