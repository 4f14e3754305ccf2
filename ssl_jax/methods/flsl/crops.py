"""FLSL's views: a large crop for the teacher and, inside it, smaller ones for the student."""

import dataclasses

from ml_collections import ConfigDict

from ssl_jax.views import recipe


def nested(config: ConfigDict) -> recipe.ViewRecipe:
    """Groups "global" and, if symmetric, "other": the teacher's views, one place in two treatments;
    "student" and "local" inside it.

    From the sections flsl, views and model of a config. Without `flsl.nested` all crops are
    independent.
    """
    c, v = config.flsl, config.views

    def group(count, size, scale, blur, **place):
        draw = recipe.photometric(v, blur_prob=blur, solarize_prob=v.solarize_prob)
        if c.photometric == "either":
            draw = dataclasses.replace(
                draw,
                solarize_prob=0.0,
                alternative_prob=0.5,
                alternative=(v.blur_prob[1], v.solarize_prob),
            )
        return recipe.GroupRecipe(
            count=count,
            size=size,
            scale=tuple(scale),
            patch=config.model.patch,
            flip=v.flip,
            photometric=(draw,) * count,
            **(place if c.nested else {}),
        )

    size, blur = v.global_size, v.blur_prob
    groups = {"global": group(1, size, v.global_scale, blur[0])}
    if v.global_count == 2:
        groups["other"] = group(1, size, v.global_scale, blur[0], reuse="global")
    groups["student"] = group(v.global_count, size, c.student_scale, blur[0], inside="global")
    if v.local_count:
        groups["local"] = group(
            v.local_count, v.local_size, v.local_scale, blur[2], inside="global"
        )
    return recipe.ViewRecipe(tuple(groups.items()))
