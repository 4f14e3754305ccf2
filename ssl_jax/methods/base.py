"""The interface of methods: pure functions bound once to a config, and the records that they
exchange with the train step."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from ssl_jax import ops
from ssl_jax.views.recipe import ViewRecipe

NEVER = math.inf  # freeze_epochs of a parameter that is never trained


@dataclass(frozen=True)
class Rule:
    """Optimizer settings for the parameters whose path matches.

    lr: factor on the learning rate.
    decay: weight decay of all (True), none (False) or "matrices": tensors of rank 2 and more,
      without biases (the DINO family's "not on biases and 1-D parameters" by the rank of the stored
      tensor, so class token, position embeddings, mask token and a [1, K] gain ARE decayed).
    freeze_epochs: until so many epochs are over, values, moments and step count stay unchanged.
      NEVER: never trained, and without moments.
    clip_group: gradients of all tensors with the same group name are clipped by their joint norm;
      None: by optim.clip_by.
    """

    lr: float = 1.0
    decay: bool | Literal["matrices"] = "matrices"
    freeze_epochs: int | float = 0
    clip_group: str | None = None


# An ordered tuple of (regular expression of the whole path, Rule); the first match counts.
Rules = tuple[tuple[str, Rule], ...]
DEFAULT_RULES: Rules = ((".*", Rule()),)


class Progress(NamedTuple):
    """Position in the run; step, epoch and epoch_fraction are traced scalars.

    step: int32, batches before this one. epoch: int32, step // steps_per_epoch (the last partial
    batch of an epoch is dropped). epoch_fraction: float32, step / steps_per_epoch. total_steps: the
    planned end of schedules over the run, which an extension does not move.
    """

    step: jax.Array
    epoch: jax.Array
    epoch_fraction: jax.Array
    steps_per_epoch: int
    total_steps: int

    @property
    def total_epochs(self) -> float:
        """`total_steps` in epochs; may be a fraction."""
        return self.total_steps / self.steps_per_epoch


class Push(NamedTuple):
    """Rows {name: [B, ...]} to push into a memory of the carry at the end of the step."""

    rows: dict[str, jax.Array]


class Output(NamedTuple):
    """Second result of `objective`: the new carry and named float32 scalars.

    The new carry has the old one's structure, with a Push for each memory (`ops.memory_init`).
    """

    carry: Any
    metrics: dict[str, jax.Array]


def settle(new: Any, old: Any, accepted: jax.Array | bool = True) -> Any:
    """The carry after a step: `new` from an Output, or `old` if the step is skipped.

    Memories are pushed here, once it is known whether the step is accepted: selecting between the
    memories before and after would store both.
    """

    def settle_leaf(new, old):
        if isinstance(new, Push):
            return ops.memory_push(old, new.rows, where=jnp.asarray(accepted))
        return jnp.where(accepted, new, old)

    return jax.tree.map(settle_leaf, new, old, is_leaf=lambda leaf: isinstance(leaf, Push))


class Features(NamedTuple):
    """Features of images, all float32, after the final norm.

    image [B, d]: the method's vector of the whole image. cls [B, d] or None. patches [B, h, w, d].
    If requested: attention [B, heads, N, N] of the last block; layers {block index: Tokens};
    extras, further outputs of the method by name.
    """

    image: jax.Array
    cls: jax.Array | None
    patches: jax.Array
    attention: jax.Array | None = None
    layers: dict[int, Any] | None = None
    extras: dict[str, Any] | None = None


def no_constants() -> None:
    """Default `constants`: the method has none."""


def no_teacher(params: Any) -> None:
    """Default `teacher_of`: the method has no EMA teacher."""
    del params


def no_warnings(metrics: Mapping[str, float]) -> list[str]:
    """Default `health`: no warnings."""
    del metrics
    return []


class Meaning(NamedTuple):
    """Help for reading a column of metrics.

    classes: K if the metric is an entropy over K classes, in nats: at most log K.
    rises_with, why: the metric may rise in a healthy run while this other column rises; the reason.
    """

    classes: int = 0
    rises_with: str = ""
    why: str = ""


class Method(NamedTuple):
    """A method bound to its networks and settings: all functions are pure, none takes a config.

    views: ViewRecipe
        Crops, sizes, masks and photometric draws of one image.
    init(key) -> (params, carry)
        params: trainable nested dict; carry: memories, centers, counters (or None). Reads no file.
    encode(params, teacher, constants, views, keys, progress) -> Outputs
        Runs the networks on a batch of prepared views with one PRNG key per image [B]. Outputs is a
        NamedTuple of the method whose arrays have leading axis B. Row i depends only on image i,
        because the step encodes the batch in chunks and each device's shard separately
        (`jax.shard_map`).
    objective(params, teacher, outputs, carry, key, progress) -> (scalar, Output)
        The loss over the whole batch, and the new carry.
    features(params, images, *, layers, attention, extras, constants) -> Features
        Features of images [B, H, W, 3] in [0, 1]; params is the teacher's or the student's tree.
        The defaults layers=(), attention=False, extras=False, constants=None give image, class
        token and patches only. Extras are omitted if they need constants or parameters that are
        not passed.
    constants() -> tree or None
        Frozen arrays, such as weights from files, stored in the state; see `freeze`, `frozen`.
    constant_shapes() -> tree of jax.ShapeDtypeStructs
        Shapes of the constants, if they are known without reading files; None: they are not.
    teacher_of(params) -> subtree or None
        The parameters that the EMA teacher averages.
    rules: ((path pattern, Rule), ...)
        Optimizer settings; every parameter must match a rule.
    placement: ((path pattern, PartitionSpec over the axes of the mesh), ...)
        Shardings of params and carry that replace the defaults of runtime.sharding.
    health(metrics) -> list of text
        Warnings "KIND: likely cause" from one row of metrics.
    meanings: {column of metrics: Meaning}
        Help for columns that are easily misread.
    freeze(constants, params, teacher, done) -> constants
        The constants after `done` steps, with a copy of the teacher from some step. None: no copy.
    starts_evaluated: bool
        With `init_from`, whether student and teacher both start from the network that the source's
        authors evaluate (its teacher, if it has one); see train.start.
    """

    views: ViewRecipe
    init: Callable
    encode: Callable
    objective: Callable
    features: Callable
    constants: Callable = no_constants
    constant_shapes: Callable | None = None
    teacher_of: Callable = no_teacher
    rules: Rules = DEFAULT_RULES
    placement: tuple[tuple[str, PartitionSpec], ...] = ()
    health: Callable = no_warnings
    meanings: Mapping[str, Meaning] = MappingProxyType({})
    freeze: Callable | None = None
    starts_evaluated: bool = False


def shapes_of_constants(method: Method) -> Any:
    """The result of `method.constants()` as jax.ShapeDtypeStructs."""
    if method.constant_shapes is not None:
        return method.constant_shapes()
    return jax.eval_shape(lambda constants: constants, method.constants())


def spread(embeddings: jax.Array) -> jax.Array:
    """Spread of unit vectors [..., B, d]: mean of sqrt(1 - |mean over B|^2); 0 = all equal, 1 =
    centred."""
    center = embeddings.astype(jnp.float32).mean(axis=-2)
    return jnp.sqrt(jnp.maximum(1.0 - jnp.square(center).sum(axis=-1), 0.0)).mean()


def spread_warnings(metrics: Mapping[str, float]) -> list[str]:
    """Warns if `embedding_spread` is near 0."""
    value = metrics.get("embedding_spread")
    if value is not None and value < 0.05:
        return [
            "collapse of embeddings: all images map to nearly one vector "
            f"(spread {value:.3f} of 1); raise teacher.momentum or lower optim.lr"
        ]
    return []


def entropies(**classes: int) -> dict[str, Meaning]:
    """Meanings of the entropies that `assignment_warnings` reads; classes: {prefix: K}."""
    return {
        f"{prefix}_{name}": Meaning(classes=count)
        for prefix, count in classes.items()
        for name in ("teacher_entropy", "marginal_entropy")
    }


def assignment_warnings(metrics: Mapping[str, float], **classes: int) -> list[str]:
    """Warnings of uniform targets and of collapse to few of K prototypes, from entropies in nats.

    Reads `{prefix}_teacher_entropy` (mean entropy of a target) and `{prefix}_marginal_entropy`
    (entropy of a batch's mean target), if present; classes: {prefix: K}.
    """
    return [text for prefix, count in classes.items() for text in _warnings(metrics, prefix, count)]


def _warnings(metrics, prefix: str, num_classes: int) -> list[str]:
    top = math.log(num_classes)
    each, marginal = (
        metrics.get(f"{prefix}_{name}") for name in ("teacher_entropy", "marginal_entropy")
    )
    if each is None or marginal is None:
        return []
    if each > 0.98 * top:
        return [
            f"uniform {prefix} targets: entropy {each:.2f} of log K = {top:.2f}, so there is "
            "nothing to learn from; lower the teacher temperature, or raise model.init_std or "
            "optim.lr"
        ]
    # The difference is the mutual information, in nats, between a target and its image.
    if marginal < 0.1 * top or marginal - each < 0.03 * top:
        return [
            f"collapse of {prefix} targets: nearly all images have the same target, on about "
            f"{math.exp(marginal):.1f} of {num_classes} prototypes (entropy of a target "
            f"{each:.2f}, of their mean {marginal:.2f}, log K = {top:.2f}); check anchors or "
            "centering, lower optim.lr"
        ]
    return []
