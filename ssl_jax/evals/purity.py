"""Compares clusters of patches with masks of objects: purity, mutual information, Rand index.

`clusters` selects the objects that a method finds in an image (CrIBo's joint clustering of a single
image), the sparse token with the largest localization (STELLAR), or k-means of an image's patches
for any network. `purity_modes` needs no hard clusters: it measures how much of a token's mode, as
in FLSL, comes from the token's own region.
"""

import dataclasses

import numpy as np

from ssl_jax.config import InputError, field
from ssl_jax.evals.case import Case, Masked
from ssl_jax.evals.classes import check_classes
from ssl_jax.evals.pictures import clusters as pictures
from ssl_jax.evals.registry import register_module
from ssl_jax.features.windows import filled
from ssl_jax.methods.pictures import similarity
from ssl_jax.methods.pictures.base import Picture
from ssl_jax.scores.clusters import agreement, kmeans, modes
from ssl_jax.scores.metrics import num_classes
from ssl_jax.scores.segmentation import patch_labels

_EXTRAS = {"objects": "clusters", "tokens": "localization"}  # {kind: name of the network's extra}
_SHOWN = 6  # test images of the picture


@dataclasses.dataclass(frozen=True)
class Settings:
    clusters: str = field(
        "auto",
        'clusters that are measured: CrIBo\'s "objects", STELLAR\'s "tokens", "kmeans" of any'
        " network's patches, or \"auto\", the network's own, otherwise kmeans",
        choices=("auto", "objects", "tokens", "kmeans"),
    )
    k: int = field(8, "number of kmeans clusters per image", "clusters", above=0)


def kind_of(case: Case, clusters: str, shape: tuple[int, ...]) -> str:
    """Which clusters are compared; "auto" is resolved by the network's extras for images of
    `shape`. Raises InputError for clusters that the network does not have."""
    if clusters == "kmeans" or case.network.config is None:
        return "kmeans"
    shown = case.network.extras(shape)
    kinds = [kind for kind, name in _EXTRAS.items() if name in shown]
    if clusters == "auto":
        return (*kinds, "kmeans")[0]
    if clusters not in kinds:
        raise InputError(
            f'clusters="{clusters}", but {case.network} shows no {_EXTRAS[clusters]}; use "kmeans"'
            ' or "auto"'
        )
    return clusters


def _clusters(case: Case, settings: Settings, test: Masked) -> tuple[np.ndarray, str]:
    """(clusters [N, h, w] int of the test images, their kind)."""
    size = (side * case.patch for side in test.patches.shape[1:3])
    kind = kind_of(case, settings.clusters, (case.batch_size, *size, case.test.channels))
    if kind == "kmeans":
        return kmeans(test.patches, settings.k, case.seed), kind
    parts = []
    for start in range(0, len(test.index), case.batch_size):
        rows = test.index[start : start + case.batch_size]
        images = filled(case.images(case.test, rows), case.batch_size)
        shown = np.asarray(case.network.with_extras(images)[1][_EXTRAS[kind]])[: len(rows)]
        parts.append(shown if kind == "objects" else shown.argmax(axis=-1))
    return np.concatenate(parts), kind


def _compared(case: Case, settings: Settings) -> tuple[Masked, np.ndarray, str, np.ndarray]:
    """(test patches, clusters, their kind, majority label of each patch)."""
    test = case.masked("test")
    grid, classes = test.patches.shape[1:3], num_classes(test.masks)
    labels = patch_labels(test.masks, grid, num_classes=classes)
    check_classes("purity", case.test, labels, "patches")
    return test, *case.cached("purity", lambda case: _clusters(case, settings, test)), labels


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Means over the test images: `purity`, `purity_nmi`, `purity_ari` and `purity_modes` in
    percent, see `scores.clusters`; and `purity_clusters`, the number of clusters in an image.
    """
    test, clusters, _, labels = _compared(case, settings)
    result = agreement(clusters, labels)
    tokens = test.patches.reshape(len(labels), -1, test.patches.shape[-1])
    scores = {
        "purity": 100 * float(np.nanmean(result.purity)),
        "purity_nmi": 100 * float(np.nanmean(result.nmi)),
        "purity_ari": 100 * float(np.nanmean(result.ari)),
        "purity_clusters": float(np.nanmean(result.number)),
    }
    soft = modes(tokens, labels.reshape(len(labels), -1))
    return scores | ({"purity_modes": 100 * soft} if np.isfinite(soft) else {})


def figures(case: Case, settings: Settings) -> dict[str, Picture]:
    """{"clusters": test images, their classes, and the clusters; "similarity": see
    `pictures.similarity`}."""
    test, clusters, kind, labels = _compared(case, settings)
    images = case.images(case.test, test.index[:_SHOWN])
    drawn = {"clusters": pictures.picture(images, labels, clusters, kind)}
    if case.network.encoder is not None:
        drawn |= similarity.draw(case.network.encoder, images)
    return drawn


register_module(__name__, heading="purity", needs="masks", learns=False, one_size=True)
