"""Cross-entropy, entropy and divergence from uniform of distributions over the last axis, one value
per example.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ssl_jax.ops.arguments import is_concrete, require
from ssl_jax.ops.checked import Positive, checked
from ssl_jax.ops.numerics import sharpen, wide


@checked
def cross_entropy(
    target_probs: Float[Array, "*#b K"],
    logits: Float[Array, "*#b K"],
    *,
    temperature: Positive = 1.0,
) -> Float[Array, "*b"]:
    """Cross-entropy of a target distribution and a softmax, per example.

    H(p, q) = - sum_k p_k log softmax(logits / T)_k. The maximum is taken out of the logits first,
    so that no term overflows or is below 0 by more than rounding. Classes with logit -inf cost
    nothing where p is 0.

    Args:
      target_probs: p [..., K], probabilities; any float type (computed in float32 or wider).
      logits: [..., K]; leading axes broadcast against those of p.
      temperature: T > 0, a number or a traced scalar.

    Returns:
      [...] in nats. Gradients reach both arguments and the temperature; stop them where the target
      is a teacher.

    Raises:
      ValueError: different K, leading axes that do not broadcast, T <= 0 (where its value is
      known).

    Example:
      >>> import jax.numpy as jnp
      >>> print(cross_entropy(jnp.array([0.5, 0.5]), jnp.array([3.0, 3.0])).round(4))  # log 2
      0.6931

    Reference: DINO eq. 2; SOP eq. 2.
    """
    target_probs, logits = wide(target_probs, logits)
    top = jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    x, left_out = logits - top, jnp.isneginf(logits)  # the largest is exactly 0
    x = jnp.where(left_out, -jnp.inf, sharpen(jnp.where(left_out, 0, x), temperature))
    return _cross(target_probs, x - jnp.log(jnp.exp(x).sum(axis=-1, keepdims=True)))


@checked
def entropy(
    probs: Float[Array, "*b K"] | None = None, *, log_probs: Float[Array, "*b K"] | None = None
) -> Float[Array, "*b"]:
    """Entropy of a distribution, per example.

    H(p) = - sum_k p_k log p_k with 0 log 0 = 0, from the probabilities or, more exactly for small
    ones, from their logarithms.

    Args:
      probs: p [..., K]; or
      log_probs: log p [..., K] (-inf allowed). Exactly one of the two. Any float type (computed in
        float32 or wider).

    Returns:
      [...] in nats, between 0 and log K. The gradient at p_k = 0 is taken as 0 (it is infinite).

    Raises:
      ValueError: none or both of the two, or a scalar.

    Example:
      >>> import jax.numpy as jnp
      >>> print(entropy(jnp.array([[1.0, 0.0], [0.5, 0.5]])).round(3))
      [0.    0.693]

    Reference: Shannon 1948; the collapse meters of DINO section 5.3 (target entropy: 0 or log K).
    """
    one = (probs is None) != (log_probs is None)
    require(one, "the arguments", "none or both of probs and log_probs", "exactly one")
    if probs is None:
        assert log_probs is not None  # one of the two is there
        log_probs = wide(log_probs)
        return _cross(jnp.exp(log_probs), log_probs)
    probs = wide(probs)
    return _cross(probs, jnp.log(jnp.where(probs > 0, probs, 1)))


@checked
def volume_regularizer(
    mean_probs: Float[Array, "*b K"], *, prior: Float[Array, " K"] | None = None
) -> Float[Array, "*b"]:
    """Divergence of the mean prediction from uniform: the term that keeps all centroids in use.

    KL(p || 1/K) = sum_k (p_k log(K p_k) - p_k + 1/K) = log K - H(p) for p that sum to 1, FLSL eq.
    11. No term of this form is negative, so that it is exact near 0 too. It is added to a loss that
    is minimised.

    The mean is the caller's, over all queries, views and images of the global batch: the mean of
    per-device values is another, larger number.

    Args:
      mean_probs: p [..., K], any float type (computed in float32 or wider).
      prior: [K], entries > 0 that sum to 1, in place of 1/K.

    Returns:
      [...] in nats, between 0 (p equals the prior) and log K (one-hot p, uniform prior). The
      gradient at p_k = 0 is that at the smallest normal number (it is minus infinity).

    Raises:
      ValueError: a scalar, another shape of the prior, entries of the prior that are not above 0,
      or whose sum is not 1 (where known).

    Example:
      >>> import jax.numpy as jnp
      >>> print(volume_regularizer(jnp.array([[0.5, 0.5], [1.0, 0.0]])).round(4))  # 0 and log 2
      [0.     0.6931]

    Reference: FLSL eq. 11; the sign as in its official code.
    """
    mean_probs = wide(mean_probs)
    dtype = mean_probs.dtype
    if prior is None:
        prior = jnp.asarray(1 / mean_probs.shape[-1], dtype)
    elif is_concrete(prior):
        lowest = np.asarray(prior).min()
        require(bool(lowest > 0), "the lowest entry of prior", lowest, "above 0")
        total = np.asarray(prior, np.float64).sum(axis=-1)
        # Entries are rounded in their type, small ones to the spacing of subnormal numbers.
        type_of = jnp.finfo(prior.dtype)
        rounding = float(type_of.eps) + prior.shape[-1] * float(type_of.smallest_subnormal)
        near = np.abs(total - 1) <= 0.01 + rounding / 2
        require(bool(near.all()), "the sum of prior", total, "1")
    prior = jnp.broadcast_to(prior.astype(dtype), mean_probs.shape)
    ratio = mean_probs / prior
    log_ratio = jnp.log(jnp.maximum(ratio, jnp.finfo(dtype).tiny))
    return jnp.sum(prior * (ratio * log_ratio - (ratio - 1)), axis=-1)


def _cross(p, log_q):
    """- sum p log q with 0 * -inf = 0; choosing before the product keeps NaN out of the gradient
    too.
    """
    return jnp.sum(p * -jnp.where((p > 0) | jnp.isfinite(log_q), log_q, 0), axis=-1)
