"""Pictures of images and their reconstructions."""

import jax
import numpy as np
from ml_collections import ConfigDict
from numpy.typing import ArrayLike

from ssl_jax.methods.pictures.base import Panel, Picture
from ssl_jax.models import tokenizer


def pixels(config: ConfigDict, rebuilt: jax.Array | np.ndarray, whole: bool = False) -> np.ndarray:
    """A network's reconstruction as pixels [B, H, W, 3] in [0, 1].

    config: of the run; its method's section names the tokenizer, if there is one. rebuilt: the
    extra "rebuilt": pixels, or codes int [B, h, w] of the tokenizer. whole: of `Target.decode`.
    """
    if not np.issubdtype(rebuilt.dtype, np.integer):
        return np.asarray(rebuilt)
    decode = tokenizer.target("vq", config.model.patch).decode
    assert decode is not None
    return np.asarray(decode(config[config.method].tokenizer, rebuilt, whole))


def picture(images: ArrayLike, rebuilt: ArrayLike, title: str) -> Picture:
    """One row per image: the image, its reconstruction, and the squared error. images, rebuilt:
    [n, H, W, 3]."""
    images, rebuilt = np.asarray(images), np.asarray(rebuilt)

    def row(image, guess):
        error = np.square(image - guess).mean(axis=-1)
        return (
            Panel(image, title="image"),
            Panel(guess, title=f"rebuilt, {_decibels(image, guess)}"),
            Panel(image, heat=error, title="squared error"),
        )

    return Picture(title, tuple(row(*pair) for pair in zip(images, rebuilt)))


def _decibels(image: np.ndarray, guess: np.ndarray) -> str:
    """The PSNR of pixels in [0, 1] as text, at most 100 dB."""
    error = np.square(np.asarray(image, np.float64) - guess).mean()
    return f"{-10 * np.log10(max(error, 1e-10)):.1f} dB"
