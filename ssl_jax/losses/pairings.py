"""Which prediction meets which target: views of an image across each other, masked patches within a
view."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssl_jax.losses import meters
from ssl_jax.ops import devices, divergence
from ssl_jax.ops.arguments import require
from ssl_jax.ops.numerics import wide


def across_views(
    student: Float[Array, "S B *d"],
    targets: Float[Array, "T B K"],
    cross_entropy: Callable,
    *,
    recompute: bool = True,
) -> dict[str, jax.Array]:
    """Mean cross-entropy over all pairs of different views.

    The first T of the S student views are the T views of the teacher; (s, t) is a pair if s != t.
    Views run one after another (`lax.map`), so that only one view's predictions are held; on a GPU
    several at a time, if they have no more than 2^27 predictions on each.

    Args:
      student: [S, B, ...], S >= T views, global ones first.
      targets: [T, B, K], distributions; constants.
      cross_entropy: (student view [B, ...], targets [B, K]) -> [B], linear in the targets. The
        targets of a view are summed before it is called: T - 1 of them, or T for a local view.
      recompute: what a view computes is not kept for the gradient.

    Returns:
      dict of scalars: loss, the mean over pairs and batch; global_loss (student view s < T) if
      T > 1 and local_loss (s >= T) if S > T, the means over those pairs.

    Raises:
      ValueError: there is no pair, S < T, or other images in student and targets.

    Example:
      >>> import jax.numpy as jnp
      >>> from ssl_jax import ops
      >>> targets = jnp.full((2, 3, 4), 0.25)  # two views of three images, four prototypes
      >>> terms = across_views(jnp.zeros((5, 3, 4)), targets, lambda x, p: ops.cross_entropy(p, x))
      >>> print(terms["global_loss"].round(4), terms["local_loss"].round(4))  # log 4
      1.3863 1.3863

    Reference: DINO (Caron et al. 2021), eq. 3.
    """
    num_student, num_teacher = student.shape[0], targets.shape[0]
    least = f"at least {max(2, num_teacher)}, those of the teacher first"
    require(num_student >= max(2, num_teacher), "the number of student views", num_student, least)
    batch = student.shape[1]
    require(targets.shape[1] == batch, "the batch of targets", targets.shape[1], f"{batch}")
    pairs = 1 - jnp.eye(num_student, num_teacher, dtype=targets.dtype)

    def view(arrays):
        prediction, row = arrays
        target = jnp.einsum("t,tbk->bk", row, targets, precision="highest")
        return cross_entropy(prediction, target).mean()

    together = devices.at_once(num_student, targets[0].size)
    by_view = jax.lax.map(
        _recomputed(view) if recompute else view,
        (student, pairs),
        batch_size=together if together > 1 else None,
    )
    global_pairs = num_teacher * (num_teacher - 1)
    local_pairs = num_teacher * (num_student - num_teacher)
    terms = {"loss": by_view.sum() / (global_pairs + local_pairs)}
    if global_pairs:
        terms["global_loss"] = by_view[:num_teacher].sum() / global_pairs
    if local_pairs:
        terms["local_loss"] = by_view[num_teacher:].sum() / local_pairs
    return terms


def masked_patches(
    student: Float[Array, "V B n d"],
    teacher: Float[Array, "V B n *d"],
    masks: Bool[Array, "V B n"],
    *,
    log_target: Callable,
    cross_entropy: Callable,
    recompute: bool = True,
) -> dict[str, jax.Array]:
    """Mean cross-entropy of masked patches with the same patches of the clean view.

        loss = mean over views of mean_B( sum_l m_l H_l / max(1, sum_l m_l) )

    An image with an empty mask adds 0 but stays in the mean. On a CPU views run one after another,
    so that only one view's targets and predictions are held; elsewhere in pairs without a loop,
    which would copy logits of views into and out of each round.

    Args:
      student: [V, B, n, d or K] of masked views.
      teacher: [V, B, n, ...], the same patches of clean views. Any subset of the patches that
        contains the masked ones gives the same loss.
      masks: [V, B, n] bool, True = masked (counts).
      log_target: teacher view [B, n, ...] -> logarithms of its targets [B, n, K]; a constant.
      cross_entropy: (student view [B, n, d or K], targets [B, n, K]) -> H [B, n].
      recompute: what a view computes is not kept for the gradient.

    Returns:
      dict of scalars (nats): loss; kl, mean KL(target || prediction) over masked patches, 0 if
      there is none; the meters of `assignment_meters` over all patches handed in; masked, share of
      them that is masked.

    Raises:
      ValueError: shapes that do not broadcast.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from ssl_jax import ops
      >>> patches, masks = jnp.zeros((2, 1, 3, 4)), jnp.array([[[True, False, True]]] * 2)
      >>> terms = masked_patches(
      ...     patches,
      ...     patches,
      ...     masks,
      ...     log_target=jax.nn.log_softmax,
      ...     cross_entropy=lambda x, p: ops.cross_entropy(p, x),
      ... )
      >>> print(terms["loss"].round(4), terms["masked"].round(4))  # log 4, two of three
      1.3863 0.6667

    Reference: iBOT (Zhou et al. 2021), eq. 2; SOP section 2.3.
    """

    def view(arrays):
        prediction, clean, mask = arrays
        # What the student says elsewhere must not matter, not even if it is NaN.
        prediction = jnp.where(mask[..., None], prediction, 0)
        log_q = wide(jax.lax.stop_gradient(log_target(clean)))
        target = jnp.exp(log_q)
        by_patch = jnp.where(mask, cross_entropy(prediction, target), 0)
        count = jnp.maximum(1, mask.sum(axis=-1)).astype(by_patch.dtype)
        by_image = by_patch.sum(axis=-1) / count
        entropy = divergence.entropy(log_probs=log_q)
        return {
            "loss": by_image.mean(),
            "kl": jnp.where(mask, by_patch - entropy, 0).sum(),
            "teacher_entropy": entropy.mean(),
            "marginal": target.mean(axis=(0, 1)),
            "wins": meters.wins(log_q),
        }

    if recompute:
        view = _recomputed(view)
    pairs = 1 if devices.platform() == "cpu" else 2
    _, views = jax.lax.scan(
        lambda _, x: (None, view(x)), None, (student, teacher, masks), unroll=pairs
    )
    count = jnp.maximum(1, masks.sum()).astype(views["kl"].dtype)
    return {
        "loss": views["loss"].mean(),
        "kl": views["kl"].sum() / count,
        "teacher_entropy": views["teacher_entropy"].mean(),
        "marginal_entropy": divergence.entropy(views["marginal"].mean(axis=0)),
        "usage": meters.usage(views["wins"].sum(axis=0)),
        "masked": masks.mean(dtype=views["loss"].dtype),
    }


def _recomputed(view: Callable) -> Callable:
    """The view, computed again for the gradient. Where no loop is left around it, XLA may keep what
    is small, sums over K; on a CPU views stay in a loop.
    """
    return jax.checkpoint(view, prevent_cse=devices.platform() == "cpu")
