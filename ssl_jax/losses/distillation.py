"""Distillation of features from a frozen network.

Cosine and smooth L1 between mapped features of a student and those of its teacher, as AM-RADIO does
(Ranzinger et al. 2024, arXiv 2312.06709). The standardised targets, and the same sum for the image
and its patches, are ours.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ssl_jax.ops.checked import Positive, checked
from ssl_jax.ops.numerics import wide
from ssl_jax.ops.vectors import unit


@checked
def distillation(
    student: Float[Array, "*b D"],
    teacher: Float[Array, "*b D"],
    *,
    cosine: float = 0.9,
    smooth_l1: float = 0.1,
    eps: Positive = 1e-6,
) -> dict[str, jax.Array]:
    """How far features are from a teacher's, which are standardised first.

        z = (teacher - mean) / sqrt(variance + eps)      over the D channels of each vector
        loss = mean over vectors of cosine (1 - cos(student, z)) + smooth_l1 mean_d h(student - z)

    with h(x) = x^2 / 2 for |x| < 1, else |x| - 1/2.

    Args:
      student: [..., D], mapped to the teacher's width; any float type (computed in float32 or
        wider).
      teacher: [..., D], of the same images and places; no gradient.
      cosine, smooth_l1: weights, 0 or more.
      eps: > 0, added to the variance.

    Returns:
      dict of scalars: loss; cosine: mean cos(student, z), in [-1, 1]; smooth_l1: mean h.

    Raises:
      ValueError: shapes that do not fit, eps <= 0.

    Example:
      >>> import jax.numpy as jnp
      >>> terms = distillation(jnp.array([[-1.0, 1.0]]), jnp.array([[2.0, 6.0]]))
      >>> print(terms["loss"].round(4), terms["cosine"].round(4))
      0.0 1.0

    Reference: Ranzinger et al. 2024.
    """
    student, teacher = wide(student, teacher)
    teacher = jax.lax.stop_gradient(teacher)
    centered = teacher - teacher.mean(axis=-1, keepdims=True)
    target = centered / jnp.sqrt(jnp.square(centered).mean(axis=-1, keepdims=True) + eps)
    similarity = (unit(student) * unit(target)).sum(axis=-1).mean()
    gap = jnp.abs(student - target)
    smooth = jnp.where(gap < 1, jnp.square(gap) / 2, gap - 0.5).mean()
    loss = cosine * (1 - similarity) + smooth_l1 * smooth
    return {"loss": loss, "cosine": similarity, "smooth_l1": smooth}
