"""Position embeddings of patches: the fixed 2-D sine-cosine code, and resizing a grid of codes to
another image size.

The matrices are small constants, computed by NumPy in float64 during tracing.
"""

import jax
import jax.numpy as jnp
import numpy as np

RULES = ("exact", "dino_offset")
KERNELS = ("keys-0.75", "antialias-0.5")


def sincos_2d(grid: int, width: int) -> np.ndarray:
    """The fixed code of MAE and FLSL, float64 [grid * grid, width], rows first.

    The FIRST half of the channels encodes the column, the second half the row; within a half, sines
    come before cosines, at frequencies 10000^(-i / (width / 4)), i = 0 .. width / 4 - 1. `width`
    must be a multiple of 4 (ValueError).
    """
    if width % 4:
        raise ValueError(
            f"a 2-D sine-cosine code needs a width that is a multiple of 4, got {width}"
        )
    frequencies = 10000.0 ** (-np.arange(width // 4) / (width / 4))
    angles = np.arange(grid)[:, None] * frequencies
    axis = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)  # [grid, width / 2]
    columns = np.broadcast_to(axis[None, :], (grid, grid, width // 2))
    rows = np.broadcast_to(axis[:, None], (grid, grid, width // 2))
    return np.concatenate([columns, rows], axis=-1).reshape(grid * grid, width)


def resize_matrix(
    native: int, target: int, *, rule: str = "exact", kernel: str = "keys-0.75"
) -> np.ndarray:
    """The matrix [target, native] (float64, rows sum to 1) that resamples `native` samples on a
    line to `target`.

    Args:
      rule: sample positions. "exact": target sample i is at source coordinate (i + 1/2) native /
        target - 1/2. "dino_offset": the step is native / (target + 0.1), as in the code of DINO and
        its descendants, which passes the scale factor (target + 0.1) / native to
        torch.nn.functional.interpolate as a guard against rounding.
      kernel: "keys-0.75" is torch's bicubic (Keys' cubic convolution with a = -0.75, four taps,
        borders repeated), without antialiasing; "antialias-0.5" is the antialiased form (a = -0.5,
        kernel widened by the step when shrinking, weights beyond the border dropped and the rest
        renormalised), as in timm, Pillow and jax.image.

    Raises:
      ValueError: unknown rule or kernel.
    """
    _choice("rule", rule, RULES)
    _choice("kernel", kernel, KERNELS)
    step = native / (target + (0.1 if rule == "dino_offset" else 0.0))
    centers = (np.arange(target) + 0.5) * step - 0.5
    if kernel == "antialias-0.5":
        weights = _cubic((centers[:, None] - np.arange(native)) / max(step, 1.0), a=-0.5)
        return weights / weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((target, native))
    for tap in (-1, 0, 1, 2):
        sample = np.floor(centers) + tap
        index = np.clip(sample, 0, native - 1).astype(int)
        np.add.at(matrix, (np.arange(target), index), _cubic(centers - sample, a=-0.75))
    return matrix


def resize_codes(
    codes: jax.Array,
    native: int | tuple[int, int],
    target: tuple[int, int],
    *,
    rule: str,
    kernel: str,
) -> jax.Array:
    """Resamples position embeddings of a grid [h * w, d] to [target_h * target_w, d] (float32,
    matrix products at full precision). native: (h, w), or the side of a square.

    At the native grid, the codes are returned unchanged under both rules, as in DINO's code.
    """
    sides = (native, native) if isinstance(native, int) else native
    if target == sides:
        return codes
    rows, columns = (
        resize_matrix(n, t, rule=rule, kernel=kernel).astype(np.float32)
        for n, t in zip(sides, target, strict=True)
    )
    grid = codes.reshape(*sides, -1)
    grid = jnp.einsum("hr,wc,rcd->hwd", rows, columns, grid, precision=jax.lax.Precision.HIGHEST)
    return grid.reshape(target[0] * target[1], -1)


def _cubic(x, a: float):
    """Keys' cubic convolution kernel (Keys 1981, eq. 15 for a = -0.5)."""
    x = np.abs(x)
    inner = (a + 2) * x**3 - (a + 3) * x**2 + 1
    outer = a * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f'{name} is "{value}"; choose one of {", ".join(allowed)}')
