"""Images beside what a decoder makes of them."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.evals.pictures.base import Panel, Picture
from ssl_jax.scores.rebuild import psnr


def picture(images: ArrayLike, rebuilt: ArrayLike, title: str) -> Picture:
    """A row per image: the image, rebuilt, and the squared error. images, rebuilt: [n, H, W, 3]."""
    images, rebuilt = np.asarray(images), np.asarray(rebuilt)

    def row(image, guess, decibels):
        error = np.square(image - guess).mean(axis=-1)
        return (
            Panel(image, title="image"),
            Panel(guess, title=f"rebuilt, {decibels:.1f} dB"),
            Panel(image, heat=error, title="squared error"),
        )

    return Picture(title, tuple(row(*each) for each in zip(images, rebuilt, psnr(images, rebuilt))))


def compared(images: ArrayLike, rebuilt: Mapping[str, ArrayLike], title: str) -> Picture:
    """A row per image: the image, and what each of several networks makes of it.

    images: [n, H, W, 3]. rebuilt: {name of the network: [n, H, W, 3]}.
    """
    images = np.asarray(images)
    columns = {name: (np.asarray(x), psnr(images, x)) for name, x in rebuilt.items()}
    rows = tuple(
        (
            Panel(image, title="image"),
            *(Panel(x[i], title=f"{name}, {db[i]:.1f} dB") for name, (x, db) in columns.items()),
        )
        for i, image in enumerate(images)
    )
    return Picture(title, rows)
