"""Do clusters of patches follow objects? Purity, mutual information, Rand index against masks.

`clusters` names whose: the objects of CrIBo (its joint clustering of a single image), the sparse
tokens of STELLAR (the token with the largest localization), or k-means of an image's patches for
any network. `purity_modes` needs no hard clusters: how far FLSL's mode of a token comes from the
token's own region.
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ssl_jax.config import InputError, field
from ssl_jax.evals import dense
from ssl_jax.evals.case import Case
from ssl_jax.evals.pictures import cribo as objects
from ssl_jax.evals.pictures import similarity
from ssl_jax.evals.pictures.base import Panel, Picture
from ssl_jax.evals.registry import register_module
from ssl_jax.losses.segmentation import IGNORE
from ssl_jax.methods.encoder import Encoder
from ssl_jax.scores.metrics import check_classes, num_classes

SHARPNESS = 0.1 * 384**0.5  # FLSL's self-attention, tau x D of ViT-S, on cosines
_OWN = {"cribo": "objects", "stellar": "tokens"}  # method: the clusters it has
_SHOWN = 6  # test images of the picture


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of this type of evaluation."""

    clusters: str = field(
        "auto",
        '"objects" of CrIBo, "tokens" of STELLAR, "kmeans" of the patches of any network;'
        ' "auto" = the network\'s own, else kmeans',
        choices=("auto", "objects", "tokens", "kmeans"),
    )
    k: int = field(8, "clusters of kmeans, in each image", "clusters", above=0)


class Agreement(NamedTuple):
    """Of N images; NaN for one without a labelled patch."""

    purity: np.ndarray  # [N] share of patches of the commonest class of their cluster
    nmi: np.ndarray  # [N] mutual information over the mean entropy
    ari: np.ndarray  # [N] Rand index adjusted for chance, 0 = chance
    number: np.ndarray  # [N] clusters that have a labelled patch


def purity(clusters: ArrayLike, labels: ArrayLike) -> float:
    """Share of entries that have the commonest label of their cluster, 0..1. It rises with the
    number of clusters: 1 where each has one entry.

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
    for mine, truth in zip(np.asarray(clusters), np.asarray(labels)):
        mine, truth = mine[truth != ignore], truth[truth != ignore]
        rows.append(
            (
                purity(mine, truth),
                metrics.normalized_mutual_info_score(truth, mine),
                metrics.adjusted_rand_score(truth, mine),
                len(np.unique(mine)),
            )
            if len(mine)
            else (np.nan,) * 4
        )
    return Agreement(*np.array(rows, np.float64).reshape(-1, 4).T)


def modes(tokens: ArrayLike, labels: ArrayLike, sharpness: float = SHARPNESS) -> float:
    """How far a token's mode comes from its own region: of the weights softmax_j(s cos(z_i, z_j)),
    j != i, of the mean shift (FLSL eq. 4, 8), the share on patches of the same label, minus the
    share that equal weights would have there, over 1 minus that share. 0 = the mode is the mean of
    the view, 1 = that of the region; NaN where every view is one region.

    tokens: [N, n, d]. labels: [N, n], `IGNORE` = takes no part.
    """
    labels = np.asarray(labels)
    unit = np.asarray(tokens) / np.linalg.norm(tokens, axis=-1, keepdims=True)
    cosines = np.einsum("bid,bjd->bij", unit, unit)
    known = labels != IGNORE
    others = ~np.eye(labels.shape[1], dtype=bool) & known[:, None]
    below = cosines - cosines.max(axis=-1, keepdims=True, where=others, initial=-1)
    weights = np.exp(sharpness * np.minimum(below, 0))
    same = (labels[:, :, None] == labels[:, None]) & others
    count = others.sum(-1)
    share = (weights * same).sum(-1) / np.maximum((weights * others).sum(-1), 1e-30)
    chance = same.sum(-1) / np.maximum(count, 1)
    # A view that is one region says nothing.
    mixed = (chance < 1) & known & (count > 0)
    if not mixed.any():
        return float("nan")
    return float(np.mean((share[mixed] - chance[mixed]) / (1 - chance[mixed])))


def kmeans(patches: ArrayLike, k: int, seed: int = 0) -> np.ndarray:
    """[N, h, w] int32 clusters of each image's own patches [N, h, w, d], by direction: k-means of
    unit vectors (scikit-learn), at most k."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    patches = np.asarray(patches, np.float64)
    n, h, w, d = patches.shape
    unit = patches / np.maximum(np.linalg.norm(patches, axis=-1, keepdims=True), 1e-12)
    found = np.empty((n, h * w), np.int32)
    with threadpool_limits(1):  # an image is too small a task for several threads
        for i, tokens in enumerate(unit.reshape(n, h * w, d)):
            # Fewer different patches than clusters: no more than there are.
            different = len(np.unique(tokens.round(6), axis=0))
            model = KMeans(min(k, different), n_init=3, random_state=seed)
            found[i] = model.fit_predict(tokens)
    return found.reshape(n, h, w)


