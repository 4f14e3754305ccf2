"""KoLeo: a penalty for tokens of one set that lie close together."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssl_jax.ops.checked import checked
from ssl_jax.ops.numerics import Precision, product, wide_within_range
from ssl_jax.ops.vectors import unit

_EPS = 1e-8  # added to each coordinate of a difference and to the distance, as in the official code


@checked
def koleo(
    tokens: Float[Array, "*b r d"],
    *,
    where: Bool[Array, "*b r"] | None = None,
    precision: Precision = None,
) -> Float[Array, "*b r"]:
    """Minus the log distance from every token to its nearest neighbour on the unit sphere.

    t = token / |token|;  nn(i) = argmax_{j != i} <t_i, t_j>;  -log(|t_i - t_nn(i) + eps| / 2 +
    eps), eps = 1e-8, STELLAR section 3 (KoLeo of DINOv2, over the tokens of one image). Antipodal
    neighbours give 0, orthogonal ones log(2) / 2, duplicates about 15.7 at d = 768.

    The set is the axis before the last: [B, r, d] compares the r tokens of each of B images, [B, d]
    compares all images of a global batch. Similarities [..., r, r] are held at a time.

    Args:
      tokens: [..., r, d], any scale and float type (computed in float32 or wider).
      where: bool [..., r], tokens that exist; None: all. The others count for nothing and are
        nobody's neighbour.
      precision: of the similarities, which choose the neighbour; None: see `numerics.product`.

    Returns:
      [..., r], from 0 (up to rounding) to 18.4; 0 for tokens that do not exist or have no
      neighbour, a single token for one. Gradients reach a token and its neighbour, and are finite
      for duplicates; the choice of the neighbour has none. Among equally near neighbours the first
      is taken.

    Raises:
      ValueError: fewer than 2 axes, r or d of 0, or another shape of `where`.

    Example:
      >>> import jax.numpy as jnp
      >>> tokens = jnp.array([[1.0, 0.0], [0.0, 5.0], [-2.0, 0.0]])
      >>> print(
      ...     koleo(tokens).round(4), koleo(tokens, where=jnp.array([True, True, False])).round(4)
      ... )
      [0.3466 0.3466 0.3466] [0.3466 0.3466 0.    ]

    Reference: STELLAR, section 3 and official code (per image, weight 0.1); Sablayrolles et al.
    2019.
    """
    tokens = wide_within_range(tokens)  # duplicates have a gradient of some 1e8
    # [..., i, j]: j may be the neighbour of i.
    allowed = ~jnp.eye(tokens.shape[-2], dtype=bool)[(None,) * (tokens.ndim - 2)]
    if where is not None:
        # Whatever lies there, NaN too, must not reach a gradient.
        tokens = jnp.where(where[..., None], tokens, 0)
        allowed = allowed & where[..., None, :] & where[..., :, None]
    tokens = unit(tokens)
    # The index from the Gram matrix, but the distance from the rows: 2 - 2 cos would lose all
    # digits of near ones.
    fixed = jax.lax.stop_gradient(tokens)
    cosine = product("...id,...jd->...ij", fixed, fixed, precision=precision)
    index = jnp.argmax(jnp.where(allowed, cosine, -jnp.inf), axis=-1)
    difference = tokens - jnp.take_along_axis(tokens, index[..., None], axis=-2) + _EPS
    # The floor only guards the square root: one coordinate that differs by eps already gives 1e-16.
    distance = 0.5 * jnp.sqrt(jnp.maximum(jnp.sum(difference * difference, axis=-1), 1e-30))
    return jnp.where(jnp.any(allowed, axis=-1), -jnp.log(distance + _EPS), 0)
