"""What STELLAR needs beside its paper's equations: encoding of masked views, meters of the
matching, pictures of its concepts.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax.methods.base import Panel, Picture

_THRESHOLD = 0.5  # a concept covers the cells where its map is above this share of its maximum


def encode(backbone, params, group, keys):
    """Tokens with leading axes [B, V] of all views of a group in one pass; only of the kept patches
    if the group drops some.

    Args:
      group: views.recipe.Group with images [B, V, H, W, 3] in [0, 1] and keep [B, V, m] or None.
      keys: [B] PRNG keys for drop-path, one per image; each view folds in its index.
    """
    b, v = group.images.shape[:2]

    def merge(x):
        return x.reshape(b * v, *x.shape[2:])

    view_keys = merge(
        jax.vmap(lambda k: jax.vmap(lambda i: jax.random.fold_in(k, i))(jnp.arange(v)))(keys)
    )
    keep = None if group.keep is None else merge(group.keep)
    tokens = backbone.apply(params, merge(group.images), keep=keep, keys=view_keys)
    return jax.tree.map(lambda x: x.reshape(b, v, *x.shape[1:]), tokens)


def match_meters(alignment) -> dict:
    """What `ops.align_sets` found, index [..., r] and cost [..., r, s], as scalars.

    match_cost: mean distance of matched tokens. match_contrast: that over the mean distance of all
    pairs; 1 = the matching is blind. match_distinct: share of the targets that are matched at all,
    of those that could be; 1 = no two tokens share a target."""
    index, cost = alignment.index, alignment.cost
    count, size = cost.shape[-2:]
    matched = jnp.take_along_axis(cost, index[..., None], axis=-1).mean()
    hit = (index[..., :, None] == jnp.arange(size)).any(axis=-2).sum(axis=-1) / min(count, size)
    return {
        "match_cost": matched,
        "match_contrast": matched / jnp.maximum(cost.mean(), 1e-12),
        "match_distinct": hit.mean(),
    }


def match_warnings(metrics) -> list[str]:
    """Warns if `match_contrast` is near 1."""
    contrast = metrics.get("match_contrast", 0.0)
    if contrast <= 0.98:
        return []
    return [
        f"tokens alike: matched tokens are {contrast:.2f} times as far apart as any two, so the"
        " matching is blind; raise stellar.weights.koleo or lower optim.lr"
    ]


def pictures(
    images,
    localization=None,
    share=None,
    rebuilt=None,
    *,
    tokens: int = 6,
    rows: int = 4,
    columns: int = 8,
):
    """The pictures that the given arrays allow; all may be JAX arrays.

    Args:
      images: [N, H, W, 3] in [0, 1]. localization: L [N, h, w, r]. share: [N, r, K], probability of
      each prototype for each token. rebuilt: [N, H, W, 3] in [0, 1]. tokens: maps shown per image,
      those that cover most. rows: concepts shown, columns: images of each.

    Returns:
      {name: Picture}: "reconstructions" (if rebuilt), "localization" (if L), "concepts" (if L and
        share).
    """
    images, localization, share, rebuilt = (
        None if x is None else np.asarray(x) for x in (images, localization, share, rebuilt)
    )
    drawn = {}
    if rebuilt is not None:
        drawn["reconstructions"] = _reconstructions(images, rebuilt)
    if localization is not None:
        drawn["localization"] = _maps(images, localization, tokens)
        if share is not None:
            drawn["concepts"] = _concepts(images, localization, share, rows, columns)
    return drawn


def _reconstructions(images, rebuilt) -> Picture:
    def row(image, guess):
        error = np.square(image - guess)
        psnr = -10 * np.log10(max(error.mean(), 1e-10))
        panels = Panel(image, title="image"), Panel(guess, title=f"rebuilt, {psnr:.1f} dB")
        return (*panels, Panel(image, heat=error.mean(axis=-1), title="squared error"))

    return Picture(
        "Images rebuilt from their sparse tokens",
        tuple(row(*pair) for pair in zip(images, rebuilt)),
    )


def _maps(images, localization, count: int) -> Picture:
    """One row per image: the token that explains each cell best, then the maps of the tokens that
    cover most.
    """

    def row(image, maps):
        area = maps.mean(axis=(0, 1))
        panels = [
            Panel(image, title="image"),
            Panel(image, labels=maps.argmax(axis=-1), title="best token per cell"),
        ]
        return (
            *panels,
            *(
                Panel(image, heat=maps[..., j], title=f"token {j}: {100 * area[j]:.0f} %")
                for j in np.argsort(-area)[:count]
            ),
        )

    return Picture(
        "Localization maps: which sparse token explains which place",
        tuple(row(*pair) for pair in zip(images, localization)),
    )


def _concepts(images, localization, share, rows: int, columns: int) -> Picture:
    """One row per prototype: the images whose likeliest token for it is surest, and where that
    token is (above half its maximum).
    """
    best = share.max(axis=1)  # [N, K]
    # Prototypes that several images share tell more than one that a single image owns: the
    # second-surest image decides.
    order = np.argsort(-np.sort(best, axis=0)[-min(2, len(best))], kind="stable")[:rows]

    def row(k):
        panels = []
        for i in np.argsort(-best[:, k], kind="stable")[:columns]:
            j = share[i, :, k].argmax()
            cells = localization[i, :, :, j]
            covered = np.where(cells >= _THRESHOLD * cells.max(), 0, -1)
            panels.append(
                Panel(
                    images[i],
                    labels=covered,
                    title=f"{'prototype ' + str(k) + ', ' if not panels else ''}p {best[i, k]:.2f}",
                )
            )
        return tuple(panels)

    return Picture(
        "Concepts: images by the probability of a prototype, with the place of their token for it",
        tuple(map(row, order)),
    )
