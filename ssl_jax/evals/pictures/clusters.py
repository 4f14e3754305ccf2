"""Clusters of patches next to the true regions."""

import numpy as np

from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.methods.pictures.base import Panel, Picture
from ssl_jax.scores.clusters import agreement


def picture(images: np.ndarray, labels: np.ndarray, clusters: np.ndarray, kind: str) -> Picture:
    """One row per image: the image, its true regions, its clusters.

    images: [n, H, W, 3] in [0, 1]. labels, clusters: [n or more, h, w] int, 255 = no label. kind:
    of the clusters, for the title."""
    count = len(images)
    result = agreement(clusters[:count], labels[:count])

    def row(i):
        truth = np.where(labels[i] == IGNORE, -1, labels[i])
        text = f"clusters: purity {100 * result.purity[i]:.0f} %, ARI {100 * result.ari[i]:.0f} %"
        return (
            Panel(images[i], title="image"),
            Panel(images[i], labels=_numbered(truth), title="true regions"),
            Panel(images[i], labels=clusters[i], title=text),
        )

    title = f"Clusters of patches ({kind}) and the true regions"
    return Picture(title, tuple(map(row, range(count))))


def _numbered(labels):
    """Renumbers labels as 0, 1, ... in their order, to use few colours; those below 0 become -1."""
    return np.unique(labels, return_inverse=True)[1] - (labels < 0).any()
