"""The recipes that the section `views` of a config describes."""

from typing import Any

from ml_collections import ConfigDict

from ssl_jax.views.groups import GroupRecipe, ViewRecipe
from ssl_jax.views.masks import MaskRecipe
from ssl_jax.views.photometric import Photometric


def recipe_multicrop(views: ConfigDict, patch: int, *, masked: bool = True) -> ViewRecipe:
    """The multi-crop recipe of DINO, iBOT and SOP from the section `views` of a config.

    Every view gets colour jitter and grayscale. Blur has separate probabilities for global view 1,
    further global views and local views; only global view 2 is solarized (DINO, after BYOL; iBOT
    and SOP do the same).

    Args:
      views: config.views, valid (see `views.section`); patch: of the network, pixels.
      masked: whether masks are drawn for global views.
    """
    first = photometric(views, blur_prob=views.blur_prob[0])
    second = photometric(views, blur_prob=views.blur_prob[1], solarize_prob=views.solarize_prob)
    further = photometric(views, blur_prob=views.blur_prob[1])
    local = photometric(views, blur_prob=views.blur_prob[2])
    mask = None
    if masked and views.mask != "none":
        mask = MaskRecipe(
            kind=views.mask,
            ratio=tuple(views.mask_ratio),
            prob=views.mask_prob,
            block=views.mask_block,
        )
    count = views.global_count
    draws = (first, second, *(further,) * (count - 2))[:count]
    groups = [("global", group_of(views, patch, photometric=draws, mask=mask))]
    if views.local_count:
        draws = (local,) * views.local_count
        groups.append(("local", group_of(views, patch, "local", photometric=draws)))
    return ViewRecipe(tuple(groups))


def group_of(views: ConfigDict, patch: int, size: str = "global", **fields: Any) -> GroupRecipe:
    """The large ("global") or small ("local") crops of the section `views` of a config.

    fields: of `GroupRecipe`, in addition to or in place of those that the section gives.
    """
    values = dict(
        count=views[f"{size}_count"],
        size=views[f"{size}_size"],
        scale=tuple(views[f"{size}_scale"]),
        patch=patch,
        flip=views.flip,
    )
    return GroupRecipe(**values | fields)


def photometric_of_one(views: ConfigDict) -> tuple[Photometric, ...]:
    """`photometric` of a single view; () if the section has no such draw."""
    if views.jitter_prob or views.gray_prob or views.blur_prob[0]:
        return (photometric(views, blur_prob=views.blur_prob[0]),)
    return ()


def photometric(views: ConfigDict, *, blur_prob: float, solarize_prob: float = 0.0) -> Photometric:
    """The draws of one kind of view, from the section `views` of a config."""
    return Photometric(
        jitter=tuple(views.jitter),
        jitter_prob=views.jitter_prob,
        gray_prob=views.gray_prob,
        blur_prob=blur_prob,
        blur_radius=tuple(views.blur_radius),
        solarize_prob=solarize_prob,
    )
