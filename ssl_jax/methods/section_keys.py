"""Keys shared by the sections of several methods, and checks of their combinations."""

from typing import Any

from ml_collections import ConfigDict

from ssl_jax.config import InputError, Key, key
from ssl_jax.views import configured, recipe

GLOBAL_TOKENS = ("cls", "mean")


def head_keys() -> dict:
    """The keys of DINO's head."""
    return dict(
        head_hidden=key(2048, "width of the head's two hidden layers", least=1, most=65536),
        head_bottleneck=key(
            256, "width of the L2-normalised input of the prototypes", least=1, most=65536
        ),
    )


def token_key(**options: Any) -> Key:
    """The key `global_token` of a section, see `multicrop.global_token`."""
    meaning = 'what represents an image: class token ("cls") or mean of the patch tokens ("mean")'
    return key("cls", meaning, choices=GLOBAL_TOKENS, **options)


def check_token(config: ConfigDict) -> None:
    """Raises InputError if the image is the class token but the model has none."""
    name = config.method
    if config[name].global_token == "cls" and not config.model.cls:
        raise InputError(
            f'{name}.global_token is "cls" but model.cls is False; '
            f'set model.cls=True or {name}.global_token="mean"'
        )


def check_layer_decay(config: ConfigDict) -> None:
    """Raises InputError for two layer decays, which would multiply."""
    name, both = config.method, config.optim.backbone_layer_decay
    if both < 1 and config[name].layer_decay < 1:
        raise InputError(
            f"{name}.layer_decay is {config[name].layer_decay} and optim.backbone_layer_decay"
            f" {both}, which would multiply; set one of them to 1"
        )


def check_no_masks(config: ConfigDict, title: str) -> None:
    """Raises InputError for masks in a method that does not use them."""
    if config.views.mask != "none":
        raise InputError(
            f'views.mask is "{config.views.mask}" but {title} masks nothing; set views.mask="none"'
        )


def check_weights(config: ConfigDict) -> None:
    """Raises InputError if the weights of the `cls` and `patch` losses are both 0, or if a patch
    loss has no masked patch."""
    method, v = config.method, config.views
    weights = {name: config[method][name].weight for name in ("cls", "patch")}
    if not any(weights.values()):
        raise InputError(
            f"{method}.cls.weight and {method}.patch.weight are both 0; there is nothing to learn"
            " from"
        )
    if not weights["patch"]:
        return
    group = configured.recipe_multicrop(v, config.model.patch)
    if v.mask == "none" or v.mask_prob == 0 or recipe.max_masked(group, "global") == 0:
        raise InputError(
            f'views.mask is "{v.mask}", mask_ratio {v.mask_ratio}, mask_prob {v.mask_prob}, so no '
            f"patch of a {v.global_size} px view is masked; mask some or set "
            f"{method}.patch.weight=0"
        )


def target_temperature_keys(start: float = 0.04, end: float = 0.07) -> dict:
    """The keys of a teacher temperature that warms up."""
    return dict(
        teacher_temperature=key(start, "teacher temperature tau_t before its warm-up", above=0),
        final_teacher_temperature=key(end, "teacher temperature tau_t after its warm-up", above=0),
    )


def temperature_keys() -> dict:
    """The keys of both temperatures, with the warm-up that all the papers share."""
    return dict(
        student_temperature=key(0.1, "student temperature tau_s", above=0),
        **target_temperature_keys(),
        teacher_temperature_epochs=warmup_key(),
    )


def warmup_key() -> Key:
    """The key `teacher_temperature_epochs` of a section."""
    meaning = (
        "length of the linear warm-up of the teacher temperature tau_t; 0 = final value from the"
        " start"
    )
    return key(30.0, meaning, unit="epochs", least=0)


def freeze_key(what: str) -> Key:
    """The key `freeze_last_layer_epochs` of a section."""
    return key(
        1,
        f"epochs at the start in which {what} do not change; 0 = none",
        unit="epochs",
        least=0,
        most=10**6,
    )
