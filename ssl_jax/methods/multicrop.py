"""What the multi-crop methods share: encoding a group of views, picking masked patches, features
for evaluation.
"""

import jax
import jax.numpy as jnp

from ssl_jax.config import InputError
from ssl_jax.methods import base
from ssl_jax.views import recipe


def check_weights(config) -> None:
    """Refuses weights of the `cls` and `patch` losses that leave nothing to learn, and a patch loss
    without a masked patch.
    """
    method, v = config.method, config.views
    weights = {name: config[method][name].weight for name in ("cls", "patch")}
    for name, weight in weights.items():
        if not weight >= 0:
            raise InputError(f"{method}.{name}.weight is {weight}; it must be 0 or more")
    if not any(weights.values()):
        raise InputError(
            f"{method}.cls.weight and {method}.patch.weight are both 0; there is nothing to learn"
            " from"
        )
    if not weights["patch"]:
        return
    group = recipe.recipe_multicrop(v, config.model.patch)
    if v.mask == "none" or v.mask_prob == 0 or recipe.max_masked(group, "global") == 0:
        raise InputError(
            f'views.mask is "{v.mask}", mask_ratio {v.mask_ratio}, mask_prob {v.mask_prob}, so no'
            f" patch of a {v.global_size} px view is masked; mask some or set"
            f" {method}.patch.weight=0"
        )


def encode(backbone, params, group, *, masked: bool, keys):
    """Encodes all views of one size in one pass.

    Args:
      backbone: models.Model of a vision transformer; params: its parameters.
      group: views.recipe.Group with images [B, V, H, W, 3] in [0, 1] and, if `masked`, masks [B, V,
        n].
      keys: [B] PRNG keys for drop-path, one per image, or None for evaluation mode. Each view folds
        in its index.

    Returns:
      Tokens with leading axes [B, V].
    """
    b, v = group.images.shape[:2]

    def merge(x):
        return x.reshape(b * v, *x.shape[2:])

    view_keys = None
    if keys is not None:
        view_keys = merge(
            jax.vmap(lambda k: jax.vmap(lambda i: jax.random.fold_in(k, i))(jnp.arange(v)))(keys)
        )
    masks = merge(group.masks) if masked else None
    tokens = backbone.apply(params, merge(group.images), masks=masks, keys=view_keys)
    return jax.tree.map(lambda x: x.reshape(b, v, *x.shape[1:]), tokens)


def global_token(tokens, kind: str):
    """[..., d]: the class token ("cls") or the average of the patch tokens ("mean")."""
    return tokens.cls if kind == "cls" else tokens.patches.mean(axis=-2)


def masked_first(masks, count: int):
    """Indices of up to `count` masked patches per view, and which of them are masked.

    Args:
      masks: [B, V, n] bool; no view may have more than `count` True.

    Returns:
      index [B, V, count] int32 (masked patches first, in order) and mask [B, V, count] bool.
    """
    index = jnp.argsort(~masks, axis=-1, stable=True)[..., :count]
    return index, jnp.take_along_axis(masks, index, axis=-1)


def take(patches, index):
    """Gathers patches [..., n, d] at index [..., m] -> [..., m, d]."""
    return jnp.take_along_axis(patches, index[..., None], axis=-2)


def features(
    backbone, params, images, *, kind: str, patch: int, layers=(), attention=False
) -> base.Features:
    """Features of clean images [B, H, W, 3] in [0, 1] after the final norm; patches as a grid [B,
    H/patch, W/patch, d].
    """
    tokens = backbone.apply(params, images, layers=layers, attention=attention)
    b, h, w = images.shape[:3]
    return base.Features(
        image=global_token(tokens, kind),
        cls=tokens.cls,
        patches=tokens.patches.reshape(b, h // patch, w // patch, -1),
        attention=tokens.attention,
        layers=tokens.layers,
        extras={},
    )
