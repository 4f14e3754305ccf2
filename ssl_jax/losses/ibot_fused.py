"""iBOT's loss of masked patches, fused with the prototypes: scores are never held.

With 65,536 prototypes, the scores of up to 98 masked patches in two views of 256 images take 13 GB
in float32 for the student and as much for the teacher, which a step would write and read several
times over.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssl_jax.losses import meters
from ssl_jax.ops import devices, divergence, passes
from ssl_jax.ops.checked import Count, Positive, checked
from ssl_jax.ops.numerics import float_type, product, wide_within_range

# Scores in one pass over rows: on CPUs what stays in the cache, elsewhere 512 MB.
_ENTRIES_CPU, _ENTRIES = 2**20, 2**27


@checked
def ibot_patch_fused(
    student: Float[Array, "V B n d"],
    teacher: Float[Array, "V B n e"],
    masks: Bool[Array, "V B n"],
    student_prototypes: Float[Array, "d K"],
    teacher_prototypes: Float[Array, "e K"],
    center: Float[Array, " K"],
    *,
    student_temperature: Positive,
    teacher_temperature: Positive,
    chunk: Count | None = None,
) -> dict[str, jax.Array]:
    """`ibot_patch` of the logits student @ student_prototypes and teacher @ teacher_prototypes.

    Rows of patches are taken in passes. Each pass computes its logits, the loss and, if it is
    differentiated, the gradient, and keeps sums alone.

    Args:
      student: embeddings [V, B, n, d] of the patches of masked global views; any float type, in
        which they are multiplied (float16 as float32).
      teacher: [V, B, n, e], of the same patches in the clean views; no gradient.
      masks: [V, B, n] bool, True = masked for the student (counts).
      student_prototypes: [d, K].
      teacher_prototypes: [e, K]; no gradient.
      center: [K]; no gradient.
      student_temperature: tau_s > 0, a number or a traced scalar; no gradient.
      teacher_temperature: tau_t > 0, likewise.
      chunk: rows per pass of a device, about; None: as many as suit it.

    Returns:
      dict of scalars, as `ibot_patch`; the loss alone has a gradient.

    Raises:
      ValueError: shapes that do not fit, masks that are not boolean, temperatures <= 0 (where
        known).

    Example:
      >>> import jax.numpy as jnp
      >>> patches, center = jnp.zeros((2, 1, 3, 2)), jnp.zeros(4)
      >>> masks = jnp.array([[[True, False, True]], [[False, False, False]]])
      >>> terms = ibot_patch_fused(
      ...     *(patches, patches, masks, jnp.ones((2, 4)), jnp.ones((2, 4)), center),
      ...     student_temperature=0.1,
      ...     teacher_temperature=0.04,
      ... )
      >>> print(terms["loss"].round(4))  # half of log 4: the second view has no masked patch
      0.6931

    Reference: Zhou et al. 2021, eq. 2.
    """
    views, batch, patches = masks.shape
    counts = jnp.maximum(1, masks.sum(axis=-1, keepdims=True))
    dtype = float_type(student, student_prototypes)
    weights = masks.astype(dtype) / counts.astype(dtype)
    # Images outermost, as a batch is sharded.
    rows = (jnp.moveaxis(x, 1, 0) for x in (student, teacher, masks, weights))
    heads = (student_prototypes, teacher_prototypes, center)
    sums = devices.summed(
        functools.partial(_over_images, chunk),
        tuple(rows),
        (*heads, student_temperature, teacher_temperature),
    )
    meter = jax.tree.map(jax.lax.stop_gradient, sums)
    total = views * batch * patches
    return {
        "loss": sums.loss / (views * batch),
        "kl": meter.kl / jnp.maximum(1, masks.sum()).astype(meter.kl.dtype),
        "teacher_entropy": meter.entropy / total,
        "marginal_entropy": divergence.entropy(meter.marginal / total),
        "usage": meters.usage(meter.wins),
        "masked": masks.mean(dtype=sums.loss.dtype),
    }


class _Sums(NamedTuple):
    """Sums over rows: the loss, KL(target || prediction) where masked, the targets' entropies, the
    targets [K], and how often each prototype is the likeliest [K]."""

    loss: jax.Array
    kl: jax.Array
    entropy: jax.Array
    marginal: jax.Array
    wins: jax.Array


class _Rows(NamedTuple):
    """Patches [passes, r, ...]: the teacher's embeddings, whether they are masked, their weights in
    the loss, and whether they are patches or fill up a pass."""

    teacher: jax.Array
    mask: jax.Array
    weight: jax.Array
    there: jax.Array


class _Fixed(NamedTuple):
    """The teacher's prototypes [e, K] and their center [K], and both temperatures."""

    prototypes: jax.Array
    center: jax.Array
    student_temperature: jax.Array
    teacher_temperature: jax.Array


