"""STELLAR's views: an unmasked main view, masked views that keep few patches, small crops."""

from ml_collections import ConfigDict

from ssl_jax.views import configured
from ssl_jax.views.masks import MaskRecipe
from ssl_jax.views.photometric import Photometric
from ssl_jax.views.recipe import ViewRecipe


def view_recipe(config: ConfigDict) -> ViewRecipe:
    """The views of a config (STELLAR appendix C.1, official code).

    Groups: "global", the main view: a large crop without colour changes, and for targets from a
    teacher another large crop with them; "masked", views.global_count large crops with colour
    changes, of which some patches are kept; "local", views.local_count small crops with colour
    changes. Masked view i shows the region of global view i, if there is one. Colour changes are
    drawn per view; no view is solarised. views.blur_prob refers to the first masked view, the other
    large crops and the small ones.
    """
    c, v, patch = config.stellar, config.views, config.model.patch
    first, further, small = (configured.photometric(v, blur_prob=prob) for prob in v.blur_prob)
    if c.targets == "teacher":
        main = configured.group_of(v, patch, count=2, photometric=(Photometric(), further))
    else:
        main = configured.group_of(v, patch, count=1)
    groups = {"global": main}
    if c.masked:
        dropped = MaskRecipe(
            "random",
            (c.mask_ratio,) * 2,
            drop=True,
            focus=c.mask_focus,
            focus_prob=c.mask_focus_prob,
        )
        photometric = (first, *[further] * (v.global_count - 1))
        groups["masked"] = configured.group_of(
            v, patch, photometric=photometric, mask=dropped, reuse="global"
        )
    if v.local_count:
        draws = (small,) * v.local_count
        groups["local"] = configured.group_of(v, patch, "local", photometric=draws)
    return ViewRecipe(tuple(groups.items()))
