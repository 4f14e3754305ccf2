"""Images cut into patches, and put together again."""

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from ssl_jax.ops.arguments import require
from ssl_jax.ops.checked import Count, checked


@checked
def patchify(
    images: Shaped[Array, "*b H W C"], patch: Count
) -> Shaped[Array, "*b H/patch*W/patch patch*patch*C"]:
    """Cuts images into patches, row by row.

    Within a patch the pixels go row by row, and the channels of a pixel side by side: the order of
    MAE's code ("p, q, c").

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
    *lead, height, width, channels = images.shape
    fits = height % patch == 0 and width % patch == 0
    require(fits, "the size of the images", (height, width), f"multiples of patch = {patch}")
    rows, columns = height // patch, width // patch
    grid = jnp.moveaxis(images.reshape(*lead, rows, patch, columns, patch, channels), -4, -3)
    return grid.reshape(*lead, rows * columns, patch * patch * channels)


@checked
def unpatchify(
    patches: Shaped[Array, "*b n P"], patch: Count, grid: tuple[Count, Count]
) -> Shaped[Array, "*b H W C"]:
    """Puts patches together again: the inverse of `patchify`.

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
    (*lead, count, size), (rows, columns) = patches.shape, grid
    require(count == rows * columns, "the number of patches", count, f"{rows} * {columns}")
    channels, rest = divmod(size, patch**2)
    require(rest == 0, "the last axis of patches", size, f"a multiple of {patch}^2")
    cells = jnp.moveaxis(patches.reshape(*lead, rows, columns, patch, patch, channels), -3, -4)
    return cells.reshape(*lead, rows * patch, columns * patch, channels)
