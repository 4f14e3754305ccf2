"""Gram anchoring (DINOv3, Siméoni et al. 2025) for the methods with a student and an EMA teacher.

Over long training, patch features lose their similarity structure. A frozen earlier network, the
Gram teacher, preserves it: `losses.gram` compares the patch similarities of the student's large
views with the Gram teacher's. If `gram.weight` is above 0, `added` wraps a method, whose `encode`
passes the student's patches through `seen`.

The Gram teacher is part of the state's constants, so it is saved, resumed bit for bit and sharded
like the parameters.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ssl_jax import losses, ops
from ssl_jax.config import InputError, check_multiple, key
from ssl_jax.losses.gram import MOST_ROWS
from ssl_jax.methods import base, multicrop
from ssl_jax.methods.frozen import NAME as FROZEN
from ssl_jax.models.position import resize_matrix

NAME = "gram"  # name of the section and of the group of views
METHODS = ("cribo", "dinov2", "flsl", "ibot", "massl", "sop", "sove")


def defaults() -> dict:
    """The section `gram` of the config: the published values, except that the weight is 0."""
    return dict(
        weight=key(0.0, "weight of the Gram loss, added to the method's loss; 0 = none", least=0),
        rise=key(
            (0, 0),
            "steps (first, last) between which the weight rises from 0 on half a cosine;"
            " equal = the full weight at once",
            "steps",
            least=0,
            ordered=True,
        ),
        teacher=key(
            "start",
            'Gram teacher: a frozen network, at "start" the run\'s teacher or the weights in'
            ' gram.file, or the current EMA teacher ("ema")',
            choices=("start", "ema"),
        ),
        file=key(
            "",
            'weights of the frozen network at the start, in the form of init_from; "" = the run\'s'
            " own teacher. Not read again when a run is resumed",
            path=True,
            acts="",
        ),
        first_update=key(
            0, "first step at which the EMA teacher may replace the frozen one", "steps", least=0
        ),
        every=key(
            0,
            "steps between replacements of the frozen network by the EMA teacher; 0 = never",
            "steps",
            least=0,
        ),
        updates=key(
            0, "limit to replacements of the frozen network; 0 = no limit", "updates", least=0
        ),
        size=key(
            0,
            "side of the frozen network's input crop, whose patch map is reduced to the student's"
            " grid; 0 = the student's crop size",
            "pixels",
            least=0,
            most=16384,
        ),
        over=key(
            "image",
            'patches whose cosines are compared: those of one view ("image"), or of the whole'
            ' "batch"',
            choices=("image", "batch"),
        ),
        negatives=key(
            "keep",
            'cosines below 0: unchanged ("keep"), set to 0 in both networks ("remove") or in the'
            ' teacher alone ("remove_teacher")',
            choices=("keep", "remove", "remove_teacher"),
        ),
    )


def check(config: ConfigDict) -> None:
    """Raises InputError for settings that contradict each other or the method."""
    c, size = config.gram, config.views.global_size
    if not c.weight:
        return
    if config.method not in METHODS:
        raise InputError(
            f"gram.weight is {c.weight} but {config.method} has no Gram term; set gram.weight=0, or"
            f" choose one of {', '.join(METHODS)}"
        )
    if c.teacher == "ema" and (c.file or c.every or c.size):
        raise InputError(
            'gram.teacher is "ema", which has no file, no updates and no size of its own; set'
            ' gram.file="", gram.every=0 and gram.size=0, or gram.teacher="start"'
        )
    untrained = c.teacher == "start" and not (c.file or config.init_from)
    if untrained and not (c.every and c.rise[1] >= c.every * _first_update(c)):
        raise InputError(
            'gram.teacher is "start", an untrained network; set gram.file or init_from to trained'
            ' weights, gram.teacher="ema", or gram.every=K and gram.rise=(K, K), which replaces it'
            " at step K before the term begins"
        )
    if c.size:
        check_multiple("gram.size", c.size, config.model.patch, "model.patch")
        if c.size < size:
            raise InputError(
                f"gram.size is {c.size}, smaller than views.global_size {size}; use 0 or at least"
                f" {size}"
            )
    views = config.optim.batch_size * config.views.global_count
    rows = views * (size // config.model.patch) ** 2
    if c.over == "batch" and c.negatives != "keep" and rows > MOST_ROWS:
        raise InputError(
            f'gram.over is "batch" and gram.negatives is "{c.negatives}", which takes a matrix of'
            f" all {rows} patches (at most {MOST_ROWS}); set gram.over=image or gram.negatives=keep"
        )


class Patches(NamedTuple):
    """Patches [B, V, N, d] of the same views, after the final norm. teacher: None if the method's
    EMA teacher does not encode these views."""

    student: jax.Array
    teacher: jax.Array | None


class Outputs(NamedTuple):
    """The outputs of a method's `encode`, and the patches of large views."""

    method: Any
    patches: Patches


