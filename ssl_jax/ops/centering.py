"""Centered, sharpened targets of a teacher, and the running center."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ssl_jax.ops.arguments import require
from ssl_jax.ops.checked import Positive, Share, checked
from ssl_jax.ops.numerics import wide


@checked
def centered_softmax(
    logits: Float[Array, "*b K"],
    center: Float[Array, " K"],
    *,
    temperature: Positive,
    log: bool = False,
) -> Float[Array, "*b K"]:
    """Targets of a teacher: softmax((logits - center) / T).

    The center keeps one class from winning everywhere, the low temperature keeps the targets from
    becoming uniform; each prevents the collapse that the other alone allows.

    Args:
      logits: [..., K] of the teacher; any float type (computed in float32 or wider).
      center: [K], see `ema_center`.
      temperature: T > 0, a number or a traced scalar.
      log: return the logarithm of the targets.

    Returns:
      [..., K], rows sum to 1 (their logarithms with `log`). A constant: no gradient passes.

    Raises:
      ValueError: shapes that do not fit, T <= 0 (where its value is known).

    Example:
      >>> import jax.numpy as jnp
      >>> logits, center = jnp.array([[3.0, 1.0], [4.0, 0.0]]), jnp.array([3.0, 1.0])
      >>> print(jnp.array_str(centered_softmax(logits, center, temperature=1.0), precision=3))
      [[0.5   0.5  ]
       [0.881 0.119]]

    Reference: DINO (Caron et al. 2021), section 3.1 and algorithm 1.
    """
    logits, center = jax.lax.stop_gradient(wide(logits, center))
    temperature = jax.lax.stop_gradient(temperature)
    sharpness = 1 / jnp.asarray(temperature).astype(logits.dtype)
    centered = logits - jnp.broadcast_to(center, logits.shape)
    log_targets = jax.nn.log_softmax(centered * sharpness, axis=-1)
    return log_targets if log else jnp.exp(log_targets)


@checked
def ema_center(
    center: Float[Array, " K"], logits: Float[Array, "*b K"], *, momentum: Share
) -> Float[Array, " K"]:
    """The center, moved towards the mean of the teacher's logits: m center + (1 - m) mean.

    Args:
      center: [K], the center before this batch; zeros at the start.
      logits: [..., K] of the teacher, all views of the whole batch: the mean is over all leading
        axes. Any float type (computed in float32 or wider).
      momentum: m in [0, 1], a number or a traced scalar.

    Returns:
      [K], float32 or wider. A constant: no gradient passes.

    Raises:
      ValueError: shapes that do not fit, no row of logits, m outside [0, 1] (where its value is
        known).

    Example:
      >>> import jax.numpy as jnp
      >>> print(
      ...     ema_center(jnp.zeros(2), jnp.array([[2.0, 0.0], [4.0, 0.0]]), momentum=0.9).round(3)
      ... )
      [0.3 0. ]

    Reference: DINO (Caron et al. 2021), eq. 4.
    """
    require(logits.size > 0, "the shape of logits", logits.shape, "[..., K] with a row at least")
    center, logits = jax.lax.stop_gradient(wide(center, logits))
    momentum = jax.lax.stop_gradient(momentum)
    old, new = (jnp.asarray(x).astype(center.dtype) for x in (momentum, 1 - momentum))
    return old * center + new * logits.mean(axis=tuple(range(logits.ndim - 1)))
