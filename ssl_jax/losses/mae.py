"""MAE: masked autoencoders; the pixel loss.

Source: He et al., "Masked Autoencoders Are Scalable Vision Learners", 2021 (arXiv 2111.06377),
section 3; order of the pixels of a patch, variance and eps follow the official code.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ssl_jax.ops.arguments import require
from ssl_jax.ops.checked import Positive, checked
from ssl_jax.ops.numerics import wide


@checked
def mae(
    predicted: Float[Array, "B n P"],
    pixels: Float[Array, "B n P"],
    mask: Bool[Array, "B n"],
    *,
    normalize_pixels: bool = True,
    eps: Positive = 1e-6,
) -> dict[str, jax.Array]:
    """Mean squared error of the predicted pixels, on masked patches only.

        loss = sum_{b, i} m_bi mean_c (predicted_bic - target_bic)^2 / max(1, sum_{b, i} m_bi)

    with target = pixels or, with `normalize_pixels`, `normalize_patches(pixels)`.

    Args:
      predicted: [B, n, P], P = patch * patch * channels; any float type (computed in float32 or
        wider).
      pixels: [B, n, P] of `ops.patchify`, as the network sees them (the published code subtracts
        ImageNet's mean and divides by its standard deviation per channel first); no gradient.
      mask: [B, n] bool, True = masked (counts).
      normalize_pixels: whether each patch is normalised by its own mean and variance; eps: added to
        that variance.

    Returns:
      dict of scalars: loss; variance: the loss if each patch's own mean were predicted instead (the
      part of the target that takes structure to predict); explained: 1 - loss / variance, 0 = no
      better than flat patches, 1 = exact (0 if there is no variance); masked: share of patches that
      are masked.

    Raises:
      ValueError: shapes that do not fit, a mask that is not boolean, eps <= 0.

    Example:
      >>> import jax.numpy as jnp
      >>> pixels = jnp.array([[[1.0, 3.0], [5.0, 5.0]]])
      >>> mask = jnp.array([[True, False]])
      >>> # (1 + 9) / 2
      >>> print(mae(jnp.zeros((1, 2, 2)), pixels, mask, normalize_pixels=False)["loss"])
      5.0
      >>> # targets -1/sqrt(2), 1/sqrt(2): unbiased variance
      >>> print(mae(jnp.zeros((1, 2, 2)), pixels, mask)["loss"].round(4))
      0.5

    Reference: He et al. 2021, section 3 ("Reconstruction target") and table 1d.
    """
    predicted, pixels = wide(predicted, pixels)
    target = jax.lax.stop_gradient(pixels)
    if normalize_pixels:
        target = normalize_patches(target, eps=eps)[0]
    # What is predicted elsewhere must not matter, not even if it is NaN.
    predicted = jnp.where(mask[..., None], predicted, target)
    count = jnp.maximum(1, mask.sum()).astype(target.dtype)
    loss = jnp.square(predicted - target).mean(axis=-1).sum() / count
    variance = jnp.where(mask, target.var(axis=-1), 0).sum() / count
    flat = variance <= 0
    explained = jnp.where(flat, 0, 1 - jax.lax.stop_gradient(loss) / jnp.where(flat, 1, variance))
    return {
        "loss": loss,
        "variance": variance,
        "explained": explained,
        "masked": mask.mean(dtype=target.dtype),
    }


@checked
def normalize_patches(
    pixels: Float[Array, "*b P"], *, eps: Positive = 1e-6
) -> tuple[Float[Array, "*b P"], Float[Array, "*b 1"], Float[Array, "*b 1"]]:
    """Each patch minus its mean, divided by sqrt(variance + eps).

    The variance is the UNBIASED one (P - 1), as in MAE's code.

    Args:
      pixels: [..., P], P >= 2; float.
      eps: > 0, added to the variance.

    Returns:
      (normalised [..., P], mean [..., 1], scale [..., 1]): pixels = normalised * scale + mean.
        Finite for flat patches.

    Raises:
      ValueError: fewer than two values in a patch.

    Example:
      >>> import jax.numpy as jnp
      >>> print(normalize_patches(jnp.array([1.0, 2.0, 3.0]))[0].round(3))
      [-1.  0.  1.]

    Reference: MAE (He et al. 2022), official code.
    """
    values = pixels.shape[-1]
    require(values >= 2, "the number of values of a patch", values, "at least 2")
    mean = pixels.mean(axis=-1, keepdims=True)
    scale = jnp.sqrt(pixels.var(axis=-1, keepdims=True, ddof=1) + eps)
    return (pixels - mean) / scale, mean, scale
