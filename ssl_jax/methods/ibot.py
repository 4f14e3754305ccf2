"""iBOT: image BERT pre-training with an online tokenizer (Zhou et al. 2021).

DINO on the class token plus masked image modelling: the student sees global views with masked
patches and predicts, for each masked patch, the EMA teacher's prototype scores of the same patch in
the clean view. With patch.weight = 0 it is DINO.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ssl_jax import losses, ops
from ssl_jax.config import InputError, key
from ssl_jax.methods import base, gram, multicrop, section_keys
from ssl_jax.ops import numerics
from ssl_jax.views import configured, recipe


def defaults() -> dict:
    """The section `ibot` of the config: the published values for ViT-S/16 on ImageNet."""
    shared = (
        'layers of the head that patches and class token share: "all", the "mlp" before the'
        ' prototypes (published code without --shared_head), or "none"'
    )
    center_momentum = key(0.9, "momentum of the teacher logits' moving average", least=0, below=1)
    return dict(
        **section_keys.head_keys(),
        shared_head=key("all", shared, choices=("all", "mlp", "none")),
        norm_last_layer=key(False, "fix the gain of the last layer at 1; False = learned"),
        freeze_last_layer_epochs=section_keys.freeze_key("the last layers and their moments"),
        global_token=section_keys.token_key(),
        student_temperature=key(0.1, "student temperature tau_s of both losses", above=0),
        teacher_temperature_epochs=section_keys.warmup_key(),
        centering=key(True, "center the teacher's logits; False = the ablation that collapses"),
        cls=dict(
            weight=key(1.0, "weight of the class token's loss, lambda_1; 0 = none", least=0),
            prototypes=key(8192, "number of prototypes K of the class token", least=2, most=2**24),
            **section_keys.target_temperature_keys(),
            center_momentum=center_momentum,
        ),
        patch=dict(
            weight=key(
                1.0,
                "weight of the patch loss, lambda_2; 0 = no patch loss, no masks: DINO",
                least=0,
            ),
            prototypes=key(
                0, "prototypes of the patches, K; 0 = cls.prototypes", least=0, most=2**24
            ),
            **section_keys.target_temperature_keys(),
            center_momentum=center_momentum,
        ),
    )


def check(config: ConfigDict) -> None:
    """Raises InputError for settings that contradict each other."""
    c = config.ibot
    section_keys.check_weights(config)
    section_keys.check_token(config)
    if c.patch.prototypes == 1:
        raise InputError(
            "ibot.patch.prototypes is 1; use at least 2, or 0 for as many as ibot.cls.prototypes"
        )
    if c.shared_head == "all" and c.patch.prototypes not in (0, c.cls.prototypes):
        raise InputError(
            f"ibot.patch.prototypes is {c.patch.prototypes} but ibot.cls.prototypes is "
            f'{c.cls.prototypes}, and ibot.shared_head is "all"; set ibot.patch.prototypes=0 or '
            'ibot.shared_head="mlp"'
        )


class Outputs(NamedTuple):
    """Prototype scores of class tokens, and embeddings of masked patches.

    student [B, V, K] (global views first), teacher [B, V_global, K]. With a patch loss:
    student_patch and teacher_patch [B, V_global, m, e] and their mask [B, V_global, m] (True =
    masked; m is the largest number of masked patches), patch_mean [B, e], the teacher's mean over
    ALL patches.
    """

    student: jax.Array
    teacher: jax.Array
    student_patch: jax.Array | None = None
    teacher_patch: jax.Array | None = None
    mask: jax.Array | None = None
    patch_mean: jax.Array | None = None


def make(config: ConfigDict) -> base.Method:
    """iBOT with the networks and settings of a resolved config."""
    c, m = config.ibot, config.model
    with_patches = c.patch.weight > 0
    views = configured.recipe_multicrop(config.views, m.patch, masked=with_patches)
    backbone = multicrop.encoders(m, masked=with_patches)
    prototypes = {"cls": c.cls.prototypes, "patch": c.patch.prototypes or c.cls.prototypes}
    head, patch_head = (multicrop.prototype_head(m, c, number) for number in prototypes.values())
    patch = multicrop.split_head(m, c, prototypes["patch"])

    def init(key):
        """Encoder and head, with the unshared part of the patches' head as "patch_head"; carry:
        zero centers."""
        key_backbone, key_head = jax.random.split(key)
        params = {"backbone": backbone.student.init(key_backbone), "head": head.init(key_head)}
        carry = {"center": jnp.zeros(prototypes["cls"], jnp.float32)}
        if with_patches:
            carry["patch_center"] = jnp.zeros(prototypes["patch"], jnp.float32)
            if c.shared_head != "all":
                separate = patch_head.init(jax.random.fold_in(key_head, 1))
                params["patch_head"] = (
                    separate if c.shared_head == "none" else {"last": separate["last"]}
                )
        return params, carry

    def cls_scores(params, tokens):
        return head.apply(params["head"], multicrop.global_token(tokens, c.global_token))

    def weights_of(params):
        """The patches' head, which may share weights with the class token's."""
        if c.shared_head == "all":
            return params["head"]
        if c.shared_head == "mlp":
            return {"mlp": params["head"]["mlp"], **params["patch_head"]}
        return params["patch_head"]

    def encode(params, teacher, constants, views_of, keys, progress):
        keys = multicrop.split_keys(keys, 2)
        student, clean = multicrop.student_teacher(
            backbone, params, teacher, views_of, keys, masked=with_patches
        )
        scores = [cls_scores(params, tokens) for tokens in student]
        out = Outputs(jnp.concatenate(scores, axis=1), cls_scores(teacher, clean))
        if not with_patches:
            return gram.seen(config, out, student[0].patches, clean.patches)
        # The loss ignores unmasked patches, so the student projects masked ones only.
        index, mask = multicrop.masked_first(
            views_of["global"].masks, recipe.max_masked(views, "global")
        )
        masked = multicrop.take(student[0].patches, index)
        embeddings = patch.embed(weights_of(teacher), clean.patches)
        out = out._replace(
            student_patch=patch.embed(weights_of(params), masked),
            teacher_patch=multicrop.take(embeddings, index),
            mask=mask,
            patch_mean=embeddings.mean(axis=(1, 2), dtype=jnp.float32),
        )
        return gram.seen(config, out, student[0].patches, clean.patches)

    def objective(params, teacher, outputs, carry, key, progress):
        """lambda_1 L_CLS + lambda_2 L_MIM (eq. 2 and 3); then updates the centers."""
        first = jax.tree.map(multicrop.views_first, outputs._replace(patch_mean=None))
        tau, patch_tau = (
            multicrop.teacher_temperature(part, progress.epoch, c.teacher_temperature_epochs)
            for part in (c.cls, c.patch)
        )
        cls = losses.dino(
            *(first.student, first.teacher, carry["center"]),
            student_temperature=c.student_temperature,
            teacher_temperature=tau,
        )
        loss, metrics = c.cls.weight * cls["loss"], {"teacher_temperature": tau}
        metrics |= {f"cls_{name}": value for name, value in cls.items()}
        if not with_patches:
            return loss, base.Output(follow(carry, outputs, None), metrics)
        own, theirs = (patch.prototypes(weights_of(tree)) for tree in (params, teacher))
        patches = losses.ibot_patch_fused(
            *(first.student_patch, first.teacher_patch, first.mask, own, theirs),
            carry["patch_center"],
            student_temperature=c.student_temperature,
            teacher_temperature=patch_tau,
        )
        loss += c.patch.weight * patches["loss"]
        metrics |= {"patch_teacher_temperature": patch_tau}
        metrics |= {f"patch_{name}": value for name, value in patches.items()}
        return loss, base.Output(follow(carry, outputs, theirs), metrics)

    def follow(carry, outputs, patch_prototypes):
        """The centers after this batch."""
        if not c.centering:
            return carry
        center = ops.ema_center(carry["center"], outputs.teacher, momentum=c.cls.center_momentum)
        if not with_patches:
            return {"center": center}
        # The mean of the scores is the score of the mean.
        mean = numerics.product("e,ek->k", outputs.patch_mean.mean(axis=0), patch_prototypes)
        patch_center = ops.ema_center(carry["patch_center"], mean, momentum=c.patch.center_momentum)
        return {"center": center, "patch_center": patch_center}

    def show(params, images, features, *_):
        """Extra patch_prototype [B, h, w] int, the most likely prototype of each patch."""
        if not with_patches:
            return {}
        scores = patch_head.apply(weights_of(params), features.patches)
        return {"patch_prototype": scores.argmax(axis=-1)}

    method = base.Method(
        views=views,
        init=init,
        encode=encode,
        objective=objective,
        features=multicrop.features_of(backbone.teacher, m, c.global_token, show),
        teacher_of=multicrop.without_mask_token,
        rules=multicrop.last_layer_rules(
            "(patch_)?head/last",
            freeze_epochs=c.freeze_last_layer_epochs,
            fixed_gain=c.norm_last_layer,
        ),
        health=lambda metrics: base.assignment_warnings(metrics, **prototypes),
        meanings=base.entropies(**prototypes),
    )
    return gram.added(config, method)
