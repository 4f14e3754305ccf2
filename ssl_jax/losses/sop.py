"""SOP: self-organizing visual prototypes; the objectives on class tokens and on masked patches.

Source: "Self-Organizing Visual Prototypes for Non-Parametric Representation Learning" (SOP),
section 2; the pairs and averages that the text leaves open follow the official code.
"""

import jax
import jax.numpy as jnp

from ssl_jax.losses import meters, pairs
from ssl_jax.ops import arguments, divergence, voting


def sop(student, teacher, members, weights, *, student_temperature, teacher_temperature):
    """Cross-entropy between the SOP predictions of the teacher in one view and of the student in
    another.

    With P(u; tau) of `ops.sop_vote`, views s of the student and t of the teacher:

        loss = 1 / (2 V - 2) * sum_{s != t} mean_B( - sum_i P(teacher_t; tau_t)_i log P(student_s;
        tau_s)_i )

    and the mean of that over tasks.

    Tasks run one after another and within a task the student's views do too (`lax.map`), which on
    CPU costs no time against doing them at once. So the largest arrays are the teacher's [2, B, K]
    and a few [B, K] of one task and view, besides one reordered copy of a task's members; the
    gradient keeps [T, V, B, d].

    Args:
      student: [V, B, d], V >= 2 views, the two global ones first; unit vectors, any float type
        (computed in float32 or wider).
      teacher: [2, B, d], clean global views; no gradient.
      members: [T, K, M, d] of `ops.build_sops`, T independent tasks; no gradient.
      weights: [T, K, M] of `ops.sop_weights`; no gradient.
      student_temperature: tau_s > 0, a number or a traced scalar.
      teacher_temperature: tau_t > 0, likewise.

    Returns:
      dict of scalars (nats; means over tasks):
        loss; global_loss and (if V > 2) local_loss: means over the pairs whose student view is
        global, or local; teacher_entropy: mean entropy of the teacher's P (0: one SOP each; log K:
        uniform);
        marginal_entropy: entropy of the batch mean of the teacher's P (0: the same SOP for all
        images, i.e. collapse); usage: share of anchors whose SOP is the likeliest for one or more
        of the 2 B teacher embeddings;
        kl: mean KL(teacher || student) over the pairs = loss - teacher_entropy.

    Raises:
      ValueError: shapes that do not fit, temperatures <= 0 (where known).

    Example:
      >>> import jax.numpy as jnp
      >>> from ssl_jax import ops
      >>> members = jnp.eye(4)[None, :, None]  # one task, 4 SOPs, each only its anchor
      >>> weights = ops.sop_weights(jnp.ones((1, 4, 1)), rule="onehot")
      >>> views = jnp.zeros((2, 5, 4))  # no direction: uniform predictions
      >>> terms = sop(
      ...     views, views, members, weights, student_temperature=0.1, teacher_temperature=0.04
      ... )
      >>> print(terms["loss"].round(4))  # log 4
      1.3863

    Reference: SOP section 2.2, eq. 1 and 2, appendix A.1.
    """
    arguments.require_shape("student", student, (None, None, None), "[V, B, d]")
    num_views, batch, width = jnp.shape(student)
    enough = num_views >= 2 and batch >= 1
    arguments.require(
        enough, "the shape of student", jnp.shape(student), "[V, B, d] with V >= 2, B >= 1"
    )
    arguments.require_shape(
        "teacher", teacher, (2, batch, width), f"[2, {batch}, {width}] as student"
    )
    _check_tasks(student, members, weights, student_temperature, teacher_temperature)
    student, teacher = jnp.asarray(student), jax.lax.stop_gradient(jnp.asarray(teacher))

    def task(arrays):
        sops = voting.prepare(*arrays)
        log_target = _target(teacher, teacher_temperature, sops)
        target = jnp.exp(log_target)

        def view(arrays):
            embedding, teachers = arrays
            summed = jnp.einsum("t,tbk->bk", teachers, target)
            return voting.vote_cross_entropy(
                voting.scaled(embedding, student_temperature, sops), summed, sops
            ).mean()

        by_view = jax.lax.map(view, (student, pairs.pair_mask(num_views, 2, target.dtype)))
        look = {
            "teacher_entropy": divergence.entropy(log_probs=log_target).mean(),
            "marginal_entropy": divergence.entropy(target.mean(axis=(0, 1))),
            "usage": meters.usage(meters.wins(log_target)),
        }
        return by_view, look

    by_view, look = jax.tree.map(lambda x: x.mean(axis=0), jax.lax.map(task, (members, weights)))
    return {**pairs.pair_terms(by_view, 2, look["teacher_entropy"]), **look}


