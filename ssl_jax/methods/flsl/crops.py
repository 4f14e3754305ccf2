"""FLSL's views: a large crop for the teacher and, inside it, smaller ones for the student."""

import dataclasses

from ml_collections import ConfigDict

from ssl_jax.views import configured, recipe


def nested(config: ConfigDict) -> recipe.ViewRecipe:
    """The views by the sections flsl, views and model of a config.

    Groups "global" and, for the symmetric loss, "other" are the teacher's views: one crop with two
    photometric augmentations. "student" and "local" lie inside it, unless `flsl.nested` is false:
    then all crops are independent.
    """
    c, v = config.flsl, config.views

    def group(count, blur, size="global", **place):
        draw = configured.photometric(v, blur_prob=blur, solarize_prob=v.solarize_prob)
        if c.photometric == "either":
            draw = dataclasses.replace(
                draw,
                solarize_prob=0.0,
                alternative_prob=0.5,
                alternative=(v.blur_prob[1], v.solarize_prob),
            )
        place = {} if not c.nested else place
        draws = (draw,) * count
        return configured.group_of(v, patch, size, count=count, photometric=draws, **place)

    blur, patch = v.blur_prob, config.model.patch
    groups = {"global": group(1, blur[0])}
    if v.global_count == 2:
        groups["other"] = group(1, blur[0], reuse="global")
    student = group(v.global_count, blur[0], inside="global")
    groups["student"] = dataclasses.replace(student, scale=tuple(c.student_scale))
    if v.local_count:
        groups["local"] = group(v.local_count, blur[2], "local", inside="global")
    return recipe.ViewRecipe(tuple(groups.items()))
