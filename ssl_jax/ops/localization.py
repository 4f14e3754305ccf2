"""Localization: which of a few sparse tokens explains each place of a dense map."""

import math

import jax
from jaxtyping import Array, Float

from ssl_jax.ops.checked import Positive, checked
from ssl_jax.ops.numerics import Precision, product, sharpen, wide
from ssl_jax.ops.vectors import unit


@checked(empty="n")
def localization(
    dense: Float[Array, "*#b n d"],
    sparse: Float[Array, "*#b r d"],
    *,
    temperature: Positive | None = 0.06,
    precision: Precision = None,
) -> Float[Array, "*b n r"]:
    """Soft assignment of every dense token to the sparse tokens, by cosine.

    L = softmax_r(cos(u_i, s_j) / tau), STELLAR eq. 7, of features that are already projected (W1,
    W2 of the paper are the caller's). The low-rank dense map is then `L @ S` with the unprojected
    sparse tokens S.

    Args:
      dense: [..., n, d], any float type (computed in float32 or wider).
      sparse: [..., r, d]; leading axes broadcast against those of dense.
      temperature: tau > 0, a number or a traced scalar. None: softmax of the plain inner products /
        sqrt(d) instead of the cosines / tau (the official code's fallback).
      precision: of the products; None: see `numerics.product`.

    Returns:
      L [..., n, r]: every row >= 0 with sum 1. Zero vectors have cosine 0. Gradients reach dense,
      sparse and the temperature.

    Raises:
      ValueError: different d, no sparse token, leading axes that do not broadcast, tau <= 0 (where
      its value is known).

    Example:
      >>> import jax.numpy as jnp
      >>> dense, sparse = jnp.array([[2.0, 0.0], [3.0, 3.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0]])
      >>> # e / (e + 1) = 0.731
      >>> print(jnp.array_str(localization(dense, sparse, temperature=1.0), precision=3))
      [[0.731 0.269]
       [0.5   0.5  ]]

    Reference: STELLAR eq. 7; its official code for the temperature and the fallback.
    """
    dense, sparse = wide(dense, sparse)
    if temperature is None:
        dense = dense / math.sqrt(dense.shape[-1])
    else:
        dense, sparse = sharpen(unit(dense), temperature), unit(sparse)
    logits = product("...nd,...rd->...nr", dense, sparse, precision=precision)
    return jax.nn.softmax(logits, axis=-1)