def seen(
    config: ConfigDict, outputs: Any, student: jax.Array, teacher: jax.Array | None = None
) -> Any:
    """A method's outputs; if `added` needs them, with the patches [B, V, N, d] of the student's
    large (possibly masked) views and of the EMA teacher's clean ones."""
    return Outputs(outputs, Patches(student, teacher)) if config.gram.weight else outputs


def added(config: ConfigDict, method: base.Method, group: str = "global") -> base.Method:
    """The method with the Gram term of a resolved config; unchanged if the weight is 0.

    method: its `encode` returns the result of `seen`; `params` and `teacher` have a "backbone".
    group: name of the student's large views.
    """
    c = config.gram
    if not c.weight:
        return method
    encoder, frozen = multicrop.encoders(config.model).teacher, c.teacher != "ema"

    def encode(params, teacher, constants, views, keys, progress):
        outputs, (student, clean) = method.encode(params, teacher, constants, views, keys, progress)
        if frozen:
            clean = multicrop.encode(encoder, constants[FROZEN], views[NAME]).patches
        elif clean is None:
            clean = multicrop.encode(encoder, teacher["backbone"], views[group]).patches
        return Outputs(outputs, Patches(student, reduced(clean, student.shape[-2])))

    def objective(params, teacher, outputs, carry, key, progress):
        """The method's loss + weight * L_Gram."""
        loss, out = method.objective(params, teacher, outputs.method, carry, key, progress)
        term = losses.gram(*outputs.patches, over=c.over, negatives=c.negatives)
        factor = weight(c, progress.step)
        metrics = out.metrics | {"gram": term, "gram_weight": factor}
        return loss + factor * term, out._replace(metrics=metrics)

    def freeze(constants, params, teacher, done):
        del params
        if FROZEN not in (constants or {}):  # at the start
            return {**(constants or {}), FROZEN: jax.tree.map(jnp.copy, teacher["backbone"])}
        if not c.every:
            return constants
        number = done // c.every - _first_update(c)  # of the update
        due = (done % c.every == 0) & (number >= 0) & (number < (c.updates or done))
        new = jax.lax.cond(due, lambda: teacher["backbone"], lambda: constants[FROZEN])
        return {**constants, FROZEN: new}

    if not frozen:
        return method._replace(encode=encode, objective=objective)
    # The same crops without photometric augmentation and masks.
    crops = dataclasses.replace(
        large := method.views[group],
        size=c.size or large.size,
        photometric=(),
        mask=None,
        inside="",
        reuse=group,
    )
    views = dataclasses.replace(method.views, groups=(*method.views.groups, (NAME, crops)))
    return method._replace(views=views, encode=encode, objective=objective, freeze=freeze)


def _first_update(c: ConfigDict) -> int:
    """The first update follows after this many times `every` steps."""
    return math.ceil(max(c.first_update, 1) / c.every)


def weight(section: ConfigDict, done: jax.Array) -> jax.Array:
    """The weight after `done` steps: 0 until `rise[0]`, the full weight from `rise[1] - 1` on."""
    first, last = section.rise
    total = max(last - first - 1, 0)
    return ops.warmup_cosine(done - first, base=0.0, end=section.weight, total=total)


def reduced(patches: jax.Array, count: int) -> jax.Array:
    """Resizes square maps of patches [..., N, d] to [..., count, d]: torch's bicubic (a = -0.75,
    edges repeated, no antialiasing), as in the official code."""
    if patches.shape[-2] == count:
        return patches
    native, side = math.isqrt(patches.shape[-2]), math.isqrt(count)
    matrix = resize_matrix(native, side).astype("float32")
    grid = patches.reshape(*patches.shape[:-2], native, native, -1)
    exact = jax.lax.Precision.HIGHEST
    grid = jnp.einsum("hr,wc,...rcd->...hwd", matrix, matrix, grid, precision=exact)
    return grid.reshape(*patches.shape[:-2], count, -1)
