"""FLSL: feature-level self-supervised learning, bi-level clustering by mean shift within and
k-means across images.

Source: "FLSL: Feature-level Self-supervised Learning", NeurIPS 2023, eq. 8, 11 and 13 and algorithm
1. Where the pseudo-code contradicts the text (the axes of the mean prediction, the sign of its
entropy, the query of the cross-attention) the official code decides."""

import jax
import jax.numpy as jnp

from ssl_jax.losses import meters
from ssl_jax.ops import arguments, divergence, vectors

TARGETS = ("softmax", "batch_softmax")


def flsl(
    queries,
    student_modes,
    student_logits,
    teacher_logits,
    *,
    v,
    eta,
    gamma,
    student_temperature,
    teacher_temperature,
    targets: str = "softmax",
    prior=None,
    center=None,
    center_momentum: float = 0.9,
):
    """Pulls tokens to their modes, the modes of two views to the same centroid, and keeps all
    centroids in use.

    With a token q, its mode z (one mean-shift step over its own view), p_s = softmax(student /
    tau_s) of the mode, p_t that of the mode of the same token in the teacher's view, and p the mean
    of p_s:

        loss = v intra + eta inter + gamma volume
        (eq. 13) intra  = mean || q / |q| - z / |z| ||^2
        (eq. 8) inter  = mean - sum_k p_t[k] log p_s[k]
        (eq. 11) volume = KL(p || prior), with the uniform prior log K - H(p)
        (eq. 11)

    All means are over all queries of all student views and images, each with equal weight: the
    leading axes.

    Args:
      queries: [..., d], the student's tokens, not their modes; any float type (computed in float32
      or wider). student_modes: [..., d], with the same leading axes. The gradient of intra reaches
      both.
      student_logits: [..., K], of the student's modes; likewise.
      teacher_logits: [..., K], of the teacher's modes; no gradient.
      v: weight of intra, a number >= 0 or a traced scalar; 0 is the paper's ablation that
        collapses.
      eta: weight of inter, likewise; gamma: weight of volume, likewise.
      student_temperature: tau_s > 0, a number or a traced scalar.
      teacher_temperature: tau_t > 0, likewise.
      targets: "softmax": p_t = softmax(teacher / tau_t); "batch_softmax": a softmax over all
        queries first, per centroid, then the same over centroids (what the paper's ablation calls
        Sinkhorn: one iteration).
      prior: [K], entries > 0 that sum to 1; None: uniform.
      center: [K] or None. Subtracted from the teacher's logits before the softmax, as in DINO; no
      gradient. center_momentum: in [0, 1], share of the old center in the new one.

    Returns:
      dict of scalars, and the new center if one was given:
        loss; intra_loss (0 to 4), inter_loss, volume_loss (0 to log K): without their weights;
        teacher_entropy: mean entropy of the p_t, nats (0: one centroid each; log K: uniform);
        marginal_entropy: entropy of the mean p_t (0: the same centroid for everything, i.e.
          collapse);
        usage: share of centroids that are the likeliest for one or more queries;
        prediction_entropy: entropy of p (log K: all centroids in use);
        kl: mean KL(p_t || p_s) = inter_loss - teacher_entropy;
        center [K]: center_momentum * center + (1 - center_momentum) * mean of the teacher's logits.

    Raises:
      ValueError: shapes that do not fit, no query, temperatures <= 0, negative weights, momentum
        outside [0, 1] or a prior with entries <= 0 (where known), an unknown kind of targets.

    Example:
      >>> import jax.numpy as jnp
      >>> tokens, logits = jnp.ones((5, 7, 3)), jnp.zeros((5, 7, 4))  # 5 images with 7 queries each
      >>> terms = flsl(
      ...     tokens,
      ...     2 * tokens,
      ...     logits,
      ...     logits,
      ...     v=0.03,
      ...     eta=1.0,
      ...     gamma=5.0,
      ...     student_temperature=0.1,
      ...     teacher_temperature=0.04,
      ... )
      >>> # one direction; log 4; all in use
      >>> print(terms["intra_loss"], terms["inter_loss"].round(4), terms["volume_loss"])
      0.0 1.3863 0.0

    Reference: FLSL eq. 8, 11 and 13; algorithm 1.
    """
    _check(queries, student_modes, student_logits, teacher_logits, center, targets)
    for name, weight in (("v", v), ("eta", eta), ("gamma", gamma)):
        arguments.require_between(name, weight, 0, float("inf"))
    arguments.require_positive("student_temperature", student_temperature)
    arguments.require_positive("teacher_temperature", teacher_temperature)
    arguments.require_between("center_momentum", center_momentum, 0, 1)

    given = (queries, student_modes, student_logits, teacher_logits)
    dtype = jnp.promote_types(jnp.result_type(*given), jnp.float32)
    q, modes, student, teacher = (
        jnp.asarray(x).astype(dtype).reshape(-1, jnp.shape(x)[-1]) for x in given
    )
    teacher = jax.lax.stop_gradient(teacher)
    center = None if center is None else jax.lax.stop_gradient(jnp.asarray(center).astype(dtype))

    # Not 2 - 2 cos, which is the same number: this is never negative and exact near 0, where
    # training ends up.
    intra = jnp.square(vectors.unit(q) - vectors.unit(modes)).sum(axis=-1).mean()

    scores = (teacher if center is None else teacher - center) / jnp.asarray(
        teacher_temperature
    ).astype(dtype)
    if targets == "batch_softmax":
        scores = jax.nn.log_softmax(scores, axis=0)
    log_target = jax.lax.stop_gradient(jax.nn.log_softmax(scores, axis=-1))
    target = jnp.exp(log_target)
    inter = divergence.cross_entropy(target, student, temperature=student_temperature).mean()

    mean_prediction = jax.nn.softmax(
        student / jnp.asarray(student_temperature).astype(dtype), axis=-1
    ).mean(axis=0)
    volume = divergence.volume_regularizer(mean_prediction, prior=prior)

    teacher_entropy = divergence.entropy(log_probs=log_target).mean()
    terms = {
        "loss": v * intra + eta * inter + gamma * volume,
        "intra_loss": intra,
        "inter_loss": inter,
        "volume_loss": volume,
        "kl": inter - teacher_entropy,
        "teacher_entropy": teacher_entropy,
        "marginal_entropy": divergence.entropy(target.mean(axis=0)),
        "usage": meters.usage(meters.wins(log_target)),
        "prediction_entropy": divergence.entropy(mean_prediction),
    }
    if center is not None:
        terms["center"] = center_momentum * center + (1 - center_momentum) * teacher.mean(axis=0)
    return terms


def _check(queries, modes, student, teacher, center, targets) -> None:
    """Raises ValueError unless the shapes fit and `targets` is known."""
    arguments.require_shape("queries", queries, (..., None), "[..., d]")
    shape = jnp.shape(queries)
    lead = shape[:-1]
    arguments.require(
        min(shape) >= 1, "the shape of queries", shape, "[..., d] without an empty axis"
    )
    arguments.require_shape("student_modes", modes, shape, f"{shape} as queries")
    arguments.require_shape(
        "student_logits",
        student,
        (*lead, None),
        f"[..., K] with the leading axes {lead} of queries",
    )
    width = jnp.shape(student)[-1]
    arguments.require(
        width >= 1, "the shape of student_logits", jnp.shape(student), "[..., K] with K >= 1"
    )
    arguments.require_shape(
        "teacher_logits", teacher, jnp.shape(student), f"{jnp.shape(student)} as student_logits"
    )
    if center is not None:
        arguments.require_shape("center", center, (width,), f"[{width}] as the logits")
    arguments.require(targets in TARGETS, "targets", f'"{targets}"', f"one of {', '.join(TARGETS)}")
