"""Mean shift as attention: every query moves to the mode of the keys around it."""

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax.ops import arguments


def mean_shift(queries, keys, *, inverse_temperature, where=None):
    """One mean-shift step of the queries over the keys.

    MS(q, Z) = sum_n softmax_n(tau <q, z_n>) z_n: FLSL eq. 4 with queries and keys of one view
    (self-attention), eq. 12 with student queries and teacher keys (cross-attention). FLSL's tau is
    an inverse temperature: it multiplies. Pass unit vectors and tau * D for the paper's cosines in
    place of LayerNorm-ed features with |z|^2 = D.

    Args:
      queries: [..., q, d], any float type (computed in float32 or wider). Only those needed: keys
      are never subsampled. keys: [..., n, d]; leading axes broadcast against those of queries.
      inverse_temperature: tau >= 0, a number or a traced scalar (0.1 / sqrt(384) and 0.2 /
        sqrt(384) in FLSL). 0 gives the mean of the keys, large ones the nearest key of unit length.
      where: bool [..., n] of the shape of keys, keys that exist; None: all.

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

    Reference: FLSL eq. 4 (self-attention) and eq. 12 (cross-attention); section 3 for its inverse
    temperatures.
    """
    queries, keys = jnp.asarray(queries), jnp.asarray(keys)
    arguments.require_shape("queries", queries, (..., None, None), "[..., q, d]")
    width = queries.shape[-1]
    arguments.require_shape(
        "keys", keys, (..., None, width), f"[..., n, {width}] as wide as queries"
    )
    arguments.require(
        keys.shape[-2] >= 1, "the shape of keys", keys.shape, "[..., n, d] with n >= 1"
    )
    arguments.require_leading("keys", keys.shape[:-2], "queries", queries.shape[:-2])
    shape = np.shape(inverse_temperature)
    arguments.require(shape == (), "inverse_temperature", f"an array of shape {shape}", "a scalar")
    if arguments.known(inverse_temperature):
        usable = bool(np.isfinite(inverse_temperature) and inverse_temperature >= 0)
        arguments.require(
            usable, "inverse_temperature", inverse_temperature, "a finite number, 0 or above"
        )
    dtype = jnp.promote_types(jnp.result_type(queries, keys), jnp.float32)
    queries, keys = queries.astype(dtype), keys.astype(dtype)
    if where is not None:
        arguments.require_shape(
            "where", where, keys.shape[:-1], f"{keys.shape[:-1]}, one entry per key"
        )
        where = jnp.asarray(where).astype(bool)
        keys = jnp.where(
            where[..., None], keys, 0
        )  # whatever lies there, NaN too: 0 * NaN would be NaN
    # Full float32 on accelerators too: a large tau makes small errors of the products large ones of
    # the weights.
    exact = dict(precision=jax.lax.Precision.HIGHEST)
    logits = jnp.einsum(
        "...qd,...nd->...qn",
        queries * jnp.asarray(inverse_temperature).astype(dtype),
        keys,
        **exact,
    )
    if where is not None:
        # The lowest finite number and not -inf: a row without any key stays free of NaN, and its
        # keys are all 0.
        logits = jnp.where(where[..., None, :], logits, jnp.finfo(dtype).min)
    return jnp.einsum("...qn,...nd->...qd", jax.nn.softmax(logits, axis=-1), keys, **exact)
