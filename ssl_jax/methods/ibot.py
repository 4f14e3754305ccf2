"""iBOT: image BERT pre-training with an online tokenizer (Zhou et al. 2021).

DINO on the class token, and beside it masked image modelling: the student sees global views with
masked patches and predicts, for each of them, the prototype scores that the EMA teacher gives the
same patch of the clean view. With patch.weight = 0 it is DINO."""

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ssl_jax import losses, ops
from ssl_jax.config import InputError, check_choice
from ssl_jax.methods import base, multicrop
from ssl_jax.models import heads, vit, zoo
from ssl_jax.views import recipe


def defaults() -> ml_collections.ConfigDict:
    """The `ibot` section of the config: the published values for ViT-S/16 on ImageNet."""
    c = ml_collections.ConfigDict()
    c.head_hidden = 2048  # width of the head's two hidden layers
    c.head_bottleneck = 256  # width before the prototypes, L2-normalised
    # What patches share with the class token: "all", the "mlp" before the prototypes (the published
    # code without --shared_head), "none"
    c.shared_head = "all"
    c.norm_last_layer = (
        False  # gain fixed at 1; the published ViT-S lets it learn, larger ones do not
    )
    c.freeze_last_layer_epochs = (
        1  # the last layers, and their AdamW moments and step count, do not move before this epoch
    )
    c.global_token = "cls"  # "cls" or "mean" (average of the patch tokens)
    c.student_temperature = 0.1  # tau_s, of both losses
    c.teacher_temperature_epochs = (
        30.0  # linear warm-up of both in steps of one epoch; 0 = final values from the start
    )
    c.centering = True  # False: the ablation that collapses
    c.cls = ml_collections.ConfigDict(
        dict(
            weight=1.0,  # lambda_1
            prototypes=8192,  # K
            teacher_temperature=0.04,  # tau_t at epoch 0
            final_teacher_temperature=0.07,  # tau_t after the warm-up
            center_momentum=0.9,
        )
    )
    c.patch = ml_collections.ConfigDict(
        dict(
            weight=1.0,  # lambda_2; 0 switches masks and patch loss off: DINO
            prototypes=0,  # 0 = as many as for the class token, which a shared head needs
            teacher_temperature=0.04,
            final_teacher_temperature=0.07,
            center_momentum=0.9,
        )
    )
    return c


def check(config) -> None:
    """Refuses impossible settings of the `ibot` section by name. Raises InputError."""
    c = config.ibot
    check_choice("ibot.shared_head", c.shared_head, ("all", "mlp", "none"))
    check_choice("ibot.global_token", c.global_token, ("cls", "mean"))
    if not c.student_temperature > 0:
        raise InputError(
            f"ibot.student_temperature is {c.student_temperature}; a temperature must be above 0"
        )
    for name in ("cls", "patch"):
        for key in ("teacher_temperature", "final_teacher_temperature"):
            if not c[name][key] > 0:
                raise InputError(
                    f"ibot.{name}.{key} is {c[name][key]}; a temperature must be above 0"
                )
        if not 0 <= c[name].center_momentum < 1:
            raise InputError(
                f"ibot.{name}.center_momentum is {c[name].center_momentum}; it must lie in [0, 1)"
            )
    multicrop.check_weights(config)
    if c.cls.prototypes < 2:
        raise InputError(
            f"ibot.cls.prototypes is {c.cls.prototypes}; a distribution over prototypes needs at"
            " least 2"
        )
    if c.patch.prototypes < 0 or c.patch.prototypes == 1:
        raise InputError(
            f"ibot.patch.prototypes is {c.patch.prototypes}; use at least 2, or 0 for as many as"
            " ibot.cls.prototypes"
        )
    if c.shared_head == "all" and c.patch.prototypes not in (0, c.cls.prototypes):
        raise InputError(
            f"ibot.patch.prototypes is {c.patch.prototypes} but ibot.cls.prototypes is"
            f' {c.cls.prototypes}, and ibot.shared_head is "all"; set ibot.patch.prototypes=0 or'
            ' ibot.shared_head="mlp"'
        )
    if c.global_token == "cls" and not config.model.cls:
        raise InputError(
            'ibot.global_token is "cls" but model.cls is False; set model.cls=True or'
            ' ibot.global_token="mean"'
        )


def views(config) -> recipe.ViewRecipe:
    return recipe.recipe_multicrop(config.views, config.model.patch)


