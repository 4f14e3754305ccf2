"""DINO: self-distillation with no labels.

Source: Caron et al., "Emerging Properties in Self-Supervised Vision Transformers", 2021, eq. 1 to 4
and algorithm 1.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ssl_jax import ops
from ssl_jax.losses.meters import assignment_meters
from ssl_jax.losses.pairings import across_views
from ssl_jax.ops.arguments import require
from ssl_jax.ops.checked import Positive, checked


@checked
def dino(
    student_logits: Float[Array, "S B K"],
    teacher_logits: Float[Array, "T B K"],
    center: Float[Array, " K"],
    *,
    student_temperature: Positive,
    teacher_temperature: Positive,
) -> dict[str, jax.Array]:
    """Cross-entropy of the teacher's centred, sharpened prediction with the student's across views.

    With q_t = softmax((teacher_t - center) / tau_t) and p_s = softmax(student_s / tau_s):

        loss = mean over pairs s != t and over the batch of - sum_k q_t[k] log p_s[k]  (eq. 2, 3)

    Student view s and teacher view t show the same crop if s = t. The center that the teacher's
    next predictions are corrected by is `ops.ema_center` (eq. 4).

    Args:
      student_logits: [S, B, K], S >= T views, global ones first; any float type (computed in
        float32 or wider).
      teacher_logits: [T, B, K]; no gradient.
      center: [K]; no gradient.
      student_temperature: tau_s > 0, a number or a traced scalar.
      teacher_temperature: tau_t > 0, likewise.

    Returns:
      dict of scalars: loss; global_loss (if T > 1) and local_loss (if S > T), see
      `losses.across_views`; kl, mean KL(q_t || p_s) over the pairs; the meters of
      `losses.assignment_meters` of the q_t.

    Raises:
      ValueError: shapes that do not fit, no pair, temperatures <= 0 (where known).

    Example:
      >>> import jax.numpy as jnp
      >>> student, teacher, center = jnp.zeros((3, 5, 4)), jnp.zeros((2, 5, 4)), jnp.zeros(4)
      >>> terms = dino(student, teacher, center, student_temperature=0.1, teacher_temperature=0.04)
      >>> print(terms["loss"].round(4))  # log 4
      1.3863

    Reference: Caron et al. 2021, algorithm 1.
    """
    views = len(student_logits), len(teacher_logits)
    enough = views[0] >= max(2, views[1])
    require(enough, "the number of views (S, T)", views, "S >= 2 and 1 <= T <= S")
    log_q = ops.centered_softmax(teacher_logits, center, temperature=teacher_temperature, log=True)
    terms = across_views(
        student_logits,
        jnp.exp(log_q),
        functools.partial(softmax_cross_entropy, temperature=student_temperature),
    )
    meters = assignment_meters(log_q)
    return {**terms, "kl": terms["loss"] - meters["teacher_entropy"], **meters}


def softmax_cross_entropy(
    logits: Float[Array, "*b K"], targets: Float[Array, "*b K"], *, temperature: Positive
) -> Float[Array, "*b"]:
    """- sum_k targets[k] log softmax(logits / temperature)[k] of [..., K]: [...]."""
    return ops.cross_entropy(targets, logits, temperature=temperature)
