"""iBOT: image BERT pre-training with an online tokenizer.

Source: Zhou et al., "iBOT: Image BERT Pre-Training with Online Tokenizer", 2021 (arXiv 2111.07832),
eq. 2 and 3 and algorithm 1; the averages and centers that the text leaves open follow the official
code.
"""

import jax
import jax.numpy as jnp

from ssl_jax.losses import usage
from ssl_jax.losses.dino import dino
from ssl_jax.ops import arguments, divergence


def ibot(
    student_cls,
    teacher_cls,
    student_patch,
    teacher_patch,
    masks,
    center,
    patch_center,
    *,
    student_temperature,
    teacher_temperature,
    teacher_patch_temperature,
    center_momentum: float = 0.9,
    patch_center_momentum: float = 0.9,
    patch_mean=None,
    cls_weight: float = 1.0,
    patch_weight: float = 1.0,
):
    """DINO's loss on class tokens across views, plus self-distillation of masked patches within a
    view.

        loss = cls_weight * losses.dino(...)["loss"] + patch_weight * ibot_patch(...)["loss"]
        (eq. 2 and 3)

    Args:
      student_cls: [S, B, K], all views, the T global (masked) ones first.
      teacher_cls: [T, B, K], clean global views; no gradient.
      student_patch: [T, B, n, K'], of the masked global views.
      teacher_patch: [T, B, n, K'], of the same views unmasked; no gradient.
      masks: [T, B, n] bool, True = masked. Only there is a loss.
      center: [K], of the class tokens.
      patch_center: [K'], of the patches.
      patch_mean: [K'] or None, see `ibot_patch`.
      student_temperature: tau_s > 0 of both losses; a number or a traced scalar, as are the next
      two. teacher_temperature: tau_t > 0 of the class tokens.
      teacher_patch_temperature: tau_t > 0 of the patches.
      center_momentum: in [0, 1].
      patch_center_momentum: in [0, 1].
      cls_weight: lambda_1.
      patch_weight: lambda_2.

    Returns:
      dict: loss; center [K] and patch_center [K'], the new ones; the other terms of `losses.dino`
      as cls_... and of `ibot_patch` as patch_... (cls_loss, patch_loss, cls_teacher_entropy, ...).

    Raises:
      ValueError: shapes that do not fit, and what `losses.dino` and `ibot_patch` refuse.

    Example:
      >>> import jax.numpy as jnp
      >>> cls, patches, center = jnp.zeros((2, 5, 4)), jnp.zeros((2, 5, 3, 4)), jnp.zeros(4)
      >>> temperatures = dict(
      ...     student_temperature=0.1, teacher_temperature=0.04, teacher_patch_temperature=0.04
      ... )
      >>> terms = ibot(
      ...     cls, cls, patches, patches, jnp.ones((2, 5, 3), bool), center, center, **temperatures
      ... )
      >>> print(terms["loss"].round(4))  # 2 log 4
      2.7726

    Reference: Zhou et al. 2021, algorithm 1.
    """
    cls = dino(
        student_cls,
        teacher_cls,
        center,
        student_temperature=student_temperature,
        teacher_temperature=teacher_temperature,
        center_momentum=center_momentum,
    )
    views = jnp.shape(teacher_cls)[:2]
    arguments.require_shape(
        "student_patch",
        student_patch,
        (*views, None, None),
        f"[{views[0]}, {views[1]}, n, K'] as teacher_cls",
    )
    patch = ibot_patch(
        student_patch,
        teacher_patch,
        masks,
        patch_center,
        student_temperature=student_temperature,
        teacher_temperature=teacher_patch_temperature,
        center_momentum=patch_center_momentum,
        mean=patch_mean,
    )
    centers = {"center": cls.pop("center"), "patch_center": patch.pop("center")}
    loss = cls_weight * cls["loss"] + patch_weight * patch["loss"]
    named = {
        f"{part}_{name}": value
        for part, terms in (("cls", cls), ("patch", patch))
        for name, value in terms.items()
    }
    return {"loss": loss, **named, **centers}