def _over_images(chunk, student, teacher, masks, weights, own, *fixed):
    """`_Sums` of embeddings [B, V, n, d] and masks and weights [B, V, n]. own: the student's
    prototypes; fixed: `_Fixed`."""
    count, width = masks.size, own.shape[-1]
    entries = _ENTRIES_CPU if devices.platform() == "cpu" else _ENTRIES
    number, size = passes.divide(count, chunk or max(1, entries // width))

    def by_pass(x):
        # Every pass has rows of all images, so that no device waits if these are sharded.
        x = passes.pad(x.reshape(count, *x.shape[masks.ndim :]), number * size - count)
        return jnp.moveaxis(x.reshape(size, number, *x.shape[1:]), 1, 0)

    # Half precision has too small a range.
    student, teacher = (
        wide_within_range(x) if x.dtype == jnp.float16 else x for x in (student, teacher)
    )
    rows = _Rows(*map(by_pass, (teacher, masks, weights, jnp.ones(masks.shape, bool))))
    dtype = float_type(student, own)
    fixed = _Fixed(*(jnp.asarray(x).astype(dtype) for x in fixed))
    own = wide_within_range(own).astype(dtype)
    arguments = by_pass(student), own, jax.lax.stop_gradient((rows, fixed))
    return _sums(*devices.varying(arguments, arguments))


@jax.custom_vjp
def _sums(student, own, constants):
    """`_Sums` over all passes of embeddings [passes, r, d]; the gradient is of the loss alone."""
    return _in_passes(student, own, constants, lambda *_: (None, None))[0]


def _forward(student, own, constants):
    """The sums, and with each pass its part of the gradient."""
    return _in_passes(student, own, constants, _gradient)


def _backward(gradients, cotangent):
    # In bfloat16, the factor itself would be rounded, and with it the size of the whole gradient.
    factor = cotangent.loss
    return *((x.astype(factor.dtype) * factor).astype(x.dtype) for x in gradients), None


_sums.defvjp(_forward, _backward)


def _in_passes(student, own, constants, gradient):
    """`_Sums`, and what `gradient` returns: stacked by the student, added up by its prototypes."""
    rows, fixed = constants
    ours, theirs = own.astype(student.dtype), fixed.prototypes.astype(rows.teacher.dtype)
    scalar, vector = jnp.zeros((), own.dtype), jnp.zeros_like(own[0])

    def add(carry, arrays):
        sums, by_own = carry
        embeddings, part = arrays
        # What the student says elsewhere must not matter, not even if it is NaN.
        embeddings = jnp.where(part.mask[:, None], embeddings, 0)
        scores = product("rd,dk->rk", embeddings, ours, out=own.dtype)
        clean = product("re,ek->rk", part.teacher, theirs, out=own.dtype)
        new, by_scores = _of_pass(part, scores, clean, fixed)
        by_student, more = gradient(embeddings, ours, by_scores)
        by_own = by_own if more is None else by_own + more
        return (jax.tree.map(jnp.add, sums, new), by_own), by_student

    start = _Sums(*(3 * [scalar]), *(2 * [vector])), jnp.zeros_like(own)
    (sums, by_own), by_student = jax.lax.scan(
        add, devices.varying(start, (student, own, constants)), (student, rows)
    )
    return sums, (by_student, by_own)


def _of_pass(rows, scores, clean, fixed):
    """`_Sums` of one pass by the scores [r, K] of both networks, and the gradient of its loss by
    the student's. Each line that sums over K reads the scores once more.
    """

    def exponents(scores, temperature, top):
        return (scores - top[:, None]) / temperature

    clean = clean - fixed.center[None]
    best = jnp.argmax(clean, axis=-1)
    top = jnp.take_along_axis(clean, best[:, None], axis=-1)[:, 0]
    z = exponents(clean, fixed.teacher_temperature, top)
    q, x = jnp.exp(z), exponents(scores, fixed.student_temperature, scores.max(axis=-1))
    # Logarithm of the sum minus a mean: in both all terms are >= 0.
    q_sum, of_z = q.sum(axis=-1), (q * z).sum(axis=-1)
    p_sum, of_x = jnp.exp(x).sum(axis=-1), (q * x).sum(axis=-1)
    entropy = jnp.log(q_sum) - of_z / q_sum
    by_row = jnp.where(rows.mask, jnp.log(p_sum) - of_x / q_sum, 0)
    there = rows.there.astype(q.dtype)
    slopes = (rows.weight / fixed.student_temperature)[:, None]
    by_scores = (jnp.exp(x) / p_sum[:, None] - q / q_sum[:, None]) * slopes
    return _Sums(
        loss=(rows.weight * by_row).sum(),
        kl=jnp.where(rows.mask, by_row - entropy, 0).sum(),
        entropy=(there * entropy).sum(),
        marginal=(q * (there / q_sum)[:, None]).sum(axis=0),
        wins=meters.counts(best, q.shape[-1], rows.there).astype(q.dtype),
    ), jnp.where(rows.mask[:, None], by_scores, 0)


def _gradient(embeddings, prototypes, by_scores):
    """Of the loss, by the embeddings [r, d] and by the prototypes [d, K]."""
    wide, by_scores = by_scores.dtype, by_scores.astype(embeddings.dtype)
    by_embeddings = product("rk,dk->rd", by_scores, prototypes, out=wide)
    by_prototypes = product("rd,rk->dk", embeddings, by_scores, out=wide)
    return by_embeddings.astype(embeddings.dtype), by_prototypes
