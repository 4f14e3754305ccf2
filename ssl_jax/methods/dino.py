"""DINO: self-distillation with no labels (Caron et al. 2021), the baseline every paper here
compares with.

The student matches, across views, the centred and sharpened prototype scores of an EMA teacher.
"""

import jax
import jax.numpy as jnp
import ml_collections

from ssl_jax import losses, ops
from ssl_jax.config import InputError, check_choice
from ssl_jax.methods import base, multicrop
from ssl_jax.models import heads, vit, zoo
from ssl_jax.views import recipe


def defaults() -> ml_collections.ConfigDict:
    """The `dino` section of the config: the paper's values for ViT-S/16 on ImageNet."""
    c = ml_collections.ConfigDict()
    c.head_hidden = 2048  # width of the head's two hidden layers
    c.head_bottleneck = 256  # width before the prototypes, L2-normalised
    c.prototypes = 65536  # K, rows of the weight-normalised last layer
    c.norm_last_layer = (
        True  # gain fixed at 1 (always on for ViT-S; the paper turns it off for some larger runs)
    )
    c.freeze_last_layer_epochs = (
        1  # the last layer, and its AdamW moments and step count, do not move before this epoch
    )
    c.global_token = "cls"  # "cls" or "mean" (average of the patch tokens)
    c.student_temperature = 0.1  # tau_s
    c.teacher_temperature = 0.04  # tau_t at epoch 0
    c.final_teacher_temperature = 0.07  # tau_t after the warm-up
    c.teacher_temperature_epochs = (
        30.0  # linear warm-up in steps of one epoch; 0 = final value from the start
    )
    c.center_momentum = 0.9
    c.centering = True  # False: the ablation that collapses
    return c


def check(config) -> None:
    """Refuses impossible settings of the `dino` section by name. Raises InputError."""
    c = config.dino
    check_choice("dino.global_token", c.global_token, ("cls", "mean"))
    for key in ("student_temperature", "teacher_temperature", "final_teacher_temperature"):
        if not c[key] > 0:
            raise InputError(f"dino.{key} is {c[key]}; a temperature must be above 0")
    if c.prototypes < 2:
        raise InputError(
            f"dino.prototypes is {c.prototypes}; a distribution over prototypes needs at least 2"
        )
    if not 0 <= c.center_momentum < 1:
        raise InputError(f"dino.center_momentum is {c.center_momentum}; it must lie in [0, 1)")
    if c.global_token == "cls" and not config.model.cls:
        raise InputError(
            'dino.global_token is "cls" but model.cls is False; set model.cls=True or'
            ' dino.global_token="mean"'
        )
    if config.views.mask != "none":
        raise InputError(
            f'views.mask is "{config.views.mask}" but DINO masks nothing; set views.mask="none"'
        )


def views(config) -> recipe.ViewRecipe:
    return recipe.recipe_multicrop(config.views, config.model.patch)


def _networks(config, teacher: bool):
    c = config.dino
    backbone = vit.vit(
        zoo.vit_config(config.model, drop_path=0.0 if teacher else config.model.drop_path)
    )
    head = heads.dino_head(
        config.model.width,
        c.prototypes,
        hidden=c.head_hidden,
        bottleneck=c.head_bottleneck,
        init_std=config.model.init_std,
        dtype=config.model.dtype,
    )
    return backbone, head


def init(key, config):
    """Parameters of student encoder and head; carry: the center [K], zeros."""
    key_backbone, key_head = jax.random.split(key)
    backbone, head = _networks(config, teacher=False)
    params = {"backbone": backbone.init(key_backbone), "head": head.init(key_head)}
    return params, {"center": jnp.zeros(config.dino.prototypes, jnp.float32)}


def encode(params, teacher, batch, keys, config):
    """Prototype scores of every view: student [B, V, K] (globals first), teacher [B,
    V_global, K].
    """
    backbone, head = _networks(config, teacher=False)
    frozen_backbone, frozen_head = _networks(config, teacher=True)
    image_keys = jax.vmap(lambda k: jax.random.split(k, 2))(keys)

    def scores(network, weights, group, view_keys):
        tokens = multicrop.encode(
            network[0], weights["backbone"], group, masked=False, keys=view_keys
        )
        return network[1].apply(
            weights["head"], multicrop.global_token(tokens, config.dino.global_token)
        )

    groups = [(i, name) for i, name in enumerate(("global", "local")) if name in batch]
    student = [
        scores((backbone, head), params, batch[name], image_keys[:, i]) for i, name in groups
    ]
    return {
        "student": jnp.concatenate(student, axis=1),
        "teacher": scores((frozen_backbone, frozen_head), teacher, batch["global"], None),
    }


def objective(params, teacher, outputs, carry, key, progress, config):
    """Cross-entropy over all pairs of different views (eq. 2 and 3 of the DINO paper); the center
    follows the batch (eq. 4).
    """
    del params, teacher, key
    c = config.dino
    student, teacher_logits = (
        jnp.moveaxis(outputs[k], 1, 0) for k in ("student", "teacher")
    )  # [V, B, K]
    tau = teacher_temperature(progress, config)
    terms = losses.dino(
        student,
        teacher_logits,
        carry["center"],
        student_temperature=c.student_temperature,
        teacher_temperature=tau,
        center_momentum=c.center_momentum,
    )
    center = terms.pop("center")
    metrics = {f"cls_{name}": value for name, value in terms.items()} | {"teacher_temperature": tau}
    return terms["loss"], base.Output(
        {"center": center if c.centering else carry["center"]}, metrics
    )


def teacher_temperature(progress, config):
    """tau_t: linear warm-up, constant within an epoch (errata 7)."""
    c = config.dino
    return ops.linear_warmup(
        progress.epoch,
        start=c.teacher_temperature,
        end=c.final_teacher_temperature,
        warmup=c.teacher_temperature_epochs,
    )


def teacher_of(params):
    """The teacher copies everything."""
    return params


def rules(config):
    """The last layer waits for `freeze_last_layer_epochs`; its gain stays at 1 with
    `norm_last_layer`, else it learns and is decayed.
    """
    c = config.dino
    gain = (
        base.Rule(freeze_epochs=base.NEVER)
        if c.norm_last_layer
        else base.Rule(freeze_epochs=c.freeze_last_layer_epochs)
    )
    last = base.Rule(freeze_epochs=c.freeze_last_layer_epochs)
    return (("head/last/gain", gain), ("head/last/.*", last), *base.DEFAULT_RULES)


def features(params, images, config, *, layers=(), attention=False):
    """Encoder features without the head; `params` may be the teacher's or the student's tree."""
    backbone, _ = _networks(config, teacher=True)
    return multicrop.features(
        backbone,
        params["backbone"],
        images,
        kind=config.dino.global_token,
        patch=config.model.patch,
        layers=layers,
        attention=attention,
    )


def health(metrics, config):
    """Meters against log K: collapse to one prototype, or uniform targets that teach nothing."""
    return base.assignment_warnings(metrics, "cls", config.dino.prototypes)


METHOD = base.Method(
    name="dino",
    defaults=defaults,
    check=check,
    views=views,
    init=init,
    encode=encode,
    objective=objective,
    teacher_of=teacher_of,
    rules=rules,
    features=features,
    health=health,
)
