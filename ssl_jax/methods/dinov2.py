"""DINOv2: self-distillation of images and patches with balanced targets (Oquab et al. 2023).

DINO's objective on the class token and iBOT's on masked patches, each with its own head.
Sinkhorn-Knopp balances the teacher's targets over the batch; KoLeo spreads the class tokens of a
batch. LayerScale and registers are keys of the section `model`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ssl_jax import losses, ops
from ssl_jax.config import InputError, key
from ssl_jax.methods import base, gram, multicrop, section_keys
from ssl_jax.ops import numerics
from ssl_jax.runtime.decay import layer_factor, layers
from ssl_jax.views import configured, recipe


def defaults() -> dict:
    """The section `dinov2` of the config: the published defaults, with the Sinkhorn-Knopp targets
    and the untied heads of the released models."""

    def head(prototypes):
        return dict(
            prototypes=key(65536, prototypes, least=2, most=2**24),
            bottleneck=key(
                256, "width of the L2-normalised input of the prototypes", least=1, most=65536
            ),
        )

    return dict(
        head_hidden=key(2048, "width of each head's two hidden layers", least=1, most=65536),
        separate_head=key(True, "give patches their own head; False = the class token's head"),
        freeze_last_layer_epochs=section_keys.freeze_key("the last layers and their moments"),
        global_token=section_keys.token_key(),
        **section_keys.temperature_keys(),
        centering=key(
            "sinkhorn",
            'balancing of the teacher\'s targets: "sinkhorn", over a batch, or "ema", subtracting'
            " running means (DINO)",
            choices=("sinkhorn", "ema"),
        ),
        center_momentum=key(
            0.9,
            'momentum of the running means of the teacher\'s logits; used by centering="ema" alone',
            least=0,
            below=1,
        ),
        cls=dict(
            weight=key(1.0, "weight of the DINO loss on the class token; 0 = none", least=0),
            **head("number of prototypes K of the class token"),
        ),
        patch=dict(
            weight=key(1.0, "weight of the iBOT loss on masked patches", above=0),
            **head("number of prototypes K of the patches"),
        ),
        koleo=key(0.1, "weight of KoLeo, which spreads a batch's class tokens; 0 = none", least=0),
        layer_decay=key(
            0.9,
            "layer-wise decay: each block's learning rate is this factor times the next block's;"
            " 1 = none",
            above=0,
            most=1,
        ),
        patch_lr=key(
            0.2, "additional factor on the learning rate of the patch embedding", above=0, most=1
        ),
    )


def check(config: ConfigDict) -> None:
    """Raises InputError for settings that contradict each other."""
    c = config.dinov2
    section_keys.check_weights(config)
    section_keys.check_token(config)
    section_keys.check_layer_decay(config)
    for name in ("prototypes", "bottleneck"):
        if not c.separate_head and c.patch[name] != c.cls[name]:
            raise InputError(
                f"dinov2.patch.{name} is {c.patch[name]} but dinov2.cls.{name} is {c.cls[name]}, "
                f"and dinov2.separate_head is False; set dinov2.patch.{name}={c.cls[name]} or "
                "dinov2.separate_head=True"
            )


class Outputs(NamedTuple):
    """Scores of class tokens, embeddings of masked patches, and the student's class tokens.

    student [B, V, K] (global views first), teacher [B, V_global, K], student_patch and
    teacher_patch [B, V_global, m, e] and their mask [B, V_global, m] (True = masked; m is the
    largest number of masked patches), tokens [B, V_global, d].
    """

    student: jax.Array
    teacher: jax.Array
    student_patch: jax.Array
    teacher_patch: jax.Array
    mask: jax.Array
    tokens: jax.Array


def make(config: ConfigDict) -> base.Method:
    """DINOv2 with the networks and settings of a resolved config."""
    c, m = config.dinov2, config.model
    views = configured.recipe_multicrop(config.views, m.patch)
    backbone = multicrop.encoders(m, masked=True)
    head, patch_head = (
        multicrop.prototype_head(m, c, part.prototypes, part.bottleneck)
        for part in (c.cls, c.patch)
    )
    patch = multicrop.split_head(m, c, c.patch.prototypes, c.patch.bottleneck)
    patch_path = "patch_head" if c.separate_head else "head"

    def init(key):
        """Encoder and heads; carry: zero centers, or None with Sinkhorn-Knopp."""
        key_backbone, key_head = jax.random.split(key)
        params = {"backbone": backbone.student.init(key_backbone), "head": head.init(key_head)}
        if c.separate_head:
            params["patch_head"] = patch_head.init(jax.random.fold_in(key_head, 1))
        if c.centering == "sinkhorn":
            return params, None
        return params, {
            "center": jnp.zeros(c.cls.prototypes, jnp.float32),
            "patch_center": jnp.zeros(c.patch.prototypes, jnp.float32),
        }

    def image(tokens):
        return multicrop.global_token(tokens, c.global_token)

    def encode(params, teacher, constants, views_of, keys, progress):
        keys = multicrop.split_keys(keys, 2)
        student, clean = multicrop.student_teacher(
            backbone, params, teacher, views_of, keys, masked=True
        )
        images, seen = [image(tokens) for tokens in student], student[0]
        # Only masked patches enter the loss.
        index, mask = multicrop.masked_first(
            views_of["global"].masks, recipe.max_masked(views, "global")
        )
        outputs = Outputs(
            student=head.apply(params["head"], jnp.concatenate(images, axis=1)),
            teacher=head.apply(teacher["head"], image(clean)),
            student_patch=patch.embed(params[patch_path], multicrop.take(seen.patches, index)),
            teacher_patch=patch.embed(teacher[patch_path], multicrop.take(clean.patches, index)),
            mask=mask,
            tokens=images[0],
        )
        return gram.seen(config, outputs, seen.patches, clean.patches)

    def objective(params, teacher, outputs, carry, key, progress):
        """The losses of DINO, iBOT and KoLeo; then updates running means, if there are any."""
        o = Outputs(*map(multicrop.views_first, outputs))
        # The warm-up is per step, unlike in DINO and iBOT.
        steps = c.teacher_temperature_epochs * progress.steps_per_epoch
        tau = multicrop.teacher_temperature(c, progress.step, steps)
        own, theirs = (patch.prototypes(tree[patch_path]) for tree in (params, teacher))
        if c.centering == "sinkhorn":
            centers = balanced(outputs, theirs, tau)
        else:
            centers, carry = carry, follow(carry, outputs, theirs)
        taus = dict(student_temperature=c.student_temperature, teacher_temperature=tau)
        cls = losses.dino(o.student, o.teacher, centers["center"], **taus)
        patches = losses.ibot_patch_fused(
            *(o.student_patch, o.teacher_patch, o.mask, own, theirs, centers["patch_center"]),
            **taus,
        )
        koleo = losses.batch_koleo(o.tokens)
        loss = c.cls.weight * cls["loss"] + c.patch.weight * patches["loss"] + c.koleo * koleo
        metrics = {f"cls_{name}": value for name, value in cls.items()}
        metrics |= {f"patch_{name}": value for name, value in patches.items()}
        return loss, base.Output(carry, metrics | {"koleo": koleo, "teacher_temperature": tau})

    def balanced(outputs, prototypes, tau):
        """The centers that make the teacher's targets those of Sinkhorn-Knopp."""
        rows, mask = outputs.teacher_patch.reshape(-1, c.patch.bottleneck), outputs.mask.reshape(-1)
        of_cls = ops.sinkhorn_potentials(
            outputs.teacher.reshape(-1, c.cls.prototypes), temperature=tau
        )
        of_patch = ops.sinkhorn_potentials_fused(rows, prototypes, temperature=tau, where=mask)
        return {"center": -tau * of_cls, "patch_center": -tau * of_patch}

    def follow(carry, outputs, prototypes):
        """The centers after this batch; that of the patches averages masked ones only."""
        mask = outputs.mask[..., None]
        total = jnp.where(mask, outputs.teacher_patch, 0).astype(jnp.float32).sum(axis=(0, 1, 2))
        # The mean of the scores is the score of the mean.
        mean = numerics.product("e,ek->k", total / jnp.maximum(1, mask.sum()), prototypes)
        mean, momentum = jnp.where(mask.any(), mean, carry["patch_center"]), c.center_momentum
        return {
            "center": ops.ema_center(carry["center"], outputs.teacher, momentum=momentum),
            "patch_center": ops.ema_center(carry["patch_center"], mean, momentum=momentum),
        }

    def show(params, images, features, *_):
        """Extra patch_prototype [B, h, w] int, the most likely prototype of each patch."""
        scores = patch_head.apply(params[patch_path], features.patches)
        return {"patch_prototype": scores.argmax(axis=-1)}

    prototypes = dict(cls=c.cls.prototypes, patch=c.patch.prototypes)
    method = base.Method(
        views=views,
        init=init,
        encode=encode,
        objective=objective,
        features=multicrop.features_of(backbone.teacher, m, c.global_token, show),
        teacher_of=multicrop.without_mask_token,
        rules=_rules(config),
        health=lambda metrics: base.assignment_warnings(metrics, **prototypes),
        meanings=base.entropies(**prototypes),
    )
    return gram.added(config, method)


def _rules(config) -> base.Rules:
    """Layer-wise learning-rate decay, and last layers that are frozen at first.

    With optim.clip_by="global", each network is clipped by its own norm, as in the official code.
    """
    c, depth = config.dinov2, config.model.depth

    def rule(part, **options):
        group = part if config.optim.clip_by == "global" else None
        return base.Rule(clip_group=group, **options)

    lowest, wait = layer_factor(c.layer_decay, depth, -1), c.freeze_last_layer_epochs
    return (
        ("backbone/patch/.*", rule("backbone", lr=lowest * c.patch_lr)),
        *(
            (f"backbone/{pattern}", rule("backbone", lr=layer_factor(c.layer_decay, depth, i)))
            for pattern, i in layers(depth, config.model.stages)
        ),
        ("head/last/.*", rule("head", freeze_epochs=wait)),
        ("head/.*", rule("head")),
        ("patch_head/last/.*", rule("patch_head", freeze_epochs=wait)),
        ("patch_head/.*", rule("patch_head")),
    )