def sop_patch(
    student, teacher, members, weights, masks, *, student_temperature, teacher_temperature
):
    """Cross-entropy between SOP predictions of the same patch: clean for the teacher, masked for
    the student (SOP-MIM).

    With H_l = - sum_i P(teacher_l; tau_t)_i log P(student_l; tau_s)_i for patch l of the same view:

        loss = mean over views of mean_B( sum_l m_l H_l / max(1, sum_l m_l) )

    and the mean of that over tasks.

    Only masked patches count; an image with an empty mask adds 0 but stays in the mean over the
    batch. To save work hand in only the patches that may be masked (any subset that contains all
    masked ones gives the same loss). Tasks and views run one after another; the largest arrays are
    a few [B, n, K] of one task and view.

    Args:
      student: [V, B, n, d], projected patches of the masked global views (V = 2 in the paper); any
      float type. teacher: [V, B, n, d], the same patches of the clean views; no gradient.
      members: [T, K, M, d]; no gradient.
      weights: [T, K, M]; no gradient.
      masks: [V, B, n] bool, True = masked for the student (counts).
      student_temperature: tau_s > 0, a number or a traced scalar.
      teacher_temperature: tau_t > 0, likewise.

    Returns:
      dict of scalars (nats; means over tasks):
        loss;
        teacher_entropy: mean entropy of the teacher's P over all n patches handed in, masked or not
          (defined for empty masks too);
        marginal_entropy: entropy of their mean;
        usage: share of anchors whose SOP is the likeliest for one or more of those patches;
        kl: mean KL(teacher || student) over masked patches, 0 if there is none;
        masked: share of the patches handed in that are masked.

    Raises:
      ValueError: shapes that do not fit, masks that are not boolean, temperatures <= 0 (where
      known).

    Example:
      >>> import jax.numpy as jnp
      >>> members, weights = jnp.eye(4)[None, :, None], jnp.ones((1, 4, 1))
      >>> patches = jnp.zeros((2, 1, 3, 4))
      >>> masks = jnp.array([[[True, False, True]], [[False, False, False]]])
      >>> temperatures = dict(student_temperature=0.1, teacher_temperature=0.04)
      >>> terms = sop_patch(patches, patches, members, weights, masks, **temperatures)
      >>> print(terms["loss"].round(4))  # half of log 4: the second view has no masked patch
      0.6931

    Reference: SOP section 2.3 (SOP-MIM), appendix A.1.
    """
    arguments.require_shape("student", student, (None, None, None, None), "[V, B, n, d]")
    shape = jnp.shape(student)
    arguments.require(
        min(shape) >= 1, "the shape of student", shape, "[V, B, n, d] without an empty axis"
    )
    arguments.require_shape("teacher", teacher, shape, f"{shape} as student")
    arguments.require_shape(
        "masks", masks, shape[:3], f"{shape[:3]} as student without its last axis"
    )
    masks = jnp.asarray(masks)
    arguments.require(
        masks.dtype == jnp.bool_, "the type of masks", masks.dtype, "bool (True = masked)"
    )
    _check_tasks(student, members, weights, student_temperature, teacher_temperature)
    # What the student says elsewhere must not matter, not even if it is NaN.
    student = jnp.where(masks[..., None], student, 0)
    teacher = jax.lax.stop_gradient(jnp.asarray(teacher))

    def task(arrays):
        sops = voting.prepare(*arrays)

        def view(arrays):
            embedding, clean, mask = arrays
            log_target = _target(clean, teacher_temperature, sops)
            target = jnp.where(mask[..., None], jnp.exp(log_target), 0)
            by_patch = voting.vote_cross_entropy(
                voting.scaled(embedding, student_temperature, sops), target, sops
            )
            by_image = by_patch.sum(axis=-1) / jnp.maximum(1, mask.sum(axis=-1))
            entropy = divergence.entropy(log_probs=log_target)
            kl_sum = jnp.where(mask, by_patch - entropy, 0).sum()
            return (
                by_image.mean(),
                entropy.mean(),
                jnp.exp(log_target).mean(axis=(0, 1)),
                meters.wins(log_target),
                kl_sum,
            )

        loss, entropy, marginal, wins, kl_sum = jax.lax.map(view, (student, teacher, masks))
        return {
            "loss": loss.mean(),
            "kl": kl_sum.sum() / jnp.maximum(1, masks.sum()),
            "teacher_entropy": entropy.mean(),
            "marginal_entropy": divergence.entropy(marginal.mean(axis=0)),
            "usage": meters.usage(wins.sum(axis=0)),
        }

    by_task = jax.lax.map(task, (members, weights))
    return {**{name: value.mean() for name, value in by_task.items()}, "masked": masks.mean()}


def _target(embeddings, temperature, sops):
    return voting.vote(voting.scaled(embeddings, temperature, sops), sops)


def _check_tasks(student, members, weights, student_temperature, teacher_temperature) -> None:
    """Raises ValueError unless members, weights and the width of student fit and the temperatures
    are above 0.
    """
    width = jnp.shape(student)[-1]
    arguments.require_shape("members", members, (None, None, None, width), f"[T, K, M, {width}]")
    shape = jnp.shape(members)
    arguments.require(
        min(shape) >= 1, "the shape of members", shape, "[T, K, M, d] without an empty axis"
    )
    arguments.require_shape(
        "weights", weights, shape[:3], f"{shape[:3]} as members without its last axis"
    )
    arguments.require_positive("student_temperature", student_temperature)
    arguments.require_positive("teacher_temperature", teacher_temperature)
