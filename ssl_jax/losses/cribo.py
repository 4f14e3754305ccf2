"""CrIBo: self-distillation of images, of their objects across views, and of their objects across
images.

Source: "CrIBo: Self-Supervised Learning via Cross-Image Object-Level Bootstrapping", section 3.2.3;
halves, centers and counts that the text leaves open follow the official code, except where `counts`
says otherwise.
"""

import functools

import jax
import jax.numpy as jnp

from ssl_jax.losses import meters
from ssl_jax.ops import arguments, divergence

_LOGITS = 2**26  # logits per view held at a time, by default (256 MB in float32)


def cribo(
    student_images,
    teacher_images,
    student_objects=None,
    teacher_objects=None,
    neighbours=None,
    *,
    image_center,
    object_center=None,
    valid=None,
    cycle=None,
    student_temperature,
    teacher_temperature,
    center_momentum: float = 0.9,
    gate=1.0,
    weights=(1.0, 1.0, 1.0),
    counts: str = "own",
    student_prototypes=None,
    teacher_prototypes=None,
    chunk: int | None = None,
):
    """Cross-entropies between teacher and student over images, over objects of two views, and over
    objects of other images.

    With p_t(x) = softmax((teacher logits of x - center) / tau_t), p_s(x) = softmax(student logits
    of x / tau_s), z_i the image, c_i an object and nn_i the object retrieved for it in view i, M
    the number of valid objects, O_i the cycle-consistent ones and Z_i their number:

        L_g  = 1/2 [ mean_B H(p_t(z_1), p_s(z_2)) + mean_B H(p_t(z_2), p_s(z_1)) ]
        (eq. 10) L_cv = 1/2 [ sum_o H(p_t(c_1), p_s(c_2)) + sum_o H(p_t(c_2), p_s(c_1)) ] / M
        (eq. 6) L_ci = 1/2 [ sum_o O_1 H(p_t(nn_1), p_s(c_2)) / Z_1 + sum_o O_2 H(p_t(nn_2),
        p_s(c_1)) / Z_2 ]                     (eq. 8) loss = w_g L_g + w_cv L_cv + w_ci gate L_ci
        (eq. 11) center <- center_momentum * center + (1 - center_momentum) * mean of the teacher's
        logits of both views

    The halves are the official code's (the paper writes sums; the ratio of the terms is the same).
    A mean over nothing is 0, and a center without objects stays. The center of the objects follows
    the valid objects, not the retrieved ones; the loss uses the old centers. Logits are worked
    through in chunks of images and recomputed for the gradient.

    Args:
      student_images: [2, B, P], logits of the two views; any float type (computed in float32 or
      wider). teacher_images: [2, B, P]; no gradient.
      student_objects: [2, B, K, P], object k of each view of an image; None: L_g alone (then the
      next two are None too). teacher_objects: [2, B, K, P]; no gradient.
      neighbours: [2, B, K, P], the teacher's logits of nn_1 and nn_2; no gradient; None: no L_ci.
      image_center: [P]; no gradient.
      object_center: [P], with objects; no gradient.
      valid: bool [B, K], objects that both views have; what others hold, NaN included, does not
      matter. None: all. cycle: bool [2, B, K], O_1 and O_2, with neighbours; only valid objects
      count.
      student_temperature: tau_s > 0, a number or a traced scalar.
      teacher_temperature: tau_t > 0, likewise.
      center_momentum: in [0, 1].
      gate: in [0, 1], a number or a traced scalar: 0 in the first epoch.
      weights: (w_g, w_cv, w_ci), >= 0.
      counts: "own": each half of L_ci has its own Z_i; "first" (official code): both are divided by
      Z_1, and 0 if Z_1 = 0. student_prototypes: (images [d, P], objects [d, P]): then the arrays
      above hold embeddings [..., d], and logits, embedding @ prototypes in the prototypes' type,
      exist a chunk at a time. The second may be None without objects. None: logits are given.
      teacher_prototypes: the same of the teacher; no gradient. Both or none.
      chunk: images of one chunk; None: as many as have about 2^26 logits in a view. The images of a
        chunk are spread over all of them, so that a sharded batch keeps all devices busy, and their
        number is the next smaller divisor of B.

    Returns:
      dict of scalars (nats) and centers:
        loss; global_loss = L_g; with objects cross_view_loss = L_cv; with neighbours
        cross_image_loss = gate L_ci; image_center, and with objects object_center [P]: the new
        ones;
        image_teacher_entropy, object_teacher_entropy: mean entropy of the p_t of both views (0: one
        prototype; log P: uniform); image_marginal_entropy, object_marginal_entropy: entropy of the
        mean p_t (0: the same prototype for all, i.e. collapse); image_usage, object_usage: share of
        prototypes that are the likeliest for one or more of them.

    Raises:
      ValueError: shapes that do not fit, arguments without those they belong to, values out of
      range (where known).

    Example:
      >>> import jax.numpy as jnp
      >>> # four prototypes, five objects per image
      >>> images, objects = jnp.zeros((2, 3, 4)), jnp.zeros((2, 3, 5, 4))
      >>> settings = dict(
      ...     student_temperature=0.1,
      ...     teacher_temperature=0.04,
      ...     image_center=jnp.zeros(4),
      ...     object_center=jnp.zeros(4),
      ... )
      >>> cycle = jnp.zeros((2, 3, 5), bool).at[0, 1, 2].set(True)  # one cycle closes, from view 1
      >>> terms = cribo(images, images, objects, objects, objects, cycle=cycle, **settings)
      >>> print(
      ...     terms["global_loss"].round(4),
      ...     terms["cross_view_loss"].round(4),
      ...     terms["cross_image_loss"].round(4),
      ... )
      1.3863 1.3863 0.6931

    Reference: CrIBo section 3.2.3, eq. 5 to 11.
    """
    given = {"objects": student_objects is not None, "neighbours": neighbours is not None}
    _check_together(given["objects"], teacher_objects=teacher_objects, object_center=object_center)
    _check_together(given["neighbours"], cycle=cycle)
    arguments.require(
        given["objects"] or not given["neighbours"],
        "neighbours",
        "given",
        "None without student_objects",
    )
    arguments.require(
        (student_prototypes is None) == (teacher_prototypes is None),
        "prototypes",
        "given once",
        "given for both or none",
    )
    arguments.require(
        len(weights) == 3 and min(weights) >= 0, "weights", weights, "three numbers >= 0"
    )
    arguments.require(counts in ("own", "first"), "counts", repr(counts), '"own" or "first"')
    arguments.require(chunk is None or chunk >= 1, "chunk", chunk, "at least 1")
    arguments.require_positive("student_temperature", student_temperature)
    arguments.require_positive("teacher_temperature", teacher_temperature)
    arguments.require_between("center_momentum", center_momentum, 0, 1)
    arguments.require_between("gate", gate, 0, 1)
    arguments.require_shape("student_images", student_images, (2, None, None), "[2, B, P]")
    _, batch, width = jnp.shape(student_images)
    arguments.require(batch >= 1, "the batch", batch, "at least 1")
    student_prototypes, teacher_prototypes = (
        student_prototypes or (None, None),
        teacher_prototypes or (None, None),
    )
    level = functools.partial(
        _level,
        temperatures=(student_temperature, teacher_temperature),
        momentum=center_momentum,
        chunk=chunk,
    )

    teacher_images = _as("teacher_images", teacher_images, student_images)
    terms = level(
        "image",
        student_images[:, :, None],
        teacher_images[:, :, None],
        None,
        center=image_center,
        where=jnp.ones((batch, 1), bool),
        cycle=None,
        prototypes=student_prototypes[0],
        frozen=teacher_prototypes[0],
    )
    terms["global_loss"] = 0.5 * terms.pop("sums").sum() / batch
    loss = weights[0] * terms["global_loss"]

    if given["objects"]:
        arguments.require_shape(
            "student_objects", student_objects, (2, batch, None, width), f"[2, {batch}, K, {width}]"
        )
        shape = jnp.shape(student_objects)
        arguments.require(
            shape[2] >= 1, "the shape of student_objects", shape, "without an empty axis"
        )
        valid = jnp.ones(shape[1:3], bool) if valid is None else _mask("valid", valid, shape[1:3])
        if given["neighbours"]:
            cycle = _mask("cycle", cycle, shape[:3]) & valid
            neighbours = _as("neighbours", neighbours, student_objects)
        teacher_objects = _as("teacher_objects", teacher_objects, student_objects)
        found = level(
            "object",
            student_objects,
            teacher_objects,
            neighbours,
            center=object_center,
            where=valid,
            cycle=cycle,
            prototypes=student_prototypes[1],
            frozen=teacher_prototypes[1],
        )
        sums = found.pop("sums")
        terms |= found
        terms["cross_view_loss"] = 0.5 * sums[:2].sum() / jnp.maximum(1, valid.sum())
        loss = loss + weights[1] * terms["cross_view_loss"]
    if given["neighbours"]:
        number = cycle.sum(axis=(1, 2))
        if counts == "first":
            terms["cross_image_loss"] = jnp.where(
                number[0] > 0, 0.5 * gate * sums[2:].sum() / jnp.maximum(1, number[0]), 0
            )
        else:
            terms["cross_image_loss"] = 0.5 * gate * (sums[2:] / jnp.maximum(1, number)).sum()
        loss = loss + weights[2] * terms["cross_image_loss"]
    return {"loss": loss, **terms}