def _patches(config) -> bool:
    """Whether patches take part."""
    return config.ibot.patch.weight > 0


def _networks(config, teacher: bool):
    """Encoder, head of the class token, head of the patches."""
    # Only the student sees masks, so only it owns a mask vector; the teacher has no drop-path.
    masked = _patches(config) and not teacher
    backbone = vit.vit(
        zoo.vit_config(
            config.model, mask_token=masked, drop_path=0.0 if teacher else config.model.drop_path
        )
    )
    return backbone, *(_head(config, prototypes) for prototypes in _prototypes(config))


def _prototypes(config) -> tuple[int, int]:
    """K of the class token and of the patches."""
    c = config.ibot
    return c.cls.prototypes, c.patch.prototypes or c.cls.prototypes


def _head(config, prototypes: int):
    c, m = config.ibot, config.model
    return heads.dino_head(
        m.width,
        prototypes,
        hidden=c.head_hidden,
        bottleneck=c.head_bottleneck,
        init_std=m.init_std,
        dtype=m.dtype,
    )


def _patch_weights(params, config):
    """The parameters of the patches' head, some or all of which are the class token's."""
    shared = config.ibot.shared_head
    if shared == "all":
        return params["head"]
    return (
        params["patch_head"]
        if shared == "none"
        else {"mlp": params["head"]["mlp"], **params["patch_head"]}
    )


def init(key, config):
    """Parameters of student encoder and head ("patch_head": what patches do not share); carry: the
    centers, zeros.
    """
    key_backbone, key_head = jax.random.split(key)
    backbone, head, patch_head = _networks(config, teacher=False)
    params = {"backbone": backbone.init(key_backbone), "head": head.init(key_head)}
    carry = {"center": jnp.zeros(_prototypes(config)[0], jnp.float32)}
    if _patches(config):
        carry["patch_center"] = jnp.zeros(_prototypes(config)[1], jnp.float32)
        if config.ibot.shared_head != "all":
            own = patch_head.init(jax.random.fold_in(key_head, 1))
            params["patch_head"] = (
                own if config.ibot.shared_head == "none" else {"last": own["last"]}
            )
    return params, carry


def encode(params, teacher, batch, keys, config):
    """Prototype scores of class tokens and of masked patches.

    Returns:
      student [B, V, K] (globals first), teacher [B, V_global, K], and with patches: student_patch,
      teacher_patch [B, V_global, m, K'] and their mask [B, V_global, m] (True = masked; m is the
      largest number of masked patches), patch_mean [B, K'] (the teacher's mean scores over ALL
      patches, which the center follows as published).
    """
    backbone, head, patch_head = _networks(config, teacher=False)
    frozen = _networks(config, teacher=True)[0]
    image_keys = jax.vmap(lambda k: jax.random.split(k, 2))(keys)
    token = config.ibot.global_token

    def scores(tokens, weights):
        return head.apply(weights["head"], multicrop.global_token(tokens, token))

    clean = multicrop.encode(frozen, teacher["backbone"], batch["global"], masked=False, keys=None)
    seen = multicrop.encode(
        backbone,
        params["backbone"],
        batch["global"],
        masked=_patches(config),
        keys=image_keys[:, 0],
    )
    student = [scores(seen, params)]
    if "local" in batch:
        local = multicrop.encode(
            backbone, params["backbone"], batch["local"], masked=False, keys=image_keys[:, 1]
        )
        student.append(scores(local, params))
    out = {"student": jnp.concatenate(student, axis=1), "teacher": scores(clean, teacher)}

    if _patches(config):
        # The loss reads masked patches only: project just those of the student; exact, because the
        # rest is multiplied by 0.
        index, out["mask"] = multicrop.masked_first(
            batch["global"].masks, recipe.max_masked(views(config), "global")
        )
        out["student_patch"] = patch_head.apply(
            _patch_weights(params, config), multicrop.take(seen.patches, index)
        )
        every = patch_head.apply(_patch_weights(teacher, config), clean.patches)
        out["teacher_patch"], out["patch_mean"] = (
            multicrop.take(every, index),
            every.mean(axis=(1, 2)),
        )
    return out


