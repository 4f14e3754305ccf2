"""Trains heads with several learning rates and batch sizes, selects one and scores it."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from ssl_jax.config import InputError, check_multiple
from ssl_jax.evals.case import Case
from ssl_jax.evals.classes import check_classes
from ssl_jax.evals.segment import inference, network, records, training
from ssl_jax.evals.segment.settings import Settings, check_stride, sizes
from ssl_jax.features import windows
from ssl_jax.runtime import distributed, sharding
from ssl_jax.runtime.fit import Fitted
from ssl_jax.scores import classification, metrics

_LARGEST = 224  # default side of crops, that of most networks' training


class Outcome(NamedTuple):
    """The selected head with its learning rate and batch size."""

    trained: Fitted
    network: network.Network
    learning_rate: float
    batch: int
    counts: np.ndarray  # confusion matrix [c, c] on the test images
    selection: list[float] | None  # mIoU (0..1) of each head in the selection; None = only one


def outcome(case: Case, settings: Settings) -> Outcome:
    """Trains heads, selects one and scores it on the test images, once per case."""
    return case.cached("segment", lambda case: _outcome(case, with_side(case, settings)))


def _outcome(case: Case, settings: Settings) -> Outcome:
    train, test, classes = parts(case, settings)
    net = network.make(case.network, settings, classes, case.patch)
    _warn_of_unread_blocks(net.depth, settings.layers)
    several = len(settings.lrs) * len(settings.batch_factors) > 1
    learn, choose = _split(train, settings.held_out if several else 0, case.seed)
    local = sharding.make_mesh(devices=jax.local_devices())

    def fit(sized, lrs):
        together = _together(case, sized.batch)
        mesh = sharding.make_mesh() if together else sharding.mesh_for(sized.batch)
        batches = records.batches(learn, sized, seed=case.seed, rows=_rows(case, sized.batch))
        return training.fit(net, sized, batches, lrs=lrs, seed=case.seed, mesh=mesh)

    def counted(trained, part):
        part = part.part(distributed.share(np.arange(len(part)), case.shared))
        scored = inference.score(net, trained, part, settings, patch=case.patch, mesh=local)
        return inference.counts(scored, len(trained), classes, shared=case.shared)

    lrs = tuple(settings.lrs)
    groups = [lrs] if settings.frozen else [(lr,) for lr in lrs]
    best, selection = None, list[float]()
    for sized, group in itertools.product(sizes(settings, len(learn)), groups):
        trained = fit(sized, group)
        _warn_of_divergence(trained, group)
        judged = counted(trained, choose or test) if several else [None] * len(group)
        for fitted, lr, counts in zip(trained, group, judged):
            value = 0.0  # also where no pixel counts
            if several and counts.sum():
                value = metrics.mean_iou(metrics.class_iou(counts, settings.absent))
            if best is None or value > max(selection):
                best = fitted, lr, sized.batch, counts
            selection.append(value)
    assert best is not None
    fitted, lr, batch, counts = best
    if choose or not several:
        (counts,) = counted([fitted], test)
    if not counts.sum():
        raise InputError(f"every pixel of {case.test} is ignored")
    return Outcome(fitted, net, lr, batch, counts, selection if several else None)


def _warn_of_unread_blocks(depth: int, layers: Sequence[int]) -> None:
    """The protocols name blocks of networks of 12."""
    last = max((i % depth for i in layers), default=0) if depth else 0
    if last < depth - 1 and distributed.is_first():
        print(
            f"  warning: segment: layers {tuple(layers)} end at block {last} of 0 to {depth - 1};"
            " name later ones for a deeper network",
            flush=True,
        )


def _warn_of_divergence(trained: list[Fitted], lrs: tuple[float, ...]) -> None:
    for fitted, lr in zip(trained, lrs):
        if not np.isfinite(fitted.losses[-1]) and distributed.is_first():
            print(
                f"  warning: segment: the loss is not finite after training with a learning rate of"
                f" {lr:g}; use a lower one",
                flush=True,
            )


def with_side(case: Case, settings: Settings) -> Settings:
    """The settings with `side`, which is derived from the images if it is 0. Raises InputError for
    a side that is not a multiple of the patch, or smaller than the stride of windows."""
    if settings.side:
        check_multiple("side", settings.side, case.patch, "patch of the network")
        return settings
    largest = min(case.config.crop or min(case.train.size or (_LARGEST,)), _LARGEST)
    side, _ = windows.floored((largest, largest), case.patch)
    settings = dataclasses.replace(settings, side=side)
    check_stride("segment", settings)
    return settings


def parts(case: Case, settings: Settings) -> tuple[records.Records, records.Records, int]:
    """(training records, test records, number of classes)."""
    names = case.train.mask_names
    classes = settings.classes or (len(names) - (settings.ignored >= 0) if names else 0)
    train, test = (
        records.Records(
            *case.records(name), crop=case.config.crop, ignored=settings.ignored, classes=classes
        )
        for name in ("train", "test")
    )
    check_classes("segment", case.train, train.masks(), "masks")
    return train, test, classes or metrics.num_classes(train.masks(), test.masks())


def _split(train: records.Records, share: float, seed: int):
    """(training records, records for the selection or None)."""
    order = np.random.default_rng([seed, 0]).permutation(len(train))
    learn, choose = classification.split(order, share)
    return train.part(np.sort(learn)), train.part(np.sort(choose)) if len(choose) else None


def _together(case: Case, batch: int) -> bool:
    """Whether all processes train one network. Each trains its own, with the same result, if the
    batch cannot be divided among the devices."""
    return case.shared and jax.process_count() > 1 and batch % jax.device_count() == 0


def _rows(case: Case, batch: int) -> range:
    """The rows of each batch for this process."""
    if not _together(case, batch):
        return range(batch)
    count = batch // jax.process_count()
    return range(count * jax.process_index(), count * (jax.process_index() + 1))
