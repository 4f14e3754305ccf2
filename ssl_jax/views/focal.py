"""STELLAR's views: one whole main view, masked views that keep few patches, small crops."""

from ssl_jax.views import recipe
from ssl_jax.views.masks import MaskRecipe
from ssl_jax.views.photometric import Photometric
from ssl_jax.views.recipe import GroupRecipe, ViewRecipe


def recipe_focal(views, patch: int, *, mask: dict | None, second: bool = False) -> ViewRecipe:
    """The recipe of STELLAR from the section `views` of a config (STELLAR appendix C.1, official
    code).

    Groups: "global", the main view, a large crop without colour changes, and with `second` another
    large crop with them (a teacher's); "masked", views.global_count large crops with colour changes
    that keep some of their patches; "local", views.local_count small ones with colour changes. A
    masked view shows the region of the global view of its number, as far as there is one. Colour
    changes are drawn per view; no view is solarised. views.blur_prob: the first masked view, the
    other large crops, the small ones.

    Args:
      views: config.views (see `views.section`); patch: of the network, pixels.
      mask: {"ratio": share of patches dropped, "focus", "focus_prob": see MaskRecipe}; None: no
      masked views. second: whether there is a second global view.

    Raises:
      InputError: names the key and what would be right.
    """
    with recipe.named("views."):
        first, further, small = (
            recipe.photometric(views, blur_prob=prob) for prob in views.blur_prob
        )
    large = dict(
        size=views.global_size, scale=tuple(views.global_scale), patch=patch, flip=views.flip
    )
    main = (Photometric(), further) if second else ()
    with recipe.named("views.global_"):
        groups = [("global", GroupRecipe(count=1 + second, photometric=main, **large))]
    if mask is not None:
        with recipe.named("stellar.mask_"):
            dropped = MaskRecipe(
                "random",
                (mask["ratio"],) * 2,
                drop=True,
                focus=mask["focus"],
                focus_prob=mask["focus_prob"],
            )
        count = views.global_count
        with recipe.named("views.global_"):
            masked = GroupRecipe(
                count=count,
                photometric=(first, *[further] * (count - 1)),
                mask=dropped,
                reuse="global",
                **large,
            )
        groups.append(("masked", masked))
    if views.local_count:
        count, size, scale = views.local_count, views.local_size, tuple(views.local_scale)
        with recipe.named("views.local_"):
            local = GroupRecipe(
                count=count,
                size=size,
                scale=scale,
                patch=patch,
                flip=views.flip,
                photometric=(small,) * count,
            )
        groups.append(("local", local))
    return ViewRecipe(tuple(groups))
