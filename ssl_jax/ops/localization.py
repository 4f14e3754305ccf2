"""Localization: which of a few sparse tokens explains each place of a dense map."""

import math

import jax
import jax.numpy as jnp

from ssl_jax.ops import arguments
from ssl_jax.ops.vectors import unit


def localization(dense, sparse, *, temperature=0.06):
    """Soft assignment of every dense token to the sparse tokens, by cosine.

    L = softmax_r(cos(u_i, s_j) / tau), STELLAR eq. 7, of features that are already projected (W1,
    W2 of the paper are the caller's). The low-rank dense map is then `L @ S` with the unprojected
    sparse tokens S.

    Args:
      dense: [..., n, d], any float type (computed in float32 or wider).
      sparse: [..., r, d]; leading axes broadcast against those of dense.
      temperature: tau > 0, a number or a traced scalar. None: softmax of the plain inner products /
        sqrt(d) instead of the cosines / tau (the official code's fallback).

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
    dense, sparse = jnp.asarray(dense), jnp.asarray(sparse)
    arguments.require_shape("dense", dense, (..., None, None), "[..., n, d]")
    width = dense.shape[-1]
    arguments.require_shape(
        "sparse", sparse, (..., None, width), f"[..., r, {width}] as wide as dense"
    )
    count = sparse.shape[-2]
    arguments.require(
        count >= 1 and width >= 1, "the shape of sparse", sparse.shape, "[..., r, d] with r, d >= 1"
    )
    arguments.require_leading("sparse", sparse.shape[:-2], "dense", dense.shape[:-2])
    dtype = jnp.promote_types(jnp.result_type(dense, sparse), jnp.float32)
    dense, sparse = dense.astype(dtype), sparse.astype(dtype)
    if temperature is None:
        dense = dense / math.sqrt(width)
    else:
        arguments.require_positive("temperature", temperature)
        dense = unit(dense) / jnp.asarray(temperature).astype(dtype)
        sparse = unit(sparse)
    # Full float32 on accelerators too: cosines are divided by a temperature of a few percent.
    logits = jnp.einsum("...nd,...rd->...nr", dense, sparse, precision=jax.lax.Precision.HIGHEST)
    return jax.nn.softmax(logits, axis=-1)
