"""SOP: self-organizing visual prototypes; the objectives on class tokens and on masked patches.

Source: "Self-Organizing Visual Prototypes for Non-Parametric Representation Learning" (SOP),
section 2; the pairs and averages that the text leaves open follow the official code.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssl_jax.losses.meters import assignment_meters
from ssl_jax.losses.pairings import across_views, masked_patches
from ssl_jax.ops import voting
from ssl_jax.ops.arguments import require
from ssl_jax.ops.checked import Positive, checked


@checked
def sop(
    student_embeddings: Float[Array, "V B d"],
    teacher_embeddings: Float[Array, "Vt B d"],
    members: Float[Array, "T K M d"],
    weights: Float[Array, "T K M"],
    *,
    student_temperature: Positive,
    teacher_temperature: Positive,
) -> dict[str, jax.Array]:
    """Cross-entropy of the teacher's SOP prediction of one view with the student's of another.

    With P(u; tau) of `ops.sop_vote`, views s of the student and t of the teacher:

        H(t, s) = - sum_i P(teacher_t; tau_t)_i log P(student_s; tau_s)_i
        loss = 1 / (2 V - 2) * sum_{s != t} mean_B(H(t, s))

    and the mean of that over tasks.

    Tasks run one after another, and within a task the student's views do too. So the largest arrays
    are the teacher's [2, B, K] and a few [B, K] of one task and view, besides one reordered copy of
    a task's members; the gradient keeps [T, V, B, d]. A GPU is kept busy by several views and
    member slots at a time: `losses.across_views`, `ops.sop_vote`.

    Args:
      student_embeddings: [V, B, d], V >= 2 views, the two global ones first; unit vectors, any
        float type (computed in float32 or wider).
      teacher_embeddings: [2, B, d], clean global views; no gradient.
      members: [T, K, M, d] of `ops.build_sops`, T independent tasks; no gradient.
      weights: [T, K, M] of `ops.sop_weights`; no gradient.
      student_temperature: tau_s > 0, a number or a traced scalar.
      teacher_temperature: tau_t > 0, likewise.

    Returns:
      dict of scalars (nats; means over tasks): loss, global_loss and (if V > 2) local_loss, see
      `losses.across_views`; kl, mean KL(teacher || student) over the pairs; the meters of
      `losses.assignment_meters` of the teacher's P.

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
    views = len(student_embeddings), len(teacher_embeddings)
    enough = views[0] >= 2 and views[1] == 2
    require(enough, "the number of views (student, teacher)", views, "V >= 2 and 2")

    def task(arrays):
        sops = voting.prepare(*arrays)
        log_targets = _log_targets(teacher_embeddings, teacher_temperature, sops)
        cross_entropy = functools.partial(_cross_entropy, student_temperature, sops)
        # The cross-entropy keeps its gradient, which is small, so a view need not be recomputed.
        terms = across_views(
            student_embeddings, jnp.exp(log_targets), cross_entropy, recompute=False
        )
        return terms | assignment_meters(log_targets)

    terms = _mean_over_tasks(task, members, weights)
    return terms | {"kl": terms["loss"] - terms["teacher_entropy"]}


@checked
def sop_patch(
    student_embeddings: Float[Array, "V B n d"],
    teacher_embeddings: Float[Array, "V B n d"],
    members: Float[Array, "T K M d"],
    weights: Float[Array, "T K M"],
    masks: Bool[Array, "V B n"],
    *,
    student_temperature: Positive,
    teacher_temperature: Positive,
) -> dict[str, jax.Array]:
    """Cross-entropy of SOP predictions of a patch, clean for the teacher and masked (SOP-MIM).

    With H_l = - sum_i P(teacher_l; tau_t)_i log P(student_l; tau_s)_i for patch l of the same view:

        loss = mean over views of mean_B( sum_l m_l H_l / max(1, sum_l m_l) )

    and the mean of that over tasks.

    Only masked patches count; an image with an empty mask adds 0 but stays in the mean over the
    batch. To save work hand in only the patches that may be masked: any subset that contains all
    masked ones gives the same loss. Tasks and views run one after another; the largest arrays are a
    few [B, n, K] of one task and view.

    Args:
      student_embeddings: [V, B, n, d], projected patches of the masked global views (V = 2 in the
        paper); any float type.
      teacher_embeddings: [V, B, n, d], the same patches of the clean views; no gradient.
      members: [T, K, M, d] of `ops.build_sops`, T independent tasks; no gradient.
      weights: [T, K, M] of `ops.sop_weights`; no gradient.
      masks: [V, B, n] bool, True = masked for the student (counts).
      student_temperature: tau_s > 0, a number or a traced scalar.
      teacher_temperature: tau_t > 0, likewise.

    Returns:
      dict of scalars (means over tasks), see `losses.masked_patches`: loss, kl, teacher_entropy,
      marginal_entropy, usage, masked.

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

    def task(arrays):
        sops = voting.prepare(*arrays)
        return masked_patches(
            student_embeddings,
            teacher_embeddings,
            masks,
            log_target=lambda clean: _log_targets(clean, teacher_temperature, sops),
            cross_entropy=functools.partial(_cross_entropy, student_temperature, sops),
            recompute=False,
        )

    return _mean_over_tasks(task, members, weights)


def _mean_over_tasks(task, members, weights) -> dict:
    """Means of the terms that `task((members, weights))` gives; one task after another."""
    by_task = jax.lax.map(task, (members, weights))
    return {name: value.mean() for name, value in by_task.items()}


def _log_targets(embeddings, temperature, sops: voting.Sops):
    """log P(embeddings; temperature), a constant."""
    embeddings = jax.lax.stop_gradient(embeddings)
    return voting.vote(voting.scaled(embeddings, temperature, sops), sops)


def _cross_entropy(temperature, sops: voting.Sops, embeddings, targets):
    """- sum_i targets_i log P(embeddings; temperature)_i."""
    return voting.vote_cross_entropy(voting.scaled(embeddings, temperature, sops), targets, sops)
