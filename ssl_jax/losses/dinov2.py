"""DINOv2: the objectives of DINO and iBOT with balanced targets, and class tokens kept apart.

Source: Oquab et al., "DINOv2: Learning Robust Visual Features without Supervision", 2023 (arXiv
2304.07193), section 4; which rows are balanced together and what is averaged follow the official
code.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssl_jax import ops
from ssl_jax.losses.ibot import ibot
from ssl_jax.ops.checked import Positive, checked


@checked
def dinov2(
    student_cls: Float[Array, "S B K"],
    teacher_cls: Float[Array, "T B K"],
    student_patch: Float[Array, "T B n P"],
    teacher_patch: Float[Array, "T B n P"],
    masks: Bool[Array, "T B n"],
    tokens: Float[Array, "T B d"],
    *,
    student_temperature: Positive,
    teacher_temperature: Positive,
    weights: tuple[float, float, float] = (1.0, 1.0, 0.1),
) -> dict[str, jax.Array]:
    """DINO's and iBOT's losses with Sinkhorn-Knopp targets, and KoLeo over a batch's class tokens.

        loss = weights[0] * L_DINO + weights[1] * L_iBOT + weights[2] * L_KoLeo

    Sinkhorn-Knopp is a way of centering: its targets softmax(logits / tau_t + h) are those of DINO
    with the center - tau_t h. Three iterations on the batch give h: over all global views of all
    images for the class tokens, over all masked patches for the patches. L_DINO and L_iBOT are
    those of `losses.ibot`. L_KoLeo is the mean of `ops.koleo` over the images, compared within a
    view, summed over the views; the official code leaves out its constant log 2.

    Args:
      student_cls: logits [S, B, K] of all views, the T global (masked) ones first; any float type
        (computed in float32 or wider).
      teacher_cls: logits [T, B, K] of the clean global views; no gradient.
      student_patch: logits [T, B, n, P] of patches of the masked views.
      teacher_patch: [T, B, n, P], of the same patches of the clean
        views; any subset that contains all masked ones gives the same loss.
      masks: [T, B, n] bool, True = masked for the student (counts).
      tokens: the student's class tokens [T, B, d] of the global views, before the head.
      student_temperature: tau_s > 0 of both losses, a number or a traced scalar.
      teacher_temperature: tau_t > 0 of both, likewise.
      weights: of the three terms.

    Returns:
      dict of scalars: loss, koleo, and the terms of `losses.dino` as cls_... and of
      `losses.ibot_patch` as patch_...

    Raises:
      ValueError: shapes that do not fit, masks that are not boolean, temperatures <= 0 (where
        known).

    Example:
      >>> import jax.numpy as jnp
      >>> cls, patches = jnp.zeros((2, 2, 4)), jnp.zeros((2, 2, 3, 4))
      >>> terms = dinov2(
      ...     cls,
      ...     cls,
      ...     patches,
      ...     patches,
      ...     jnp.ones((2, 2, 3), bool),
      ...     jnp.stack([jnp.eye(2)] * 2),
      ...     student_temperature=0.1,
      ...     teacher_temperature=0.04,
      ... )
      >>> print(f"{terms['loss']:.3f}")  # 2 log 4, and .1 * 2 * log(2) / 2
      2.842

    Reference: Oquab et al. 2023, section 4; Caron et al. 2020 (Sinkhorn-Knopp centering);
    Sablayrolles et al. 2019 (KoLeo).
    """

    def center(logits, where=None):
        # Images outermost, as a batch is sharded.
        rows = jnp.swapaxes(logits, 0, 1).reshape(-1, logits.shape[-1])
        where = None if where is None else jnp.swapaxes(where, 0, 1).reshape(-1)
        potentials = ops.sinkhorn_potentials(rows, temperature=teacher_temperature, where=where)
        return -teacher_temperature * potentials

    terms = ibot(
        student_cls,
        teacher_cls,
        student_patch,
        teacher_patch,
        masks,
        (center(teacher_cls), center(teacher_patch, masks)),
        student_temperature=student_temperature,
        teacher_temperature=teacher_temperature,
        weights=weights[:2],
    )
    koleo = batch_koleo(tokens)
    return {**terms, "loss": terms["loss"] + weights[2] * koleo, "koleo": koleo}


@checked
def batch_koleo(tokens: Float[Array, "V B d"]) -> Float[Array, ""]:
    """KoLeo between the images of a view: the mean over B, summed over views.

    tokens: [V, B, d], one per view and image. See `ops.koleo`.

    Example:
      >>> import jax.numpy as jnp
      >>> print(batch_koleo(jnp.eye(2)[None]).round(3))  # log(2) / 2: orthogonal directions
      0.347
    """
    return ops.koleo(tokens).mean(axis=-1).sum()
