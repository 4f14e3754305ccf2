"""Patch tokens as colours: patches with similar colours have similar tokens, also across images."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.methods.base import Features
from ssl_jax.methods.pictures.base import Panel, Picture

_ROW = 6  # images in a row
_RANGE = (1.0, 99.0)  # percentiles of a component that are drawn dark and bright


def draw(encoder: Callable[..., Features], images: np.ndarray) -> dict[str, Picture]:
    """{"pca": images, each with its patch tokens as colours below}.

    encoder: images -> Features. images: [n, H, W, 3] in [0, 1].
    """
    images = np.asarray(images)
    colours = principal_colours(encoder(images).patches)
    rows: list[tuple[Panel, ...]] = []
    for start in range(0, len(images), _ROW):
        part = slice(start, start + _ROW)
        rows.append(tuple(Panel(image) for image in images[part]))
        rows.append(tuple(Panel(colour) for colour in colours[part]))
    title = "Patch tokens: three principal components of all images together, as red, green, blue"
    return {"pca": Picture(title, tuple(rows))}


def principal_colours(patches: ArrayLike) -> np.ndarray:
    """The first three principal components of tokens [n, h, w, d], d >= 3, each scaled so that its
    1st to 99th percentile covers [0, 1]: [n, h, w, 3].

    The components are computed over all images, so colours can be compared. The sign of a component
    is chosen so that its largest weight is positive.
    """
    patches = np.asarray(patches, np.float64)
    tokens = patches.reshape(-1, patches.shape[-1])
    tokens = tokens - tokens.mean(axis=0)
    directions = np.linalg.svd(tokens, full_matrices=False)[2][:3]
    largest = np.abs(directions).argmax(axis=1)
    directions *= np.sign(directions[np.arange(len(directions)), largest])[:, None]
    values = tokens @ directions.T
    low, high = np.percentile(values, _RANGE, axis=0)
    values = (values - low) / np.maximum(high - low, 1e-12)
    return np.clip(values, 0, 1).reshape(*patches.shape[:3], -1)
