"""What a method is: pure functions bound once to a config, and the records that pass between them
and the train step."""

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


# An ordered tuple of (regular expression of the whole path, Rule); the first match counts.
Rules = tuple[tuple[str, Rule], ...]
DEFAULT_RULES: Rules = ((".*", Rule()),)


class Progress(NamedTuple):
    """Where the run stands; step, epoch and epoch_fraction are traced scalars.

    step: int32, batches seen before this one. epoch: int32, step // steps_per_epoch (the last
    partial batch of an epoch is dropped). epoch_fraction: float32, step / steps_per_epoch.
    total_steps: at which what rises or falls over the run is at its end, where it stays if the run
    is lengthened.
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
    """Rows {name: [B, ...]} that a memory of the carry takes at the end of the step."""

    rows: dict[str, jax.Array]


class Output(NamedTuple):
    """Second result of `objective`: the new carry and named float32 scalars.

    The new carry is built as the old one, with a Push where a memory (`ops.memory_init`) was.
    """

    carry: Any
    metrics: dict[str, jax.Array]


def settle(new: Any, old: Any, accepted: jax.Array | bool = True) -> Any:
    """The carry after a step: `new` of an Output, or `old` where the step is left out.

    Memories take their rows only here, where it is known whether the step counts: a choice between
    a memory before and after would need both at once.
    """

    def one(new, old):
        if isinstance(new, Push):
            return ops.memory_push(old, new.rows, where=jnp.asarray(accepted))
        return jnp.where(accepted, new, old)

    return jax.tree.map(one, new, old, is_leaf=lambda leaf: isinstance(leaf, Push))


class Features(NamedTuple):
    """What a trained network says about images, all float32, after the final norm.

    image [B, d]: the vector the method means by "the image". cls [B, d] or None. patches [B, h, w,
    d]. attention [B, heads, N, N] of the last block, and layers {block index: Tokens}: if asked
    for. extras: what else the method has to show, by name, if asked for.
    """

    image: jax.Array
    cls: jax.Array | None
    patches: jax.Array
    attention: jax.Array | None = None
    layers: dict[int, Any] | None = None
    extras: dict[str, Any] | None = None


def no_constants() -> None:
    """Default `constants`: nothing frozen beside the parameters."""


def no_teacher(params: Any) -> None:
    """Default `teacher_of`: the method has no EMA teacher."""
    del params


def no_warnings(metrics: Mapping[str, float]) -> list[str]:
    """Default `health`."""
    del metrics
    return []


class Meaning(NamedTuple):
    """What to know about a column of metrics beyond its name.

    classes: K of an entropy over K classes, in nats: it is at most log K.
    rises_with, why: it may rise while learning goes well, when that other column rises too; why.
    """

    classes: int = 0
    rises_with: str = ""
    why: str = ""


class Method(NamedTuple):
    """A method with its networks and settings bound: no function takes a config, all are pure.

    views: ViewRecipe
        Crops, sizes, masks and photometric draws of one image.
    init(key) -> (params, carry)
        params: trainable nested dict; carry: memories, centers, counters (or None). Reads no file.
    encode(params, teacher, constants, views, keys, progress) -> Outputs
        The networks only, on a batch of prepared views and one PRNG key per image [B]. Outputs is a
        NamedTuple of the method's own whose arrays have leading axis B; row i depends on image i
        alone: the step cuts the batch into chunks, and calls this on every device for its share
        (`jax.shard_map`).
    objective(params, teacher, outputs, carry, key, progress) -> (scalar, Output)
        The loss over the whole batch, and what the carry becomes.
    features(params, images, *, layers, attention, extras, constants) -> Features
        Of images [B, H, W, 3] in [0, 1]; params is the teacher's or the student's tree. By default
        layers=(), attention=False, extras=False, constants=None: the image, class token and patches
        alone. Some extras need the constants, or parameters that a teacher lacks, and are left out
        without them.
    constants() -> tree or None
        Frozen arrays and weights of files, in the state, never trained; see `freeze`, `frozen`.
    constant_shapes() -> the same as jax.ShapeDtypeStructs, where they are known without the files.
    teacher_of(params) -> subtree or None
        What the EMA teacher copies.
    rules: ((path pattern, Rule), ...)
        How the optimizer treats each parameter; must cover all.
    placement: ((path pattern, PartitionSpec over the axes of the mesh), ...)
        Where arrays of params and carry live if not where runtime.sharding puts them by itself.
    health(metrics) -> list of text
        Warnings "KIND: likely cause" from one row of metrics.
    meanings: {column of metrics: Meaning}
        Of those that are easily misread.
    freeze(constants, teacher, done) -> constants
        The constants after `done` steps, with a copy of the teacher of some step; None: no copy.
    starts_evaluated: bool
        With weights from elsewhere (`init_from`), whether student and teacher both start from the
        network that is evaluated there, its teacher if it has one; see train.start.
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
    """What `method.constants()` would return, as jax.ShapeDtypeStructs."""
    if method.constant_shapes is not None:
        return method.constant_shapes()
    return jax.eval_shape(lambda constants: constants, method.constants())


def spread(embeddings: jax.Array) -> jax.Array:
    """Spread of unit vectors [..., B, d]: sqrt(1 - |mean over B|^2), averaged; 0 = all equal, 1 =
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
    """The meanings of the entropies that `assignment_warnings` reads, {prefix: K}."""
    return {
        f"{prefix}_{name}": Meaning(classes=count)
        for prefix, count in classes.items()
        for name in ("teacher_entropy", "marginal_entropy")
    }


def assignment_warnings(metrics: Mapping[str, float], **classes: int) -> list[str]:
    """Warnings from the entropies (natural logarithm) of distributions over K prototypes, {prefix:
    K}: of collapse to few of them, and of targets that teach nothing.

    Reads, where they are, `{prefix}_teacher_entropy` (mean entropy of a target) and
    `{prefix}_marginal_entropy` (entropy of the mean target of a batch).
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
    # Their difference is the information, in nats, that a target holds about its image.
    if marginal < 0.1 * top or marginal - each < 0.03 * top:
        return [
            f"collapse of {prefix} targets: nearly all images have the same target, on about "
            f"{math.exp(marginal):.1f} of {num_classes} prototypes (entropy of a target "
            f"{each:.2f}, of their mean {marginal:.2f}, log K = {top:.2f}); check anchors or "
            "centering, lower optim.lr"
        ]
    return []