def objective(params, teacher, outputs, carry, key, progress, config):
    """lambda_1 L_CLS + lambda_2 L_MIM (eq. 2 and 3); the centers follow the batch."""
    del params, teacher, key
    c = config.ibot
    arrays = {
        k: jnp.moveaxis(v, 1, 0) for k, v in outputs.items() if k != "patch_mean"
    }  # [V, B, ...]
    tau = {name: teacher_temperature(progress, config, name) for name in ("cls", "patch")}
    cls = dict(
        student_temperature=c.student_temperature,
        teacher_temperature=tau["cls"],
        center_momentum=c.cls.center_momentum,
    )
    if not _patches(config):
        terms = losses.dino(arrays["student"], arrays["teacher"], carry["center"], **cls)
        new, metrics = (
            {"center": terms.pop("center")},
            {f"cls_{name}": value for name, value in terms.items()},
        )
        loss = c.cls.weight * terms["loss"]
    else:
        metrics = losses.ibot(
            arrays["student"],
            arrays["teacher"],
            arrays["student_patch"],
            arrays["teacher_patch"],
            arrays["mask"],
            carry["center"],
            carry["patch_center"],
            **cls,
            teacher_patch_temperature=tau["patch"],
            patch_center_momentum=c.patch.center_momentum,
            patch_mean=outputs["patch_mean"].mean(axis=0),
            cls_weight=c.cls.weight,
            patch_weight=c.patch.weight,
        )
        loss = metrics.pop("loss")
        new = {name: metrics.pop(name) for name in ("center", "patch_center")}
        metrics["patch_teacher_temperature"] = tau["patch"]
    metrics["teacher_temperature"] = tau["cls"]
    return loss, base.Output(new if c.centering else carry, metrics)


def teacher_temperature(progress, config, name: str):
    """tau_t of "cls" or "patch": linear warm-up, constant within an epoch (as in the published
    code).
    """
    c = config.ibot
    return ops.linear_warmup(
        progress.epoch,
        start=c[name].teacher_temperature,
        end=c[name].final_teacher_temperature,
        warmup=c.teacher_temperature_epochs,
    )


def teacher_of(params):
    """The teacher copies encoder and heads; the mask vector exists only in the student."""
    return {
        **params,
        "backbone": {k: v for k, v in params["backbone"].items() if k != "mask_token"},
    }


def rules(config):
    """The last layers wait for `freeze_last_layer_epochs`; their gain stays at 1 with
    `norm_last_layer`, else it learns and is decayed.
    """
    c = config.ibot
    last = base.Rule(freeze_epochs=c.freeze_last_layer_epochs)
    gain = base.Rule(freeze_epochs=base.NEVER) if c.norm_last_layer else last
    return (("(patch_)?head/last/gain", gain), ("(patch_)?head/last/.*", last), *base.DEFAULT_RULES)


def features(params, images, config, *, layers=(), attention=False):
    """Encoder features without the head; `params` may be the teacher's or the student's tree."""
    backbone = _networks(config, teacher=True)[0]
    return multicrop.features(
        backbone,
        teacher_of(params)["backbone"],
        images,
        kind=config.ibot.global_token,
        patch=config.model.patch,
        layers=layers,
        attention=attention,
    )


def health(metrics, config):
    """Meters against log K: collapse to one prototype, or uniform targets that teach nothing."""
    parts = ("cls", "patch") if _patches(config) else ("cls",)
    return [
        text
        for part, k in zip(parts, _prototypes(config))
        for text in base.assignment_warnings(metrics, part, k)
    ]


def pictures(params, images, config):
    """{"patch_prototypes": Picture}: the prototype that each patch belongs to most, one colour
    each, the same in all images.
    """
    if not _patches(config):
        return {}
    head = _networks(config, teacher=True)[2]
    scores = jax.jit(
        lambda params, images: head.apply(
            _patch_weights(params, config), features(params, images, config).patches
        )
    )
    nearest = np.asarray(scores(params, images).argmax(axis=-1))
    used, labels = np.unique(nearest, return_inverse=True)
    labels = labels.reshape(nearest.shape)
    rows = tuple(
        (
            base.Panel(image, title="image"),
            base.Panel(image, labels=groups, title=f"{len(np.unique(groups))} prototypes"),
        )
        for image, groups in zip(np.asarray(images), labels)
    )
    title = f"Patches by their prototype ({len(used)} of {_prototypes(config)[1]} in use)"
    return {"patch_prototypes": base.Picture(title, rows)}


METHOD = base.Method(
    name="ibot",
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
    pictures=pictures,
)
