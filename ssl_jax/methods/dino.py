"""DINO: self-distillation with no labels (Caron et al. 2021), the baseline of every paper here.

The student matches, across views, the centred and sharpened prototype scores of an EMA teacher.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ssl_jax import losses, ops
from ssl_jax.config import key
from ssl_jax.methods import base, multicrop, section_keys
from ssl_jax.views import configured


def defaults() -> dict:
    """The section `dino` of the config: the published values for ViT-S/16 on ImageNet."""
    return dict(
        **section_keys.head_keys(),
        prototypes=key(
            65536, "number of prototypes, K: rows of the normalised last layer", least=2, most=2**24
        ),
        norm_last_layer=key(True, "fix the gain of the last layer at 1; False = learned"),
        freeze_last_layer_epochs=section_keys.freeze_key("the last layer and its moments"),
        global_token=section_keys.token_key(),
        **section_keys.temperature_keys(),
        center_momentum=key(
            0.9, "momentum of the teacher logits' moving average", least=0, below=1
        ),
        centering=key(True, "center the teacher's logits; False = the ablation that collapses"),
    )


def check(config: ConfigDict) -> None:
    """Raises InputError for settings that contradict each other."""
    section_keys.check_token(config)
    section_keys.check_no_masks(config, "DINO")


class Outputs(NamedTuple):
    """Prototype scores: student [B, V, K] (global views first), teacher [B, V_global, K]."""

    student: jax.Array
    teacher: jax.Array


def make(config: ConfigDict) -> base.Method:
    """DINO with the networks and settings of a resolved config."""
    c, m = config.dino, config.model
    views = configured.recipe_multicrop(config.views, m.patch)
    backbone = multicrop.encoders(m)
    head = multicrop.prototype_head(m, c, c.prototypes)

    def init(key):
        """Encoder and head; carry: a zero center [K]."""
        key_backbone, key_head = jax.random.split(key)
        params = {"backbone": backbone.student.init(key_backbone), "head": head.init(key_head)}
        return params, {"center": jnp.zeros(c.prototypes, jnp.float32)}

    def scores(params, tokens):
        return head.apply(params["head"], multicrop.global_token(tokens, c.global_token))

    def encode(params, teacher, constants, views, keys, progress):
        keys = multicrop.split_keys(keys, 2)
        student, clean = multicrop.student_teacher(backbone, params, teacher, views, keys)
        each = [scores(params, tokens) for tokens in student]
        return Outputs(jnp.concatenate(each, axis=1), scores(teacher, clean))

    def objective(params, teacher, outputs, carry, key, progress):
        """Cross-entropy over pairs of different views (eq. 2 and 3); then updates the center
        (eq. 4)."""
        student, target = map(multicrop.views_first, outputs)
        tau = multicrop.teacher_temperature(c, progress.epoch, c.teacher_temperature_epochs)
        terms = losses.dino(
            student,
            target,
            carry["center"],
            student_temperature=c.student_temperature,
            teacher_temperature=tau,
        )
        if c.centering:
            center = ops.ema_center(carry["center"], target, momentum=c.center_momentum)
            carry = {"center": center}
        metrics = {f"cls_{name}": value for name, value in terms.items()}
        return terms["loss"], base.Output(carry, metrics | {"teacher_temperature": tau})

    return base.Method(
        views=views,
        init=init,
        encode=encode,
        objective=objective,
        features=multicrop.features_of(backbone.teacher, m, c.global_token),
        teacher_of=lambda params: params,
        rules=multicrop.last_layer_rules(
            "head/last", freeze_epochs=c.freeze_last_layer_epochs, fixed_gain=c.norm_last_layer
        ),
        health=lambda metrics: base.assignment_warnings(metrics, cls=c.prototypes),
        meanings=base.entropies(cls=c.prototypes),
    )