def kind_of(case: Case) -> str:
    """Which clusters an evaluation compares. Raises InputError for those that a network lacks."""
    config = getattr(case.encoder, "config", None)
    method = "" if config is None else config.method
    asked = case.config.clusters
    if asked == "auto":
        return _OWN.get(method, "kmeans")
    wanted = {kind: name for name, kind in _OWN.items()}.get(asked, method)
    if config is not None and method != wanted:
        raise InputError(
            f'clusters="{asked}" needs a network of {wanted}, but this one is of {method}; use'
            ' "kmeans" or "auto"'
        )
    return "kmeans" if config is None else asked


def clusters(case: Case, index: np.ndarray, patches: np.ndarray) -> np.ndarray:
    """[N, h, w] int: the clusters of test images `index` with patches [N, h, w, d]."""
    kind = kind_of(case)
    if kind == "kmeans":
        return kmeans(patches, case.config.k, case.seed)
    parts = []
    for start in range(0, len(index), case.batch_size):
        rows = index[start : start + case.batch_size]
        count = len(rows)
        if kind == "objects":
            some = np.pad(
                patches[start : start + count],
                ((0, case.batch_size - count), (0, 0), (0, 0), (0, 0)),
                mode="edge",
            )
            size = tuple(n * case.patch for n in patches.shape[1:3])
            section = case.encoder.config.cribo
            found, _, _ = objects.find(size, jnp.asarray(some), section, seed=case.seed)
        else:
            filled = np.append(rows, np.repeat(rows[-1:], case.batch_size - count))
            extras = case.encoder(case.images(case.test, filled), extras=True).extras or {}
            if "localization" not in extras:
                raise InputError(
                    "the weights hold no localization maps (stellar.weights.reconstruction was 0);"
                    ' use clusters="kmeans"'
                )
            found = np.asarray(extras["localization"]).argmax(axis=-1)
        parts.append(found[:count])
    return np.concatenate(parts)


def _compared(case: Case):
    """Test features, their clusters, and the majority label of each patch."""
    test = case.part("test", "patches")
    case.need(test.masks is not None, "masks")
    assert test.patches is not None
    labels = dense.patch_labels(
        test.masks, test.patches.shape[1:3], num_classes=num_classes(test.masks)
    )
    check_classes("purity", case.test, labels, "patches")
    found = case.once("purity", lambda _: clusters(case, test.index, test.patches))
    return test, found, labels


def score(case: Case, settings: Settings) -> dict[str, float]:
    """Means over the test images, in percent: `purity`, `purity_nmi`, `purity_ari` of the clusters,
    `purity_modes`, see `modes`; and `purity_clusters`, how many an image has.

    Raises InputError for a set without masks, or clusters that the network does not have.
    """
    test, found, labels = _compared(case)
    result = agreement(found, labels)
    tokens = test.patches.reshape(len(labels), -1, test.patches.shape[-1])
    scores = {
        "purity": 100 * float(np.nanmean(result.purity)),
        "purity_nmi": 100 * float(np.nanmean(result.nmi)),
        "purity_ari": 100 * float(np.nanmean(result.ari)),
        "purity_clusters": float(np.nanmean(result.number)),
    }
    soft = modes(tokens, labels.reshape(len(labels), -1))
    return scores | ({"purity_modes": 100 * soft} if np.isfinite(soft) else {})


def _numbered(labels: np.ndarray) -> np.ndarray:
    """Labels as 0, 1, ... in their order, so that few colours do; those below 0 are -1."""
    return np.unique(labels, return_inverse=True)[1] - (labels < 0).any()


def figures(case: Case, settings: Settings) -> dict[str, Picture]:
    """{"clusters": test images, their classes, and the clusters; "similarity": see
    `pictures.similarity`}."""
    test, found, labels = _compared(case)
    images = case.images(case.test, test.index[:_SHOWN])
    result = agreement(found[:_SHOWN], labels[:_SHOWN])

    def row(i):
        truth = np.where(labels[i] == IGNORE, -1, labels[i])
        text = f"clusters: purity {100 * result.purity[i]:.0f} %, ARI {100 * result.ari[i]:.0f} %"
        return (
            Panel(images[i], title="image"),
            Panel(images[i], labels=_numbered(truth), title="true regions"),
            Panel(images[i], labels=found[i], title=text),
        )

    title = f"Clusters of patches ({kind_of(case)}) and the true regions"
    drawn = {"clusters": Picture(title, tuple(map(row, range(len(images)))))}
    if isinstance(case.encoder, Encoder):
        drawn |= similarity.draw(case.encoder, images)
    return drawn


register_module(__name__, heading="purity", needs="masks", one_size=True)
