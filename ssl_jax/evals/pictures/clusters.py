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
        # Numbers 0, 1, ... need few colours; no label stays below 0.
        numbered = np.unique(truth, return_inverse=True)[1] - (truth < 0).any()
        text = f"clusters: purity {100 * result.purity[i]:.0f} %, ARI {100 * result.ari[i]:.0f} %"
        return (
            Panel(images[i], title="image"),
            Panel(images[i], labels=numbered, title="true regions"),
            Panel(images[i], labels=clusters[i], title=text),
        )

    title = f"Clusters of patches ({kind}) and the true regions"
    return Picture(title, tuple(map(row, range(count))))
