"""Pictures of STELLAR (figs. 3 to 5): reconstructions, localization maps, concepts."""

import numpy as np

from ssl_jax.methods.encoder import Encoder
from ssl_jax.methods.pictures import reconstructions
from ssl_jax.methods.pictures.base import Panel, Picture, register

_TOKENS = 6  # maps shown per image, the largest first
_ROWS, _COLUMNS = 4, 8  # concepts, and images of each
_THRESHOLD = 0.5  # a concept covers the cells where its map is above this share of its maximum


def draw(encoder: Encoder, images: np.ndarray) -> dict[str, Picture]:
    """{"reconstructions", "localization", "concepts": Picture}, as far as the weights allow."""
    features = encoder(images, extras=True)
    assert features.extras is not None
    extras = {name: np.asarray(value) for name, value in features.extras.items()}
    images, drawn = np.asarray(images), {}
    rebuilt, maps, share = (extras.get(name) for name in ("rebuilt", "localization", "share"))
    if rebuilt is not None:
        title = "Images rebuilt from their sparse tokens"
        drawn["reconstructions"] = reconstructions.picture(
            images, reconstructions.pixels(encoder.config, rebuilt), title
        )
    if maps is not None:
        drawn["localization"] = _maps(images, maps)
        if share is not None:
            drawn["concepts"] = _concepts(images, maps, share)
    return drawn


def _maps(images, localization) -> Picture:
    """One row per image: the best token of each cell, then the maps of the tokens that cover the
    largest area."""

    def row(image, maps):
        area = maps.mean(axis=(0, 1))
        largest = np.argsort(-area)[:_TOKENS]
        return (
            Panel(image, title="image"),
            Panel(image, labels=maps.argmax(axis=-1), title="best token per cell"),
            *(
                Panel(image, heat=maps[..., j], title=f"token {j}: {100 * area[j]:.0f} %")
                for j in largest
            ),
        )

    title = "Localization maps: which sparse token explains which part of the image"
    return Picture(title, tuple(row(*pair) for pair in zip(images, localization)))


def _concepts(images, localization, share) -> Picture:
    """One row per prototype: the images with the highest probability of it, and the region of the
    token that has it.

    share: [N, r, K], the probability of each prototype for each token.
    """
    best = share.max(axis=1)  # [N, K]
    # Ranked by the second-best image, to prefer prototypes shared by several images.
    surest = np.sort(best, axis=0)[-min(2, len(best))]

    def row(k):
        panels: list[Panel] = []
        for i in np.argsort(-best[:, k], kind="stable")[:_COLUMNS]:
            cells = localization[i, :, :, share[i, :, k].argmax()]
            covered = np.where(cells >= _THRESHOLD * cells.max(), 0, -1)
            name = "" if panels else f"prototype {k}, "
            panels.append(Panel(images[i], labels=covered, title=f"{name}p {best[i, k]:.2f}"))
        return tuple(panels)

    title = "Concepts: images by the probability of a prototype, with the place of their token"
    order = np.argsort(-surest, kind="stable")[:_ROWS]
    return Picture(title, tuple(map(row, order)))


register("stellar", draw)
