"""MAE: masked autoencoders; the pixel loss, and cutting images into patches.

Source: He et al., "Masked Autoencoders Are Scalable Vision Learners", 2021 (arXiv 2111.06377),
section 3; order of the pixels of a patch, variance and eps follow the official code.
"""

import jax
import jax.numpy as jnp

from ssl_jax.ops import arguments


def mae(predicted, pixels, mask, *, normalize_pixels: bool = True, eps: float = 1e-6):
    """Mean squared error of the predicted pixels, on masked patches only.

        loss = sum_{b, i} m_bi mean_c (predicted_bic - target_bic)^2 / max(1, sum_{b, i} m_bi)

    with target = pixels or, with `normalize_pixels`, `normalize_patches(pixels)`.

    Args:
      predicted: [B, n, P], P = patch * patch * channels; any float type (computed in float32 or
        wider).
      pixels: [B, n, P] of `patchify`, as the network sees them (the published code subtracts
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
    arguments.require_shape(
        "predicted", predicted, (None, None, None), "[B, n, patch * patch * channels]"
    )
    shape = jnp.shape(predicted)
    arguments.require(
        min(shape) >= 1, "the shape of predicted", shape, "[B, n, P] without an empty axis"
    )
    arguments.require_shape("pixels", pixels, shape, f"{shape} as predicted")
    arguments.require_shape(
        "mask", mask, shape[:2], f"{shape[:2]} as predicted without its last axis"
    )
    mask = jnp.asarray(mask)
    arguments.require(
        mask.dtype == jnp.bool_, "the type of mask", mask.dtype, "bool (True = masked)"
    )
    arguments.require_positive("eps", eps)

    dtype = jnp.promote_types(jnp.result_type(predicted, pixels), jnp.float32)
    target = jax.lax.stop_gradient(jnp.asarray(pixels).astype(dtype))
    if normalize_pixels:
        target = normalize_patches(target, eps=eps)[0]
    # What is predicted elsewhere must not matter, not even if it is NaN.
    predicted = jnp.where(mask[..., None], jnp.asarray(predicted).astype(dtype), target)
    count = jnp.maximum(1, mask.sum())
    loss = jnp.square(predicted - target).mean(axis=-1).sum() / count
    variance = jnp.where(mask, target.var(axis=-1), 0).sum() / count
    flat = variance <= 0
    explained = jnp.where(flat, 0, 1 - jax.lax.stop_gradient(loss) / jnp.where(flat, 1, variance))
    return {
        "loss": loss,
        "variance": variance,
        "explained": explained,
        "masked": mask.mean(dtype=dtype),
    }


def patchify(images, patch: int):
    """Cuts images [..., H, W, C] into patches [..., (H / patch) (W / patch), patch * patch * C].

    Patches row by row; within a patch the pixels row by row, and the channels of a pixel side by
    side: the order of MAE's code ("p, q, c") and of the rows of our patch embedding.

    Args:
      images: [..., H, W, C], any type.
      patch: side of a patch, pixels.

    Returns:
      [..., (H / patch) (W / patch), patch * patch * C].

    Raises:
      ValueError: H or W is no multiple of the patch.

    Example:
      >>> import jax.numpy as jnp
      >>> print(patchify(jnp.arange(8).reshape(2, 4, 1), 2))
      [[0 1 4 5]
       [2 3 6 7]]

    Reference: MAE (He et al. 2022), official code.
    """
    images = jnp.asarray(images)
    arguments.require_shape("images", images, (..., None, None, None), "[..., H, W, C]")
    arguments.require(patch >= 1, "patch", patch, "at least 1")
    *lead, height, width, channels = images.shape
    fits = height % patch == 0 and width % patch == 0
    arguments.require(
        fits, "the size of the images", (height, width), f"multiples of patch = {patch}"
    )
    rows, columns = height // patch, width // patch
    grid = jnp.moveaxis(images.reshape(*lead, rows, patch, columns, patch, channels), -4, -3)
    return grid.reshape(*lead, rows * columns, patch * patch * channels)


def unpatchify(patches, patch: int, grid: tuple[int, int]):
    """The inverse of `patchify`: [..., rows * columns, patch * patch * C] -> [..., rows * patch,
    columns * patch, C].

    Args:
      patches: [..., rows * columns, patch * patch * C], any type.
      patch: side of a patch, pixels.
      grid: (rows, columns) of patches.

    Returns:
      [..., rows * patch, columns * patch, C].

    Raises:
      ValueError: sizes that do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> print(unpatchify(jnp.array([[0, 1, 4, 5], [2, 3, 6, 7]]), 2, (1, 2))[..., 0])
      [[0 1 2 3]
       [4 5 6 7]]

    Reference: MAE (He et al. 2022), official code.
    """
    patches, (rows, columns) = jnp.asarray(patches), grid
    arguments.require_shape(
        "patches",
        patches,
        (..., rows * columns, None),
        f"[..., {rows} * {columns}, patch * patch * C]",
    )
    *lead, _, size = patches.shape
    arguments.require(
        patch >= 1 and size % patch**2 == 0,
        "the last axis of patches",
        size,
        f"a multiple of {patch}^2",
    )
    cells = jnp.moveaxis(
        patches.reshape(*lead, rows, columns, patch, patch, size // patch**2), -3, -4
    )
    return cells.reshape(*lead, rows * patch, columns * patch, size // patch**2)


def normalize_patches(pixels, *, eps: float = 1e-6):
    """Each patch minus its mean, divided by sqrt(variance + eps), with the UNBIASED variance (P -
    1), as in MAE's code.

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
    pixels = jnp.asarray(pixels)
    arguments.require_shape("pixels", pixels, (..., None), "[..., P]")
    arguments.require(
        pixels.shape[-1] >= 2, "the number of values of a patch", pixels.shape[-1], "at least 2"
    )
    mean = pixels.mean(axis=-1, keepdims=True)
    scale = jnp.sqrt(pixels.var(axis=-1, keepdims=True, ddof=1) + eps)
    return (pixels - mean) / scale, mean, scale
