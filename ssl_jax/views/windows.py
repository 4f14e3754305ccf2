"""One patch out of every window of a grid: which tokens FLSL takes as queries."""

import jax
import jax.numpy as jnp
import numpy as np


def sample(keys: jax.Array, grid: int, window: int, *, random_position: bool = True) -> jax.Array:
    """Draws one patch of every window x window patches of a square grid (FLSL section 5, "grid
    random sampling").

    If the grid is not a multiple of the window, the windows cover a square in one of the four
    corners, each with probability 1/4. Within a window each patch has the same probability, or the
    upper left one is taken.

    Args:
      keys: [...] PRNG keys, one per view. grid: patches on a side.
      window: patches on a side, 1 (all patches are taken) to grid.

    Returns:
      int32 [..., (grid // window)^2], row-major indices into the grid, windows in row-major order.

    Raises:
      ValueError: a window that is no part of the grid.
    """
    if not 1 <= window <= grid:
        raise ValueError(
            f"window is {window}; it must be 1 to {grid}, the patches on a side of the grid"
        )
    side = grid // window
    starts = np.stack(np.meshgrid(*2 * [np.arange(side) * window], indexing="ij"))

    def one(key):
        key_corner, key_place = jax.random.split(key)
        # Row and column where the square starts.
        far = jax.random.bernoulli(key_corner, jnp.float32(0.5), (2, 1, 1))
        corner = jnp.where(far, grid - side * window, 0)
        place = jax.random.randint(key_place, (2, side, side), 0, window, jnp.int32)
        rows, columns = corner + starts + (place if random_position else 0)
        return (rows * grid + columns).reshape(-1).astype(jnp.int32)

    return jax.vmap(one)(keys.reshape(-1)).reshape(*keys.shape, side * side)
