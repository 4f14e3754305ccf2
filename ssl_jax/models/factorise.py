"""Parts of STELLAR's factorisation Z = L S of an image into r sparse tokens S ("what") and a
localization map L ("where").

    from ssl_jax import ops
    from ssl_jax.models import factorise
    project = factorise.projections(768)
    params = project.init(jax.random.key(0))
    # patches [B, n, 768] and sparse tokens [B, r, 768]
    maps = ops.localization(*project.apply(params, patches, sparse))   # [B, n, r]
    latent = factorise.recompose(maps, sparse)                         # [B, n, 768], rank <= r
    # Position embeddings of the decoder, [196, 512].
    codes = factorise.fourier_codes(matrix, (14, 14))

Source: "Learning Sparse Visual Representations via Spatial-Semantic Factorization" (STELLAR), eq. 1
and 3; its official code for biases and the position embedding, which the text does not specify.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx

from ssl_jax.models import layers as layers_lib
from ssl_jax.models.functional import Model, functional


@functools.cache
def projections(width: int, dtype: str = "float32") -> Model:
    """Two linear maps (W1, W2, each with a bias) into a common space of dense and sparse tokens.

    apply(params, patches [..., n, width], sparse [..., r, width])
      -> (dense [..., n, width], sparse [..., r, width]), float32.
    Parameters: "dense" and "sparse", each with kernel and bias.

    Raises:
      ValueError: width < 1; in apply: tokens of another width.
    """
    if width < 1:
        raise ValueError(f"width is {width}; it must be at least 1")
    model = functional(_Projections, width=width, dtype=dtype)

    def apply(params, patches, sparse):
        for name, tokens in (("patches", patches), ("sparse", sparse)):
            if tokens.ndim < 2 or tokens.shape[-1] != width:
                raise ValueError(
                    f"{name} have shape {tokens.shape}; their last axis must be {width}"
                )
        return model.apply(params, patches, sparse)

    return model._replace(apply=apply)


class _Projections(nnx.Module):
    def __init__(self, key, width, dtype):
        # torch's default for Linear, as in the official code; cosines are independent of the scale.
        self.dense, self.sparse = (
            layers_lib.linear(layers_lib.uniform(k, (width, width)), dtype)
            for k in jax.random.split(key)
        )

    def __call__(self, patches, sparse):
        return self.dense(patches).astype(jnp.float32), self.sparse(sparse).astype(jnp.float32)


def recompose(localization: jax.Array, sparse: jax.Array) -> jax.Array:
    """Z = L S (STELLAR eq. 1), float32 [..., n, d].

    The rows of L [..., n, r] sum to 1; S [..., r, d] are the tokens before projection. Every row of
    Z lies in the convex hull of the sparse tokens; the rank is at most r.
    """
    localization, sparse = localization.astype(jnp.float32), sparse.astype(jnp.float32)
    return jnp.einsum(
        "...nr,...rd->...nd", localization, sparse, precision=jax.lax.Precision.HIGHEST
    )


def fourier_matrix(key: jax.Array, width: int) -> jax.Array:
    """G [2, width / 2] ~ N(0, 1), float32, drawn once and never trained. Raises ValueError for an
    odd width."""
    if width < 2 or width % 2:
        raise ValueError(f"width is {width}; random Fourier codes need an even width of at least 2")
    return jax.random.normal(key, (2, width // 2), jnp.float32)


def fourier_codes(matrix: jax.Array, grid: tuple[int, int]) -> jax.Array:
    """Random Fourier position embeddings of the cells of a grid (Tancik et al. 2020).

    A cell centre (x, y) in (0, 1) gives v = 2 pi (2 (x, y) - 1) G and the code [sin v_0, cos v_0,
    sin v_1, ...].

    Args:
      matrix: G [2, width / 2]: first row for x (columns), second for y (rows).
      grid: (rows, columns), any size.

    Returns:
      float32 [rows * columns, width], row by row.
    """
    rows, columns = grid
    y, x = (2 * (jnp.arange(n, dtype=jnp.float32) + 0.5) / n - 1 for n in (rows, columns))
    # No matrix product, which may have low precision on accelerators: the angles are large.
    angles = 2 * math.pi * (x[None, :, None] * matrix[0] + y[:, None, None] * matrix[1])
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(rows * columns, -1)
