"""Averages over pairs of different views, shared by the multi-crop objectives (DINO, SOP).

The first T of S student views are the T views of the teacher; a pair is (s, t) with s != t.
Cross-entropies are summed over t first, because the targets of one student view simply add up: view
s < T has T - 1 pairs, each other view has T.
"""

import jax.numpy as jnp


def pair_mask(num_student: int, num_teacher: int, dtype):
    """[S, T] with 1 where student view s and teacher view t are a pair."""
    return 1 - jnp.eye(num_student, num_teacher, dtype=dtype)


def pair_terms(by_view, num_teacher: int, teacher_entropy) -> dict:
    """Means over pairs.

    Args:
      by_view: [S], cross-entropy of each student view, summed over its teachers and averaged over
      the batch. num_teacher: T.
      teacher_entropy: scalar, mean entropy of the targets over the T views. Every teacher view has
        S - 1 pairs, so this is also its mean over pairs, and the loss minus it is the mean
        divergence KL(teacher || student).

    Returns:
      dict of scalars: loss, kl; global_loss (student view s < T) if T > 1; local_loss (s >= T) if S
        > T.
    """
    num_local = by_view.shape[0] - num_teacher
    global_pairs, local_pairs = num_teacher * (num_teacher - 1), num_teacher * num_local
    loss = by_view.sum() / (global_pairs + local_pairs)
    terms = {"loss": loss, "kl": loss - teacher_entropy}
    if global_pairs:
        terms["global_loss"] = by_view[:num_teacher].sum() / global_pairs
    if local_pairs:
        terms["local_loss"] = by_view[num_teacher:].sum() / local_pairs
    return terms