def _level(
    name,
    student,
    teacher,
    neighbours,
    *,
    center,
    where,
    cycle,
    prototypes,
    frozen,
    temperatures,
    momentum,
    chunk,
):
    """One level of the loss ("image" or "object"), on rows [2, B, K, d or P] that exist where
    `where` [B, K] says so.

    Returns:
      dict: sums [2] or [4] of the cross-entropies over rows, by view of the target, then the same
      for neighbours; the new center and the entropies, under the level's name.
    """
    dtype = jnp.promote_types(jnp.result_type(student, teacher), jnp.float32)
    outputs = _outputs(name, student, prototypes, frozen)
    arguments.require_shape(
        f"{name}_center", center, (outputs,), f"[{outputs}], one entry per prototype"
    )
    teacher, neighbours, center, frozen = jax.lax.stop_gradient(
        (teacher, neighbours, jnp.asarray(center).astype(dtype), frozen)
    )
    # What is left out must not matter, not even if it is NaN, so it is replaced before anything is
    # computed from it.
    student, teacher = (jnp.where(where[..., None], x, 0) for x in (student, teacher))
    if neighbours is not None:
        neighbours = jnp.where(cycle[..., None], neighbours, 0)
    tau_s, sharpness = temperatures[0], 1 / jnp.asarray(temperatures[1]).astype(dtype)

    def log_target(rows):
        return jax.lax.stop_gradient(
            jax.nn.log_softmax((_logits(rows, frozen, dtype) - center) * sharpness, axis=-1)
        )

    def look(part):
        student, teacher, neighbours, where, cycle = part
        opposite = _logits(student, prototypes, dtype)[
            ::-1
        ]  # the target of a view meets the student's other view
        log_p = log_target(teacher)
        p = jnp.exp(log_p)
        kept = where.astype(dtype)
        sums = [(divergence.cross_entropy(p, opposite, temperature=tau_s) * kept).sum(axis=(1, 2))]
        if neighbours is not None:
            cross = divergence.cross_entropy(
                jnp.exp(log_target(neighbours)), opposite, temperature=tau_s
            )
            sums.append((cross * cycle).sum(axis=(1, 2)))
        entropy = (divergence.entropy(log_probs=log_p) * kept).sum()
        wins = meters.wins(log_p, jnp.broadcast_to(kept, log_p.shape[:-1]))
        return jnp.concatenate(sums), entropy, jnp.einsum("vbkp,bk->p", p, kept[0]), wins

    arrays = (student, teacher, neighbours, where[None], cycle)
    sums, entropy, marginal, wins = _summed(
        look, arrays, chunk or max(1, _LOGITS // (where.shape[1] * outputs))
    )
    total = 2 * where.sum()
    share = 1 / jnp.maximum(1, total).astype(dtype)
    # Logits are linear in the rows, so their mean is that of the mean row.
    mean = _logits(
        teacher.astype(dtype).sum(axis=(0, 1, 2)) * share,
        None if frozen is None else frozen.astype(dtype),
        dtype,
    )
    return {
        "sums": sums,
        f"{name}_center": jnp.where(total > 0, momentum * center + (1 - momentum) * mean, center),
        f"{name}_teacher_entropy": entropy * share,
        f"{name}_marginal_entropy": divergence.entropy(marginal * share),
        f"{name}_usage": meters.usage(wins),
    }


def _summed(look, arrays, chunk: int):
    """Sum of look(chunk of arrays) over chunks of their axis 1, recomputed for the gradient where
    there is more than one.
    """
    images = arrays[0].shape[1]
    passes = next(n for n in range(-(-images // chunk), images + 1) if images % n == 0)
    if passes == 1:
        return look(arrays)

    def split(x):
        """Images number, number + passes, ...: every shard of the batch has images in every
        pass.
        """
        return jnp.moveaxis(x.reshape(x.shape[0], images // passes, passes, *x.shape[2:]), 2, 0)

    def add(total, part):
        return jax.tree.map(jnp.add, total, jax.checkpoint(look)(part)), None

    parts = jax.tree.map(split, arrays)
    shapes = jax.eval_shape(look, jax.tree.map(lambda x: x[0], parts))
    return jax.lax.scan(add, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), parts)[0]


def _logits(rows, prototypes, dtype):
    """Rows as they are, or times the prototypes in the type of these; `dtype`."""
    if prototypes is None:
        return rows.astype(dtype)
    return jnp.matmul(rows.astype(prototypes.dtype), prototypes, preferred_element_type=dtype)


def _outputs(name: str, rows, prototypes, frozen) -> int:
    """Number of prototypes P."""
    width = rows.shape[-1]
    if prototypes is None and frozen is None:
        return width
    for owner, array in (("student", prototypes), ("teacher", frozen)):
        wanted = f"[{width}, P] as wide as the embeddings, the same P for both"
        arguments.require(
            array is not None, f"the {name} entry of {owner}_prototypes", None, wanted
        )
        arguments.require_shape(
            f"the {name} entry of {owner}_prototypes",
            array,
            (width, jnp.shape(prototypes)[-1]),
            wanted,
        )
    return jnp.shape(prototypes)[1]


def _as(name: str, array, other):
    """`array` after a look at its shape, which must be that of `other`."""
    shape = jnp.shape(other)
    arguments.require_shape(name, array, shape, f"{shape} as the student's")
    return jnp.asarray(array)


def _mask(name: str, array, shape):
    arguments.require_shape(name, array, tuple(shape), f"{tuple(shape)}, one entry per object")
    array = jnp.asarray(array)
    arguments.require(array.dtype == jnp.bool_, f"the type of {name}", array.dtype, "bool")
    return array


def _check_together(wanted: bool, **others) -> None:
    for name, value in others.items():
        arguments.require(
            (value is not None) == wanted,
            name,
            "None" if value is None else "given",
            "given with what it belongs to, only",
        )
