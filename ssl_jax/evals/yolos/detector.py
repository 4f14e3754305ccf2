"""The detector: a vision transformer with detection tokens."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from ssl_jax.config import InputError, check_multiple
from ssl_jax.evals.yolos.settings import Settings
from ssl_jax.models import detection as models


class Detector(NamedTuple):
    """A detector. apply: (params, images [B, H, W, 3]) -> (logits, boxes), see
    `models.detection.yolos`."""

    apply: Callable
    params: Any
    classes: int
    patch: int
    fill: tuple[float, ...]  # colour of a canvas's margin


def make(encoder: Any, settings: Settings, classes: int, rng: jax.Array) -> Detector:
    """An untrained detector, initialised with the weights of an encoder.

    encoder: a `methods.encoder.Encoder`, or None for raw pixels.

    Raises InputError for networks that are no vision transformer, or a grid that is not a multiple
    of the patch.
    """
    if encoder is None or encoder.shape.stages:
        raise InputError(
            "yolos fine-tunes a vision transformer, which this network is not; leave it out of"
            " evals.tasks"
        )
    native = encoder.shape
    for name in ("position_size", "middle_size"):
        for side in getattr(settings, name):
            check_multiple(name, side, native.patch, "patch of the network")
    shape = dataclasses.replace(native, queries=settings.queries, drop_path=0.0, mask_token=False)
    position = settings.position_size if native.position == "learned" else (0, 0)
    model = models.yolos(shape, classes, position, settings.middle_size)
    weights = models.pretrained(model.init(rng), shape, encoder.backbone, position)
    return Detector(model.apply, weights, classes, shape.patch, tuple(shape.mean))
