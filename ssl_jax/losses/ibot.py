"""iBOT: image BERT pre-training with an online tokenizer.

Source: Zhou et al., "iBOT: Image BERT Pre-Training with Online Tokenizer", 2021 (arXiv 2111.07832),
eq. 2 and 3 and algorithm 1; the averages that the text leaves open follow the official code.
"""

import functools

import jax
from jaxtyping import Array, Bool, Float

from ssl_jax import ops
from ssl_jax.losses.dino import dino, softmax_cross_entropy
from ssl_jax.losses.pairings import masked_patches
from ssl_jax.ops.checked import Positive, checked


@checked
def ibot(
    student_cls: Float[Array, "S B K"],
    teacher_cls: Float[Array, "T B K"],
    student_patch: Float[Array, "T B n P"],
    teacher_patch: Float[Array, "T B n P"],
    masks: Bool[Array, "T B n"],
    centers: tuple[Float[Array, " K"], Float[Array, " P"]],
    *,
    student_temperature: Positive,
    teacher_temperature: Positive,
    patch_teacher_temperature: Positive | None = None,
    weights: tuple[float, float] = (1.0, 1.0),
) -> dict[str, jax.Array]:
    """DINO's loss on class tokens, plus self-distillation of masked patches within a view.

        loss = weights[0] * losses.dino(...)["loss"] + weights[1] * ibot_patch(...)["loss"]
                                                                                  (eq. 2 and 3)

    Args:
      student_cls: logits [S, B, K] of all views, the T global (masked) ones first.
      teacher_cls: logits [T, B, K] of the clean global views; no gradient.
      student_patch: logits [T, B, n, P] of the masked global views, see `ibot_patch`.
      teacher_patch: [T, B, n, P], of the same patches of the clean views; no gradient.
      masks: bool [T, B, n], True = masked.
      centers: [K] of the class tokens and [P] of the patches.
      student_temperature: tau_s > 0 of both losses; a number or a traced scalar.
      teacher_temperature: tau_t > 0, likewise.
      patch_teacher_temperature: tau_t > 0 of the patches; None: that of the class tokens.
      weights: lambda_1 and lambda_2.

    Returns:
      dict of scalars: loss, and the terms of `losses.dino` as cls_... and of `ibot_patch` as
      patch_...

    Raises:
      ValueError: what `losses.dino` and `ibot_patch` refuse, or other views of the patches.

    Example:
      >>> import jax.numpy as jnp
      >>> cls, patches, center = jnp.zeros((2, 5, 4)), jnp.zeros((2, 5, 3, 4)), jnp.zeros(4)
      >>> terms = ibot(
      ...     cls,
      ...     cls,
      ...     patches,
      ...     patches,
      ...     jnp.ones((2, 5, 3), bool),
      ...     (center, center),
      ...     student_temperature=0.1,
      ...     teacher_temperature=0.04,
      ... )
      >>> print(terms["loss"].round(4))  # 2 log 4
      2.7726

    Reference: Zhou et al. 2021, algorithm 1.
    """
    cls = dino(
        student_cls,
        teacher_cls,
        centers[0],
        student_temperature=student_temperature,
        teacher_temperature=teacher_temperature,
    )
    patch_temperature = patch_teacher_temperature
    patch = ibot_patch(
        student_patch,
        teacher_patch,
        masks,
        centers[1],
        student_temperature=student_temperature,
        teacher_temperature=teacher_temperature if patch_temperature is None else patch_temperature,
    )
    return {
        "loss": weights[0] * cls["loss"] + weights[1] * patch["loss"],
        **{f"cls_{name}": value for name, value in cls.items()},
        **{f"patch_{name}": value for name, value in patch.items()},
    }


@checked
def ibot_patch(
    student_logits: Float[Array, "V B n K"],
    teacher_logits: Float[Array, "V B n K"],
    masks: Bool[Array, "V B n"],
    center: Float[Array, " K"],
    *,
    student_temperature: Positive,
    teacher_temperature: Positive,
) -> dict[str, jax.Array]:
    """Cross-entropy of the teacher's prediction of a clean patch with the student's of it, masked.

    With q_l = softmax((teacher_l - center) / tau_t) and p_l = softmax(student_l / tau_s) for patch
    l of the same view:

        loss = mean over views of mean_B( sum_l m_l H(q_l, p_l) / max(1, sum_l m_l) )      (eq. 2)

    Only masked patches count; an image with an empty mask adds 0 but stays in the mean over the
    batch. To save work hand in only the patches that may be masked: any subset that contains all
    masked ones gives the same loss. The published center (`ops.ema_center`) follows ALL patches.

    Args:
      student_logits: [V, B, n, K] of the masked global views; any float type (computed in float32
        or wider).
      teacher_logits: [V, B, n, K] of the same patches in the clean views; no gradient.
      masks: [V, B, n] bool, True = masked for the student (counts).
      center: [K]; no gradient.
      student_temperature: tau_s > 0, a number or a traced scalar.
      teacher_temperature: tau_t > 0, likewise.

    Returns:
      dict of scalars, see `losses.masked_patches`: loss, kl, teacher_entropy, marginal_entropy,
      usage, masked.

    Raises:
      ValueError: shapes that do not fit, masks that are not boolean, temperatures <= 0 (where
        known).

    Example:
      >>> import jax.numpy as jnp
      >>> patches, center = jnp.zeros((2, 1, 3, 4)), jnp.zeros(4)
      >>> masks = jnp.array([[[True, False, True]], [[False, False, False]]])
      >>> terms = ibot_patch(
      ...     patches, patches, masks, center, student_temperature=0.1, teacher_temperature=0.04
      ... )
      >>> print(terms["loss"].round(4))  # half of log 4: the second view has no masked patch
      0.6931

    Reference: Zhou et al. 2021, eq. 2.
    """
    log_target = functools.partial(
        ops.centered_softmax, center=center, temperature=teacher_temperature, log=True
    )
    return masked_patches(
        student_logits,
        teacher_logits,
        masks,
        log_target=log_target,
        cross_entropy=functools.partial(softmax_cross_entropy, temperature=student_temperature),
    )
