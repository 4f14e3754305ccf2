"""FLSL: feature-level self-supervised learning, bi-level clustering by mean shift within and
k-means across images.

Source: "FLSL: Feature-level Self-supervised Learning", NeurIPS 2023, eq. 8, 11 and 13 and algorithm
1. Where the pseudo-code contradicts the text (the axes of the mean prediction, the sign of its
entropy, the query of the cross-attention) the official code decides.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ssl_jax.losses.meters import assignment_meters
from ssl_jax.ops import divergence, numerics, vectors
from ssl_jax.ops.arguments import require
from ssl_jax.ops.checked import NotNegative, Positive, checked


@checked
def flsl(
    tokens: Float[Array, "*b d"],
    modes: Float[Array, "*b d"],
    student_logits: Float[Array, "*b K"],
    log_targets: Float[Array, "*b K"],
    *,
    weights: tuple[NotNegative, NotNegative, NotNegative],
    student_temperature: Positive,
    prior: Float[Array, " K"] | None = None,
) -> dict[str, jax.Array]:
    """Pulls tokens to their modes, modes of two views to one centroid, and keeps all in use.

    With a token q, its mode z (one mean-shift step over its own view), p_s = softmax(student /
    tau_s) of the mode, p_t the target from the mode of the same token in the teacher's view,
    and p the mean of p_s:

        loss   = v intra + eta inter + gamma volume                   (eq. 13)
        intra  = mean || q / |q| - z / |z| ||^2                       (eq. 8)
        inter  = mean - sum_k p_t[k] log p_s[k]                       (eq. 11)
        volume = KL(p || prior), with the uniform prior log K - H(p)  (eq. 11)

    All means are over all tokens of all student views and images, each with equal weight: the
    leading axes.

    Args:
      tokens: [..., d], the student's; any float type (computed in float32 or wider).
      modes: [..., d], of these tokens. The gradient of intra reaches both.
      student_logits: [..., K], of these modes.
      log_targets: [..., K], logarithms of p_t; no gradient. See `ops.centered_softmax` (a center of
        zeros: none, as in the paper) and `batch_softmax`.
      weights: (v, eta, gamma), numbers >= 0 or traced scalars; v = 0 is the paper's ablation that
        collapses.
      student_temperature: tau_s > 0, a number or a traced scalar.
      prior: [K], entries > 0 that sum to 1; None: uniform.

    Returns:
      dict of scalars: loss; intra_loss (0 to 4), inter_loss, volume_loss (0 to log K): without
      their weights; kl, mean KL(p_t || p_s) = inter_loss - teacher_entropy; prediction_entropy,
      entropy of p (log K: all centroids in use); the meters of `losses.assignment_meters` of p_t.

    Raises:
      ValueError: shapes that do not fit, no token, tau_s <= 0, negative weights or a prior
        with entries <= 0 (where known).

    Example:
      >>> import jax.numpy as jnp
      >>> tokens, logits = jnp.ones((5, 7, 3)), jnp.zeros((5, 7, 4))  # 5 images with 7 tokens each
      >>> log_targets = jnp.log(jnp.full((5, 7, 4), 0.25))
      >>> terms = flsl(
      ...     tokens,
      ...     2 * tokens,
      ...     logits,
      ...     log_targets,
      ...     weights=(0.03, 1.0, 5.0),
      ...     student_temperature=0.1,
      ... )
      >>> # one direction; log 4; all in use
      >>> print(terms["intra_loss"], terms["inter_loss"].round(4), terms["volume_loss"])
      0.0 1.3863 0.0

    Reference: FLSL eq. 8, 11 and 13; algorithm 1.
    """
    require(tokens.size > 0, "the shape of tokens", tokens.shape, "[..., d] without an empty axis")
    arrays = tokens, modes, student_logits, log_targets
    q, z, logits, log_targets = (x.reshape(-1, x.shape[-1]) for x in numerics.wide(*arrays))
    log_targets = jax.lax.stop_gradient(log_targets)

    # Not 2 - 2 cos, which is the same number: this is never negative and exact near 0, where
    # training ends up.
    intra = jnp.square(vectors.unit(q) - vectors.unit(z)).sum(axis=-1).mean()
    targets = jnp.exp(log_targets)
    inter = divergence.cross_entropy(targets, logits, temperature=student_temperature).mean()
    mean_prediction = jax.nn.softmax(numerics.sharpen(logits, student_temperature)).mean(axis=0)
    volume = divergence.volume_regularizer(mean_prediction, prior=prior)

    v, eta, gamma = weights
    meters = assignment_meters(log_targets)
    return {
        "loss": v * intra + eta * inter + gamma * volume,
        "intra_loss": intra,
        "inter_loss": inter,
        "volume_loss": volume,
        "kl": inter - meters["teacher_entropy"],
        "prediction_entropy": divergence.entropy(mean_prediction),
        **meters,
    }


@checked
def batch_softmax(
    teacher_logits: Float[Array, "*b K"], *, temperature: Positive
) -> Float[Array, "*b K"]:
    """Targets that use all centroids: softmax over the batch, then over the centroids.

    For each centroid a softmax over all tokens of the batch, then one over the centroids. What the
    paper calls Sinkhorn normalisation: a single iteration of it.

    Args:
      teacher_logits: [..., K]; any float type (computed in float32 or wider).
      temperature: above 0, a number or a traced scalar.

    Returns:
      [..., K], the logarithms of the targets. A constant: no gradient passes.

    Raises:
      ValueError: temperature <= 0 (where known).

    Example:
      >>> import jax.numpy as jnp
      >>> same = jnp.array([[4.0, 0.0], [4.0, 0.0]])  # one centroid for everything
      >>> print(jnp.exp(batch_softmax(same, temperature=0.1)))
      [[0.5 0.5]
       [0.5 0.5]]

    Reference: FLSL appendix I.4.
    """
    logits = jax.lax.stop_gradient(teacher_logits)
    scores = numerics.sharpen(logits, jax.lax.stop_gradient(temperature))
    over_tokens = jax.nn.log_softmax(scores, axis=tuple(range(scores.ndim - 1)))
    return jax.nn.log_softmax(over_tokens, axis=-1)
