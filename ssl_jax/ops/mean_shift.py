"""Mean shift as attention: every query moves to the mode of the keys around it."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssl_jax.ops.arguments import require
from ssl_jax.ops.checked import NotNegative, checked
from ssl_jax.ops.numerics import Precision, product, wide


@checked(empty="q")
def mean_shift(
    queries: Float[Array, "*#b q d"],
    keys: Float[Array, "*#b n d"],
    *,
    inverse_temperature: NotNegative,
    where: Bool[Array, "*keys n"] | None = None,
    precision: Precision = None,
) -> Float[Array, "*b q d"]:
    """One mean-shift step of the queries over the keys.

    MS(q, Z) = sum_n softmax_n(tau <q, z_n>) z_n: FLSL eq. 4 with queries and keys of one view
    (self-attention), eq. 12 with student queries and teacher keys (cross-attention). FLSL's tau is
    an inverse temperature: it multiplies. Pass unit vectors and tau * D for the paper's cosines in
    place of LayerNorm-ed features with |z|^2 = D.

    Args:
      queries: [..., q, d], any float type (computed in float32 or wider).
      keys: [..., n, d], all of them; leading axes broadcast against those of queries.
      inverse_temperature: tau >= 0, a number or a traced scalar (0.1 / sqrt(384) and 0.2 /
        sqrt(384) in FLSL). 0 gives the mean of the keys, large ones the nearest key of unit length.
      where: bool [..., n] of the shape of keys, keys that exist; None: all.
      precision: of the products; None: see `numerics.product`.

    Returns:
      Modes [..., q, d] in the convex hull of the keys; 0 where no key exists. Gradients reach
      queries, keys and tau; stop them for a teacher.

    Raises:
      ValueError: different d, no keys, leading axes that do not broadcast, another shape of
        `where`, tau negative or not finite (where its value is known).

    Example:
      >>> import jax.numpy as jnp
      >>> keys = jnp.array([[1.0, 0.0], [0.0, 2.0]])
      >>> # weights 3/4 and 1/4
      >>> print(mean_shift(keys[:1], keys, inverse_temperature=jnp.log(3)).round(2))
      [[0.75 0.5 ]]
      >>> print(mean_shift(keys[:1], keys, inverse_temperature=0))
      [[0.5 1. ]]

    Reference: FLSL eq. 4 (self-attention) and eq. 12 (cross-attention).
    """
    if where is not None:
        lead = keys.shape[:-1]
        require(where.shape == lead, "the shape of where", where.shape, f"{[*lead]} as keys")
    queries, keys = wide(queries, keys)
    if where is not None:  # whatever lies there, NaN too: 0 * NaN would be NaN
        keys = jnp.where(where[..., None], keys, 0)
    queries = queries * jnp.asarray(inverse_temperature).astype(queries.dtype)
    logits = product("...qd,...nd->...qn", queries, keys, precision=precision)
    if where is not None:
        # The lowest finite number and not -inf: a row without any key stays free of NaN, and its
        # keys are all 0.
        logits = jnp.where(where[..., None, :], logits, jnp.finfo(logits.dtype).min)
    shares = jax.nn.softmax(logits, axis=-1)
    return product("...qn,...nd->...qd", shares, keys, precision=precision)
