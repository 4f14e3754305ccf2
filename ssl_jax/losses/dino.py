"""DINO: self-distillation with no labels.

Source: Caron et al., "Emerging Properties in Self-Supervised Vision Transformers", 2021, eq. 1 to 4
and algorithm 1."""

import jax
import jax.numpy as jnp

from ssl_jax.losses import pairs, usage
from ssl_jax.ops import arguments, divergence


def dino(
    student_logits,
    teacher_logits,
    center,
    *,
    student_temperature,
    teacher_temperature,
    center_momentum: float = 0.9,
):
    """Cross-entropy between the teacher's centered, sharpened prediction of one view and the
    student's of another.

    With q_t = softmax((teacher_t - center) / tau_t) and p_s = softmax(student_s / tau_s):

        loss = mean over pairs s != t and over the batch of  - sum_k q_t[k] log p_s[k]
        (eq. 2 and 3) center <- center_momentum * center + (1 - center_momentum) * mean of all
        teacher logits           (eq. 4)

    Student view s and teacher view t show the same crop if s = t: the first T student views are the
    teacher's. The loss uses the old center. The student's views run one after another (`lax.map`),
    and their softmax is recomputed for the gradient: besides its inputs the loss holds the
    teacher's [T, B, K] and a few [B, K].

    Args:
      student_logits: [S, B, K], S >= T views, global ones first; any float type (computed in
      float32 or wider). teacher_logits: [T, B, K]; no gradient.
      center: [K]; no gradient.
      student_temperature: tau_s > 0, a number or a traced scalar.
      teacher_temperature: tau_t > 0, likewise.
      center_momentum: in [0, 1].

    Returns:
      dict of scalars, and the new center:
        loss; global_loss (if T > 1) and local_loss (if S > T): means over the pairs whose student
        view is global, or local;
        center [K]: the new center;
        teacher_entropy: mean entropy of the q_t, nats (0: one prototype each; log K: uniform);
        marginal_entropy: entropy of the mean q_t (0: the same prototype for all images, i.e.
          collapse);
        usage: share of prototypes that are the likeliest for one or more of the T B targets;
        kl: mean KL(q_t || p_s) over the pairs = loss - teacher_entropy.

    Raises:
      ValueError: shapes that do not fit, no pair, temperatures <= 0 or momentum outside [0, 1]
      (where known).

    Example:
      >>> import jax.numpy as jnp
      >>> student, teacher, center = jnp.zeros((3, 5, 4)), jnp.zeros((2, 5, 4)), jnp.zeros(4)
      >>> terms = dino(student, teacher, center, student_temperature=0.1, teacher_temperature=0.04)
      >>> print(terms["loss"].round(4))  # log 4
      1.3863

    Reference: Caron et al. 2021, algorithm 1.
    """
    arguments.require_shape("student_logits", student_logits, (None, None, None), "[S, B, K]")
    num_student, batch, width = jnp.shape(student_logits)
    meaning = f"[T, {batch}, {width}] as student_logits"
    arguments.require_shape("teacher_logits", teacher_logits, (None, batch, width), meaning)
    arguments.require_shape("center", center, (width,), f"[{width}] as the logits")
    num_teacher = jnp.shape(teacher_logits)[0]
    enough = 1 <= num_teacher <= num_student and num_student > 1
    arguments.require(
        enough, "the number of views (S, T)", (num_student, num_teacher), "S >= 2 and 1 <= T <= S"
    )
    arguments.require(batch >= 1, "the batch", batch, "at least 1")
    arguments.require_positive("student_temperature", student_temperature)
    arguments.require_positive("teacher_temperature", teacher_temperature)
    arguments.require_between("center_momentum", center_momentum, 0, 1)

    dtype = jnp.promote_types(jnp.result_type(student_logits, teacher_logits), jnp.float32)
    teacher_logits, center = (
        jax.lax.stop_gradient(jnp.asarray(x).astype(dtype)) for x in (teacher_logits, center)
    )
    sharpness = 1 / jnp.asarray(teacher_temperature).astype(dtype)
    log_target = jax.lax.stop_gradient(
        jax.nn.log_softmax((teacher_logits - center) * sharpness, axis=-1)
    )
    target = jnp.exp(log_target)

    @jax.checkpoint
    def view(arrays):
        logits, teachers = arrays
        summed = jnp.einsum("t,tbk->bk", teachers, target)
        return divergence.cross_entropy(summed, logits, temperature=student_temperature).mean()

    by_view = jax.lax.map(
        view, (jnp.asarray(student_logits), pairs.pair_mask(num_student, num_teacher, dtype))
    )
    teacher_entropy = divergence.entropy(log_probs=log_target).mean()
    return {
        **pairs.pair_terms(by_view, num_teacher, teacher_entropy),
        "center": (
            center_momentum * center + (1 - center_momentum) * teacher_logits.mean(axis=(0, 1))
        ),
        "teacher_entropy": teacher_entropy,
        "marginal_entropy": divergence.entropy(target.mean(axis=(0, 1))),
        "usage": usage.share(usage.wins(log_target)),
    }
