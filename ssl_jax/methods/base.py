"""What a method is: a NamedTuple of pure functions, and the few records that pass between them and
the step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

NEVER = math.inf  # freeze_epochs of a parameter that is never trained


@dataclass(frozen=True)
class Rule:
    """How the optimizer treats the parameters whose path matches.

    lr: factor on the learning rate.
    decay: "matrices" decays tensors of rank 2 and more and no biases (the DINO family: "not on
      biases and 1-D parameters", by the rank of the stored tensor, so class token, position codes,
      mask vector and a [1, K] gain ARE decayed); True all, False none.
    freeze_epochs: not trained before this epoch: neither value, moments nor step count move. NEVER:
      never trained, and no moments at all.
    clip_group: gradients of all tensors with the same group name are clipped by their joint norm;
      None: as optim.clip_by says.
    """

    lr: float = 1.0
    decay: bool | Literal["matrices"] = "matrices"
    freeze_epochs: int | float = 0
    clip_group: str | None = None


# A method's rules are an ordered tuple of (regular expression of the whole path, Rule); the first
# match counts.
DEFAULT_RULES: tuple[tuple[str, Rule], ...] = ((".*", Rule()),)


class Progress(NamedTuple):
    """Where the run stands; step, epoch and epoch_fraction are traced scalars.

    step: int32, batches seen before this one. epoch: int32, step // steps_per_epoch.
    epoch_fraction: float32, step / steps_per_epoch.
    """

    step: jax.Array
    epoch: jax.Array
    epoch_fraction: jax.Array
    steps_per_epoch: int
    total_steps: int


class Output(NamedTuple):
    """Second result of `objective`: the new carry (same structure as the old) and named float32
    scalars.
    """

    carry: Any
    metrics: dict[str, jax.Array]


class Features(NamedTuple):
    """What a trained network says about images, all float32, after the final norm.

    image [B, d]: the vector the method means by "the image". cls [B, d] or None. patches [B, h, w,
      d].
    attention [B, heads, N, N] of the last block, and layers {block index: Tokens}: if asked for.
    extras: its own."""

    image: jax.Array
    cls: jax.Array | None
    patches: jax.Array
    attention: jax.Array | None = None
    layers: dict[int, Any] | None = None
    extras: dict[str, Any] | None = None


class Panel(NamedTuple):
    """One cell of a picture: an image, and what is laid over it.

    image: [H, W, 3] in [0, 1]. heat: [h, w] >= 0, drawn as a translucent map from its minimum to
    its maximum. labels: [h, w] int, drawn as translucent regions (below 0: none). marks: (y, x) in
    0..1 of the image. title: short text above.
    """

    image: Any
    heat: Any = None
    labels: Any = None
    marks: tuple = ()
    title: str = ""


class Picture(NamedTuple):
    """A grid of panels with a title; a row may be shorter than the others. `evals.panels`
    draws it.
    """

    title: str
    rows: tuple[tuple[Panel, ...], ...]


def no_teacher(params) -> None:
    """Default `teacher_of`: the method has no EMA teacher."""
    del params


def default_rules(config):
    """Default `rules`: everything trained, decay on matrices only."""
    del config
    return DEFAULT_RULES


def no_warnings(metrics, config) -> list[str]:
    """Default `health`."""
    del metrics, config
    return []


class Method(NamedTuple):
    """A method as pure functions of arrays and a (resolved, hashable) config.

    defaults() -> ConfigDict
        The section config[name], with a comment per key.
    check(config) -> None
        Refuses impossible settings of that section (InputError). The config is not resolved yet.
    views(config) -> ViewRecipe
        What crops, sizes and masks one image yields.
    init(key, config) -> (params, carry)
        params: trainable nested dict; carry: memories, centers, counters (or None).
    encode(params, teacher, batch, keys, config) -> outputs
        The networks only, on a batch of prepared views and one PRNG key per image [B]. Outputs have
        leading axis B, and row i depends on image i alone, so that the step may cut the batch into
        chunks.
    objective(params, teacher, outputs, carry, key, progress, config) -> (scalar, Output)
        The loss over the whole batch, and what the carry becomes.
    features(params, images, config, *, layers=(), attention=False) -> Features
        Of images [B, H, W, 3] in [0, 1]; params is the teacher's or the student's tree.
    teacher_of(params) -> subtree or None
        What the EMA teacher copies.
    rules(config) -> ((path pattern, Rule), ...)
        How the optimizer treats each parameter; must cover all.
    health(metrics, config) -> list of text
        Warnings "KIND: likely cause" from one row of metrics.
    pictures(params, images, config) -> {name: Picture}
        Optional: what only this method can show, for images [B, H, W, 3] in [0, 1]; NumPy arrays in
        the pictures. Not under jit.
    """

    name: str
    defaults: Callable
    check: Callable
    views: Callable
    init: Callable
    encode: Callable
    objective: Callable
    features: Callable
    teacher_of: Callable = no_teacher
    rules: Callable = default_rules
    health: Callable = no_warnings
    pictures: Callable | None = None


def spread(embeddings) -> jax.Array:
    """Spread of unit vectors [..., B, d]: sqrt(1 - |mean over B|^2), averaged; 0 = all equal, 1 =
    centred.
    """
    center = embeddings.astype(jnp.float32).mean(axis=-2)
    return jnp.sqrt(jnp.maximum(1.0 - jnp.square(center).sum(axis=-1), 0.0)).mean()


def spread_warnings(metrics) -> list[str]:
    """Warns if `embedding_spread` is near 0."""
    value = metrics.get("embedding_spread")
    if value is not None and value < 0.05:
        return [
            f"collapse of embeddings: all images map to nearly one vector (spread {value:.3f} of"
            " 1); raise teacher.momentum or lower optim.lr"
        ]
    return []


def assignment_warnings(metrics, prefix: str, num_classes: int) -> list[str]:
    """Warnings from the entropies of a distribution over `num_classes` prototypes (natural
    logarithm).

    Reads `{prefix}_teacher_entropy` (mean entropy of a target) and `{prefix}_marginal_entropy`
    (entropy of the mean target of a batch).
    """
    top = math.log(num_classes)
    each, marginal = (
        metrics.get(f"{prefix}_{name}") for name in ("teacher_entropy", "marginal_entropy")
    )
    if each is None or marginal is None:
        return []
    if each > 0.98 * top:
        return [
            f"uniform {prefix} targets: entropy {each:.2f} of log K = {top:.2f}, so there is"
            " nothing to learn from; lower the teacher temperature, or raise model.init_std or"
            " optim.lr"
        ]
    # Their difference is the information, in nats, that a target holds about its image.
    if marginal < 0.1 * top or marginal - each < 0.03 * top:
        return [
            f"collapse of {prefix} targets: all images get nearly the same one, on about"
            f" {math.exp(marginal):.1f} of {num_classes} prototypes (entropy of a target"
            f" {each:.2f}, of their mean {marginal:.2f}, log K = {top:.2f}); check anchors or"
            " centering, lower optim.lr"
        ]
    return []
