"""Compares clusters of patches with true regions: purity, mutual information, Rand index, and how
much of a token's mode comes from the token's own region.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.scores import normalize

SHARPNESS = 0.1 * 384**0.5  # FLSL's self-attention on cosines: tau x D of ViT-S


class Agreement(NamedTuple):
    """Agreement of clusters and labels in N images; NaN for an image without labelled patches."""

    purity: np.ndarray  # [N] share of patches of the commonest class of their cluster
    nmi: np.ndarray  # [N] mutual information over the mean entropy
    ari: np.ndarray  # [N] Rand index adjusted for chance, 0 = chance
    number: np.ndarray  # [N] number of clusters with a labelled patch


def purity(clusters: ArrayLike, labels: ArrayLike) -> float:
    """Share of entries with the commonest label of their cluster, 0..1. It grows with the number of
    clusters and is 1 if each has one entry.

    clusters, labels: [n] int, n at least 1.
    """
    counts = np.unique(np.stack([np.ravel(clusters), np.ravel(labels)]), axis=1, return_counts=True)
    (of_cluster, _), size = counts
    best = [size[of_cluster == c].max() for c in np.unique(of_cluster)]
    return float(np.sum(best) / np.size(clusters))


def agreement(clusters: ArrayLike, labels: ArrayLike, ignore: int = IGNORE) -> Agreement:
    """Compares the clusters of each image with its labels; both [N, h, w] int. Patches labelled
    `ignore` do not count. NMI and ARI are scikit-learn's (arithmetic mean of the entropies)."""
    from sklearn import metrics

    rows = []
    for cluster, truth in zip(np.asarray(clusters), np.asarray(labels)):
        cluster, truth = cluster[truth != ignore], truth[truth != ignore]
        rows.append(
            (
                purity(cluster, truth),
                metrics.normalized_mutual_info_score(truth, cluster),
                metrics.adjusted_rand_score(truth, cluster),
                len(np.unique(cluster)),
            )
            if len(cluster)
            else (np.nan,) * 4
        )
    return Agreement(*np.array(rows, np.float64).reshape(-1, 4).T)


def modes(tokens: ArrayLike, labels: ArrayLike, sharpness: float = SHARPNESS) -> float:
    """How much of a token's mode comes from the token's own region, averaged over tokens.

    The mean shift has the weights softmax_j(s cos(z_i, z_j)), j != i (FLSL eq. 4, 8). With a the
    share of the weights on patches of the same label and c this share for equal weights, the score
    is (a - c) / (1 - c): 0 = the mode is the mean of the view, 1 = the mean of the region; NaN if
    every view is one region.

    tokens: [N, n, d]. labels: [N, n]; `IGNORE` patches are left out. sharpness: s.
    """
    scores = [
        _mode_scores(*view, sharpness) for view in zip(np.asarray(tokens), np.asarray(labels))
    ]
    every = np.concatenate([*scores, np.zeros(0)])
    return float(np.mean(every)) if len(every) else float("nan")


def _mode_scores(tokens, labels, sharpness):
    """Scores of the tokens [n, d] of an image whose label is not that of all others."""
    unit = normalize.on_host(tokens)
    cosines = np.einsum("id,jd->ij", unit, unit)
    labelled = labels != IGNORE
    others = ~np.eye(len(labels), dtype=bool) & labelled
    below = cosines - cosines.max(axis=-1, keepdims=True, where=others, initial=-1)
    weights = np.exp(sharpness * np.minimum(below, 0))
    same = (labels[:, None] == labels) & others
    count = others.sum(-1)
    share = (weights * same).sum(-1) / np.maximum((weights * others).sum(-1), 1e-30)
    chance = same.sum(-1) / np.maximum(count, 1)
    # In a view of one region 1 - c is 0.
    mixed = (chance < 1) & labelled & (count > 0)
    return (share[mixed] - chance[mixed]) / (1 - chance[mixed])


def kmeans(patches: ArrayLike, k: int, seed: int = 0) -> np.ndarray:
    """Clusters the patches [N, h, w, d] of each image by direction: k-means (scikit-learn) of unit
    vectors with at most k clusters. Returns [N, h, w] int32."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    unit = normalize.on_host(np.asarray(patches, np.float64))
    n, h, w, d = unit.shape
    clusters = np.empty((n, h * w), np.int32)
    with threadpool_limits(1):  # one image is too little work for several threads
        for i, tokens in enumerate(unit.reshape(n, h * w, d)):
            # There cannot be more clusters than different patches.
            different = len(np.unique(tokens.round(6), axis=0))
            model = KMeans(min(k, different), n_init=3, random_state=seed)
            clusters[i] = model.fit_predict(tokens)
    return clusters.reshape(n, h, w)
