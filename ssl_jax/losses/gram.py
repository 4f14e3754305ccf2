"""Gram anchoring: patches of an image keep the similarities to each other that they had before.

Source: DINOv3 (Siméoni et al., 2025, arXiv 2508.10104), as its official code computes the term.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ssl_jax.ops.arguments import require
from ssl_jax.ops.checked import checked
from ssl_jax.ops.numerics import product, wide
from ssl_jax.ops.vectors import unit

MOST_ROWS = 2**14  # whose matrix of cosines is held: 1 GiB


@checked
def gram(
    student: Float[Array, "B *v P d"],
    teacher: Float[Array, "B *v P d"],
    *,
    over: Literal["image", "batch"] = "image",
    negatives: Literal["keep", "remove", "remove_teacher"] = "keep",
) -> Float[Array, ""]:
    """Mean squared difference of the student's and the teacher's cosines between patches.

    With rows of length 1, S = X_s X_s^T and G = X_g X_g^T, P x P for each view:

        loss = mean over the views and over all entries, diagonal included, of (S - G)^2

    The loss is 0 where the teacher's patches are the student's after a rotation.

    Memory, per view: two matrices P x P in float32, or three d x d where P > d and negatives are
    kept, which give the same sum. Over the batch of M views P is M P: d x d, summed over devices,
    where negatives are kept; else M P x M P, refused above 16384 rows (1 GiB a matrix).

    Args:
      student: [B, ..., P, d], patches of B images, in one or more views each; any float type
        (computed in float32 or wider). Rows of zeros have the cosine 0 with all others.
      teacher: of the same shape and the same places; no gradient.
      over: between which patches cosines are taken: of each view ("image"), or of all views of all
        images ("batch"; the official code: those of a device).
      negatives: cosines below 0 stay ("keep"), or count as 0 in both matrices ("remove"), without a
        gradient, or in the teacher's alone ("remove_teacher").

    Returns:
      Scalar, from 0 (up to rounding) to 4.

    Raises:
      ValueError: shapes that differ, another `over` or `negatives`, too many rows.

    Example:
      >>> import jax.numpy as jnp
      >>> student = jnp.array([[[1.0, 0.0], [1.0, 1.0], [-1.0, 0.0]]])
      >>> teacher = jnp.array([[[1.0, 0.0], [0.0, 1.0], [0.0, -2.0]]])
      >>> print(f"{gram(student, teacher):.6f} {gram(student, teacher, negatives='remove'):.6f}")
      0.352397 0.111111

    Reference: Siméoni et al. 2025, official code: per image, negatives kept.
    """
    x, y = (unit(rows) for rows in wide(student, jax.lax.stop_gradient(teacher)))
    if over == "batch":
        x, y = (rows.reshape(-1, rows.shape[-1]) for rows in (x, y))
    count, width = x.shape[-2:]
    if negatives == "keep" and count > width:
        # X X^T - Y Y^T = (A B^T + B A^T) / 2 with A = X + Y and B = X - Y: nothing cancels near 0.
        a, b = x + y, x - y
        aa, bb, ab = (product("...pd,...pe->...de", *z) for z in ((a, a), (b, b), (a, b)))
        squares = (aa * bb + ab * jnp.swapaxes(ab, -1, -2)) / 2
    else:
        require(count <= MOST_ROWS, "the number of rows", count, f"at most {MOST_ROWS}")
        s, g = (product("...pd,...qd->...pq", z, z) for z in (x, y))
        g = g if negatives == "keep" else jax.nn.relu(g)
        s = jax.nn.relu(s) if negatives == "remove" else s
        squares = jnp.square(s - g)
    return squares.sum(axis=(-1, -2)).mean() / count**2