def ibot_patch(
    student,
    teacher,
    masks,
    center,
    *,
    student_temperature,
    teacher_temperature,
    center_momentum: float = 0.9,
    mean=None,
):
    """Cross-entropy between the teacher's centered, sharpened prediction of a clean patch and the
    student's of the same patch, masked.

    With q_l = softmax((teacher_l - center) / tau_t) and p_l = softmax(student_l / tau_s) for patch
    l of the same view:

        loss = mean over views of mean_B( sum_l m_l H(q_l, p_l) / max(1, sum_l m_l) )
        (eq. 2) center <- center_momentum * center + (1 - center_momentum) * mean of all teacher
        logits

    Only masked patches count; an image with an empty mask adds 0 but stays in the mean over the
    batch. To save work hand in only the patches that may be masked (any subset that contains all
    masked ones gives the same loss) and, as the published center follows ALL patches, their mean
    logits as `mean`. The loss uses the old center. Views run one after another (`lax.map`) and
    their softmax is recomputed for the gradient: besides its inputs the loss holds a few [B, n, K]
    of one view.

    Args:
      student: [V, B, n, K] logits of the masked global views; any float type (computed in float32
      or wider). teacher: [V, B, n, K] of the same patches in the clean views; no gradient.
      masks: [V, B, n] bool, True = masked for the student (counts).
      center: [K]; no gradient.
      student_temperature: tau_s > 0, a number or a traced scalar.
      teacher_temperature: tau_t > 0, likewise.
      center_momentum: in [0, 1].
      mean: [K], the mean logits that the center moves to; None: those of `teacher` as handed in.

    Returns:
      dict of scalars (nats), and the new center:
        loss; center [K]: the new center;
        teacher_entropy: mean entropy of the q_l of all patches handed in, masked or not (defined
        for empty masks too); marginal_entropy: entropy of their mean (0: the same prototype for all
        patches, i.e. collapse);
        usage: share of prototypes that are the likeliest for one or more of those patches;
        kl: mean KL(q_l || p_l) over masked patches, 0 if there is none;
        masked: share of the patches handed in that are masked.

    Raises:
      ValueError: shapes that do not fit, masks that are not boolean, temperatures <= 0 or momentum
      outside [0, 1] (where known).

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
    arguments.require_shape("student", student, (None, None, None, None), "[V, B, n, K]")
    shape = jnp.shape(student)
    arguments.require(
        min(shape) >= 1, "the shape of student", shape, "[V, B, n, K] without an empty axis"
    )
    arguments.require_shape("teacher", teacher, shape, f"{shape} as student")
    arguments.require_shape(
        "masks", masks, shape[:3], f"{shape[:3]} as student without its last axis"
    )
    masks = jnp.asarray(masks)
    arguments.require(
        masks.dtype == jnp.bool_, "the type of masks", masks.dtype, "bool (True = masked)"
    )
    for name, array in (("center", center), ("mean", center if mean is None else mean)):
        arguments.require_shape(name, array, shape[3:], f"[{shape[3]}] as the logits")
    arguments.require_positive("student_temperature", student_temperature)
    arguments.require_positive("teacher_temperature", teacher_temperature)
    arguments.require_between("center_momentum", center_momentum, 0, 1)

    dtype = jnp.promote_types(jnp.result_type(student, teacher), jnp.float32)
    teacher, center = (jax.lax.stop_gradient(jnp.asarray(x)) for x in (teacher, center))
    mean = (
        teacher.astype(dtype).mean(axis=(0, 1, 2))
        if mean is None
        else jax.lax.stop_gradient(jnp.asarray(mean)).astype(dtype)
    )
    center = center.astype(dtype)
    sharpness = 1 / jnp.asarray(teacher_temperature).astype(dtype)

    @jax.checkpoint
    def view(arrays):
        logits, clean, mask = arrays
        logits = jnp.where(
            mask[..., None], logits, 0
        )  # what the student says elsewhere must not matter, not even if it is NaN
        log_target = jax.nn.log_softmax((clean.astype(dtype) - center) * sharpness, axis=-1)
        target = jnp.exp(log_target)
        by_patch = jnp.where(
            mask, divergence.cross_entropy(target, logits, temperature=student_temperature), 0
        )
        by_image = by_patch.sum(axis=-1) / jnp.maximum(1, mask.sum(axis=-1))
        entropy = divergence.entropy(log_probs=log_target)
        kl_sum = jnp.where(mask, by_patch - entropy, 0).sum()
        return (
            by_image.mean(),
            entropy.mean(),
            target.mean(axis=(0, 1)),
            usage.wins(log_target),
            kl_sum,
        )

    loss, entropy, marginal, wins, kl_sum = jax.lax.map(
        view, (jnp.asarray(student), teacher, masks)
    )
    look = {  # at the targets and of how far the student is: to look at, not to train on
        "teacher_entropy": entropy.mean(),
        "marginal_entropy": divergence.entropy(marginal.mean(axis=0)),
        "usage": usage.share(wins.sum(axis=0)),
        "masked": masks.mean(dtype=dtype),
    }
    return {
        "loss": loss.mean(),
        "kl": kl_sum.sum() / jnp.maximum(1, masks.sum()),
        "center": center_momentum * center + (1 - center_momentum) * mean,
        **look,
    }
