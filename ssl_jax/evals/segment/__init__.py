"""Semantic segmentation with a trained head: linear, Segmenter's mask transformer, Semantic FPN or
UPerNet, on frozen tokens or with the network trained too.

    config.evals.segment = evals.new("segment", data=dict(kind="tfds", name="camvid", dir="..."))
    config.evals.segment = evals.new("segment", protocol="cribo_linear", data=...)

Training crops, losses, schedules and tests are those of mmsegmentation, or STELLAR's; the
protocols name the papers' tables. By default a few hundred steps of the linear head, for a CPU.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from ssl_jax.config import InputError, check_multiple
from ssl_jax.evals.case import Case
from ssl_jax.evals.classes import check_classes
from ssl_jax.evals.registry import register
from ssl_jax.evals.segment import crops, figures, inference, network, records, settings, training
from ssl_jax.evals.segment.settings import PROTOCOLS, Settings
from ssl_jax.methods.encoder import Encoder
from ssl_jax.runtime import distributed, sharding
from ssl_jax.scores import metrics

_LARGEST = 224  # side of crops where nobody says: of networks' training, mostly


class Outcome(NamedTuple):
    """What an evaluation found; the learning rate is the selected one.

    counts: [c, c] confusion matrix of the test pixels. selection: mIoU (0..1) by which each
    learning rate was judged, None if there was one. classes: number of them.
    """

    trained: training.Trained
    network: network.Network
    learning_rate: float
    counts: np.ndarray
    selection: list[float] | None
    classes: int


def score(case: Case, settings: Settings) -> dict[str, float]:
    """`segment`: mIoU; `segment_class_accuracy`: mAcc; `segment_accuracy`: aAcc, all in percent, of
    the selected learning rate `segment_lr`; `segment_held_out`: its mIoU on held-out images, if
    there were several.

    {} for raw pixels where the network is to be trained. Raises InputError for a set without masks
    and for settings that do not fit the network.
    """
    if not _applies(case):
        return {}
    found = outcome(case)
    iou = metrics.class_iou(found.counts, case.config.absent)
    scores = {
        "segment": 100 * metrics.mean_iou(iou),
        "segment_class_accuracy": 100 * metrics.mean_iou(metrics.class_accuracy(found.counts)),
        "segment_accuracy": 100 * metrics.accuracy(found.counts),
        "segment_lr": found.learning_rate,
    }
    if found.selection is not None and case.config.held_out:
        scores["segment_held_out"] = 100 * max(found.selection)
    return scores


def _applies(case: Case) -> bool:
    """Raw pixels have no network that could be trained."""
    return case.config.frozen or isinstance(case.encoder, Encoder)


def outcome(case: Case) -> Outcome:
    """Trains, selects the learning rate and counts the test pixels; once for each case."""
    return case.once("segment", _outcome)


def _outcome(case: Case) -> Outcome:
    c, side = case.config, _side(case)
    train, test, classes = _records(case)
    net = network.make(case.encoder, c, classes, case.patch)
    mesh, local = _meshes(case)
    learn, choose = _split(train, c, case.seed)
    steps = max(1, round(c.epochs * len(learn) / c.batch)) if c.epochs else c.steps
    recipe = crops.Recipe(
        c.augment,
        side,
        c.short,
        c.long,
        tuple(c.ratio),
        tuple(c.scale),
        c.largest_class,
        c.photometric,
    )

    def fit(lrs):
        made = records.batches(
            learn, recipe, batch=c.batch, steps=steps, seed=case.seed, rows=_rows(case, c.batch)
        )
        return training.fit(net, c, made, lrs=lrs, steps=steps, seed=case.seed, mesh=mesh)

    def counted(trained, part):
        if case.shared:
            part = part.part(distributed.share(np.arange(len(part))))
        found = inference.score(net, trained, part, c, side=side, patch=case.patch, mesh=local)
        return inference.counts(found, len(trained), classes, shared=case.shared)

    lrs = tuple(c.lrs)
    groups = [lrs] if c.frozen else [(lr,) for lr in lrs]
    best, selection, counts = None, [], None
    for group in groups:
        trained = fit(group)
        _warn_of_divergence(trained, group)
        judged = counted(trained, choose or test) if len(lrs) > 1 else None
        for i, one in enumerate(trained):
            value = _mean_iou(judged[i], c.absent) if judged is not None else 0.0
            if best is None or value > max(selection):
                best = one, group[i]
                counts = judged[i] if judged is not None and choose is None else None
            selection.append(value)
    assert best is not None
    if counts is None:
        counts = counted([best[0]], test)[0]
    if not counts.sum():
        raise InputError(f"every pixel of {case.test} is ignored")
    return Outcome(best[0], net, best[1], counts, selection if len(lrs) > 1 else None, classes)


def _warn_of_divergence(trained: list[training.Trained], lrs: tuple[float, ...]) -> None:
    for one, lr in zip(trained, lrs):
        if not np.isfinite(one.loss[-1]) and distributed.is_first():
            print(
                f"  warning: segment: the loss is not finite after training with a learning rate of"
                f" {lr:g}; use a lower one",
                flush=True,
            )


def _mean_iou(counts: np.ndarray, absent: str) -> float:
    """0 where no pixel counts."""
    return metrics.mean_iou(metrics.class_iou(counts, absent)) if counts.sum() else 0.0


def _side(case: Case) -> int:
    """Of crops and windows. Raises InputError for one that patches do not fit."""
    if case.config.side:
        check_multiple("side", case.config.side, case.patch, "patch of the network")
        return case.config.side
    known = case.config.crop or min(case.train.size or (_LARGEST,))
    side = min(known, _LARGEST) // case.patch * case.patch
    if not side:
        raise InputError(
            f"images of {known} pixels are smaller than one patch of {case.patch}; use a larger"
            " data.size"
        )
    return side


def _records(case: Case) -> tuple[records.Records, records.Records, int]:
    """Training and test records, and the number of classes."""
    c = case.config
    for source in (case.train, case.test):
        case.need(source.has_masks, "masks")
    names = getattr(case.train, "mask_names", None)
    known = c.classes or (len(names) - (c.ignored >= 0) if names else 0)
    train, test = (
        records.Records(*case.chosen(name), crop=c.crop, ignored=c.ignored, classes=known)
        for name in ("train", "test")
    )
    check_classes("segment", case.train, train.masks(), "masks")
    return train, test, known or metrics.num_classes(train.masks(), test.masks())


def _split(train: records.Records, config: Any, seed: int):
    """Records to learn from, and those that select the learning rate or None."""
    if len(config.lrs) == 1 or not config.held_out or len(train) < 2:
        return train, None
    order = np.random.default_rng([seed, 0]).permutation(len(train))
    count = min(max(1, round(config.held_out * len(train))), len(train) - 1)
    return train.part(np.sort(order[count:])), train.part(np.sort(order[:count]))


def _meshes(case: Case):
    """The mesh that trains, and that of this process alone, which tests."""
    local = sharding.make_mesh(devices=jax.local_devices())
    if case.shared and jax.process_count() > 1:
        return sharding.make_mesh(), local
    devices = jax.local_devices()
    batch = case.config.batch
    count = next(n for n in range(len(devices), 0, -1) if batch % n == 0)
    return sharding.make_mesh(devices=devices[:count]), local


def _rows(case: Case, batch: int) -> range:
    """Of each batch, those that this process makes. Raises InputError if they cannot be shared."""
    processes = jax.process_count() if case.shared else 1
    if batch % processes:
        raise InputError(f"batch is {batch}; it must be a multiple of the {processes} processes")
    own = batch // processes
    return (
        range(own)
        if processes == 1
        else range(own * jax.process_index(), own * (jax.process_index() + 1))
    )


def draw(case: Case, settings: Settings) -> dict:
    """Pictures of the trained network, see `figures.make`."""
    if not _applies(case):
        return {}
    found, c = outcome(case), case.config
    _, test, _ = _records(case)
    shown = test.part(np.arange(min(figures.SHOWN, len(test))))
    local = sharding.make_mesh(devices=jax.local_devices())
    scored = inference.score(
        found.network, [found.trained], shown, c, side=_side(case), patch=case.patch, mesh=local
    )
    names = getattr(case.test, "mask_names", None)
    if names and c.ignored >= 0:
        names = [name for i, name in enumerate(names) if i != c.ignored]
    return figures.make(list(scored), found.counts, c, names)


register(
    "segment",
    score,
    Settings,
    heading="segm. mIoU",
    needs="masks",
    draw=draw,
    trains=True,
    protocols=PROTOCOLS,
    check=settings.check,
    multiples=("side",),
)
