"""Attention maps of the class token in the last block."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.methods.base import Features
from ssl_jax.methods.pictures.base import Panel, Picture


def draw(encoder: Callable[..., Features], images: np.ndarray) -> dict[str, Picture]:
    """{"attention": maps of the class token}; {} for a network without one.

    Args:
      encoder: images, attention=True -> Features. images: [n, H, W, 3] in [0, 1].
    """
    features = encoder(images, attention=True)
    if features.cls is None or features.attention is None:
        return {}
    maps = cls_attention(features.attention, features.patches.shape[1:3])
    return {"attention": picture(images, maps)}


def cls_attention(attention: jax.Array | np.ndarray, grid: Sequence[int]) -> np.ndarray:
    """Attention of the class token to the patches: [B, heads, N, N] (tokens: class, patches,
    queries) -> [B, heads, h, w]."""
    h, w = grid
    return np.asarray(attention)[:, :, 0, 1 : 1 + h * w].reshape(*attention.shape[:2], h, w)


def picture(images: ArrayLike, maps: ArrayLike) -> Picture:
    """One row per image: the image, the image with the mean over heads as overlay, and each head.

    Args:
      images: [n, H, W, 3] in [0, 1]. maps: [n, heads, h, w], attention of the class token to each
        patch.
    """
    images, maps = np.asarray(images), np.asarray(maps, np.float64)
    if maps.ndim != 4 or len(images) != len(maps):
        raise ValueError(
            f"images {images.shape} and maps {maps.shape} must be [n, H, W, 3] and [n, heads, h, w]"
        )
    rows = tuple(
        (
            Panel(image, title="image"),
            Panel(image, heat=heads.mean(axis=0), title="mean of heads"),
            *(Panel(heat=head, title=f"head {i}") for i, head in enumerate(heads, 1)),
        )
        for image, heads in zip(images, maps)
    )
    return Picture("Attention of the class token, last block", rows, from_zero=True)
