"""CrIBo: self-distillation of images, of their objects across views, and of their objects across
images.

Source: Lebailly, Stegmüller et al., "CrIBo: Self-Supervised Learning via Cross-Image Object-Level
Bootstrapping", ICLR 2024, section 3.2.3. The centers and the factors 1/2, which the text leaves
out, follow the official code.

Both losses take the embeddings before the prototypes, and two functions that know the prototypes:
images and objects have prototypes and centers of their own, and the logits of all objects would not
fit into memory. They exist for some images at a time, and again for the gradient.

    def log_target(embeddings):
        logits = embeddings @ teacher_prototypes
        return ops.centered_softmax(logits, center, temperature=0.04, log=True)

    def log_prediction(embeddings):
        return jax.nn.log_softmax(embeddings @ student_prototypes / 0.1)

With several devices, let each be a `jax.tree_util.Partial` of the arrays it knows: then a device
computes its share of the images, and the gradient by the prototypes is added up once. With arrays
of Explicit axes they must be.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float

from ssl_jax.losses import meters
from ssl_jax.ops import arguments, devices, divergence, numerics

_LOGITS = 2**26  # logits per view held at a time, by default (256 MB in float32)


def cribo_images(
    student: Float[Array, "2 B e"],
    teacher: Float[Array, "2 B e"],
    *,
    log_target: Callable,
    log_prediction: Callable,
    chunk: int | None = None,
) -> dict[str, jax.Array]:
    """Cross-entropy of the teacher's prediction of one view with the student's of the other.

    With z_1, z_2 the two views of an image, p_t and p_s the predictions of teacher and student:

        loss = 1/2 [ mean_B H(p_t(z_1), p_s(z_2)) + mean_B H(p_t(z_2), p_s(z_1)) ]    (eq. 9, 10)

    Args:
      student: [2, B, e], embeddings of the two views; any float type.
      teacher: [2, B, e], likewise; no gradient.
      log_target: teacher's embeddings [..., e] -> logarithms of p_t [..., P].
      log_prediction: student's embeddings [..., e] -> logarithms of p_s [..., P].
      chunk: images that a device works through at a time; None: as many as have about 2^26 logits
        in a view. The next smaller divisor of the images of a device is taken.

    Returns:
      dict of scalars: loss; teacher_entropy, marginal_entropy and usage as from
      `losses.assignment_meters`, of the p_t of both views.

    Raises:
      ValueError: shapes that do not fit, an empty batch, chunk below 1.

    Example:
      >>> import functools
      >>> import jax, jax.numpy as jnp
      >>> from ssl_jax import ops
      >>> logits = jnp.zeros((2, 3, 4))  # three images, four prototypes
      >>> log_target = functools.partial(
      ...     ops.centered_softmax, center=jnp.zeros(4), temperature=0.04, log=True
      ... )
      >>> terms = cribo_images(
      ...     logits, logits, log_target=log_target, log_prediction=jax.nn.log_softmax
      ... )
      >>> print(terms["loss"].round(4))  # log 4
      1.3863

    Reference: CrIBo section 3.2.3, eq. 9 and 10.
    """
    arguments.require_shape("student", student, (2, None, None), "[2, B, e]")
    one = jnp.ones((jnp.shape(student)[1], 1), bool)  # an image is the one object of itself
    rows = _checked({"student": student, "teacher": teacher}, chunk)
    rows = {name: x[:, :, None] for name, x in rows.items()}
    sums, levels = _summed(rows, one, None, log_target, log_prediction, chunk)
    return {"loss": 0.5 * sums[0].sum() / one.size, **levels}


def cribo_objects(
    student: Float[Array, "2 B K e"],
    teacher: Float[Array, "2 B K e"],
    valid: Bool[Array, "B K"],
    *,
    log_target: Callable,
    log_prediction: Callable,
    neighbours: Float[Array, "2 B K e"] | None = None,
    cycle: Bool[Array, "2 B K"] | None = None,
    counts: str = "own",
    chunk: int | None = None,
) -> dict[str, jax.Array]:
    """Cross-entropies over the objects of two views, and over objects of other images.

    With c_i an object and nn_i the object retrieved for it in view i, M the number of valid
    objects, O_i the cycle-consistent ones and Z_i their number:

        L_cv = 1/2 [ sum_o H(p_t(c_1), p_s(c_2)) + sum_o H(p_t(c_2), p_s(c_1)) ] / M  (eq. 5, 6)
        L_ci = 1/2 [ sum_o O_1 H(p_t(nn_1), p_s(c_2)) / Z_1
                   + sum_o O_2 H(p_t(nn_2), p_s(c_1)) / Z_2 ]                         (eq. 7, 8)

    A mean over nothing is 0. The neighbour of view 1 teaches view 2 of the student.

    Args:
      student: [2, B, K, e], embeddings of object k in each view of an image; any float type.
      teacher: [2, B, K, e], likewise; no gradient.
      valid: bool [B, K], objects that both views have; what others hold, NaN included, does not
        matter.
      log_target: as in `cribo_images`.
      log_prediction: likewise.
      neighbours: [2, B, K, e], the teacher's embeddings of nn_1 and nn_2; no gradient; None: no
        L_ci.
      cycle: bool [2, B, K], O_1 and O_2, with neighbours; only valid objects count.
      counts: "own": each half of L_ci has its own Z_i; "first" (official code): both are divided by
        Z_1, and 0 if Z_1 = 0.
      chunk: as in `cribo_images`.

    Returns:
      dict of scalars: cross_view_loss = L_cv; with neighbours cross_image_loss = L_ci; the meters
      of `cribo_images` of the p_t of the valid objects, without the retrieved ones.

    Raises:
      ValueError: shapes that do not fit, an empty axis, neighbours without cycle or the other way
        round, unknown counts, chunk below 1.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> objects, valid = jnp.zeros((2, 3, 5, 4)), jnp.ones((3, 5), bool)
      >>> uniform = jax.nn.log_softmax
      >>> cycle = jnp.zeros((2, 3, 5), bool).at[0, 1, 2].set(True)  # one closes, from view 1
      >>> terms = cribo_objects(
      ...     objects,
      ...     objects,
      ...     valid,
      ...     log_target=uniform,
      ...     log_prediction=uniform,
      ...     neighbours=objects,
      ...     cycle=cycle,
      ... )
      >>> print(terms["cross_view_loss"].round(4), terms["cross_image_loss"].round(4))
      1.3863 0.6931

    Reference: CrIBo section 3.2.3, eq. 5 to 8.
    """
    arguments.require_shape("student", student, (2, None, None, None), "[2, B, K, e]")
    lead = jnp.shape(student)[:3]
    valid = _mask("valid", valid, lead[1:])
    arguments.require(counts in ("own", "first"), "counts", repr(counts), '"own" or "first"')
    arrays = {"student": student, "teacher": teacher}
    if neighbours is None:
        arguments.require(cycle is None, "cycle", "an array", "None without neighbours")
    else:
        arrays["neighbours"], cycle = neighbours, _mask("cycle", cycle, lead) & valid[None]
    rows = _checked(arrays, chunk)
    sums, levels = _summed(rows, valid, cycle, log_target, log_prediction, chunk)
    objects = jnp.maximum(1, valid.sum()).astype(sums.dtype)
    terms = {"cross_view_loss": 0.5 * sums[0].sum() / objects}
    if cycle is not None:
        number = cycle.sum(axis=(1, 2)).astype(sums.dtype)
        by_view = sums[1] / jnp.maximum(1, number if counts == "own" else number[0])
        exists = number > 0 if counts == "own" else number[0] > 0
        terms["cross_image_loss"] = 0.5 * jnp.where(exists, by_view, 0).sum()
    return terms | levels


def _summed(rows, valid, cycle, log_target, log_prediction, chunk):
    """Sums over all objects, taken over some images at a time.

    Args:
      rows: student, teacher and maybe neighbours, [2, B, K, e]; valid: [B, K]; cycle: [2, B, K].

    Returns:
      sums of the cross-entropies, by view of the target: [1, 2], or [2, 2] with neighbours; and the
      meters of the teacher's targets.
    """
    functions = {"log_target": log_target, "log_prediction": log_prediction}
    if devices.explicit_mesh((rows, *functions.values())) is not None:
        for name, function in functions.items():
            expected = "a jax.tree_util.Partial of the arrays it knows, under Explicit sharding"
            arguments.require(isinstance(function, Partial), name, "a function", expected)
        return devices.automatic(
            _summed, (rows, valid, cycle, log_target, log_prediction, chunk), {}
        )
    # What is left out must not matter, not even if it is NaN, so it is replaced before anything is
    # computed from it.
    keep = {"student": valid, "teacher": valid, "neighbours": cycle}
    rows = {name: jnp.where(keep[name][..., None], x, 0) for name, x in rows.items()}

    def look(part, log_target, log_prediction):
        rows, valid, cycle = part
        log_p = numerics.wide(jax.lax.stop_gradient(log_target(rows["teacher"])))
        p = jnp.exp(log_p)
        there = valid.astype(p.dtype)
        # The target of a view meets the student's other view.
        log_q = numerics.wide(log_prediction(rows["student"]))[::-1]
        losses = [-(p * log_q).sum(axis=-1) * there]
        if cycle is not None:
            retrieved = log_target(rows["neighbours"])
            retrieved = jnp.exp(numerics.wide(jax.lax.stop_gradient(retrieved)))
            losses.append(-(retrieved * log_q).sum(axis=-1) * cycle.astype(p.dtype))
        return {
            "losses": jnp.stack([x.sum(axis=(1, 2)) for x in losses]),
            "entropy": (divergence.entropy(log_probs=log_p) * there).sum(),
            # Not as a product, whose operand p would be written to memory.
            "marginal": (p * there[..., None]).sum(axis=(0, 1, 2)),
            "wins": meters.wins(log_p, jnp.broadcast_to(valid, p.shape[:-1])),
        }

    objects = valid.shape[-1]
    width = jax.eval_shape(log_target, rows["teacher"]).shape[-1]
    chunk = chunk or max(1, _LOGITS // (objects * width))

    def over_images(images, *distributions):
        arrays = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), images)
        return _over_images(look, arrays, chunk, distributions)

    images = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), (rows, valid[None], cycle))
    # As trees of arrays, where they are such, so that their gradient is added up once.
    distributions = tuple(
        f if isinstance(f, Partial) else Partial(f) for f in (log_target, log_prediction)
    )
    sums = devices.summed(over_images, (images,), distributions)
    share = 1 / jnp.maximum(1, 2 * valid.sum()).astype(sums["entropy"].dtype)
    return sums["losses"], {
        "teacher_entropy": sums["entropy"] * share,
        "marginal_entropy": divergence.entropy(sums["marginal"] * share),
        "usage": meters.usage(sums["wins"]),
    }


def _over_images(look, arrays, chunk: int, distributions):
    """Sum of look(chunk of arrays, *distributions) over chunks of axis 1 of the arrays, recomputed
    for the gradient where there is more than one.
    """
    images = jax.tree.leaves(arrays)[0].shape[1]
    passes = next(n for n in range(math.ceil(images / chunk), images + 1) if images % n == 0)
    if passes == 1:
        return look(arrays, *distributions)

    def split(x):
        """Pass i has the images i, i + passes, ..."""
        return jnp.moveaxis(x.reshape(x.shape[0], images // passes, passes, *x.shape[2:]), 2, 0)

    def add(total, part):
        return jax.tree.map(jnp.add, total, recomputed(part, *distributions)), None

    policy = None if devices.platform() == "cpu" else _keep_sums
    recomputed = jax.checkpoint(look, policy=policy)
    parts = jax.tree.map(split, arrays)
    first = jax.tree.map(lambda x: x[0], parts)
    shapes = jax.eval_shape(look, first, *distributions)
    start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.scan(add, devices.varying(start, (parts, distributions)), parts)[0]


def _keep_sums(operation, *_, **__) -> bool:
    """Keeps the largest logit of a row and the sum above it: two passes over the logits less."""
    return operation in (jax.lax.reduce_max_p, jax.lax.reduce_sum_p)


def _checked(arrays: dict, chunk) -> dict:
    """The arrays, which must have the shape of "student"; no gradient but of the student."""
    shape = jnp.shape(arrays["student"])
    arguments.require(min(shape) >= 1, "the shape of student", shape, "without an empty axis")
    arguments.require(chunk is None or chunk >= 1, "chunk", chunk, "at least 1")
    for name, array in arrays.items():
        arguments.require_shape(name, array, shape, f"{shape} as student")
    return {
        name: jnp.asarray(x) if name == "student" else jax.lax.stop_gradient(jnp.asarray(x))
        for name, x in arrays.items()
    }


def _mask(name: str, array, shape):
    """`array` as bool, which must have the shape of the objects."""
    arguments.require_shape(name, array, tuple(shape), f"{tuple(shape)}, one entry per object")
    array = jnp.asarray(array)
    arguments.require(array.dtype == jnp.bool_, f"the type of {name}", array.dtype, "bool")
    return array
