"""The range of float images."""

import numpy as np

from ssl_jax.config import InputError

_ROUNDING = 1 / 510  # half a step of 8 bits: what resampling and rounding add to a good image


def check_range(image: np.ndarray, name: str) -> None:
    """Refuses a float image with values outside [0, 1], which would be clipped to black and white.

    Args:
      image: [H,W,3]; uint8 is always valid. Non-finite values are ignored here: their training step
        is skipped.
      name: of the record, for the error.

    Raises:
      InputError: says the range of the values, and how they come into [0, 1].
    """
    if image.dtype == np.uint8 or _within(image):
        return
    finite = image[np.isfinite(image)]
    if not finite.size or _within(finite):
        return
    low, high = float(finite.min()), float(finite.max())
    if low >= 0 and 2 < high <= 255.5:
        remedy = "divide them by 255, or give them as uint8"
    else:
        remedy = (
            "undo a normalisation by mean and deviation, or clip what resampling put outside:"
            " np.clip(image, 0, 1)"
        )
    raise InputError(
        f"{name} has float values from {low:g} to {high:g}, but images must lie in [0, 1]: {remedy}"
    )


def _within(values):
    """Whether all lie in [0, 1], NaN left out."""
    low, high = np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)
    return not (low < -_ROUNDING or high > 1 + _ROUNDING)
