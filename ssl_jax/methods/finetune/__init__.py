"""Fine-tuning: trains a pretrained encoder further, with labels.

The papers here use it as a measure: the encoder and a linear classifier on the image token are
trained end to end (recipes of BEiT and DeiT; SOP and SOVE table 1 and 3, STELLAR table 12). The
weights come from `init_from`. RandAugment, erasing, mixup and CutMix are part of the views
(`views.recipe`); the moving average of the weights is evaluated.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from ssl_jax.methods import base, multicrop
from ssl_jax.methods.finetune.settings import check, defaults, view_recipe
from ssl_jax.models import heads
from ssl_jax.runtime.decay import layer_factor, layers

__all__ = ["check", "defaults", "make", "rules", "targets"]


class Outputs(NamedTuple):
    """scores [B, C]. label, partner: [B] int32, the two classes in a mixed image. share: [B], the
    share of `label`."""

    scores: jax.Array
    label: jax.Array
    partner: jax.Array
    share: jax.Array


def targets(outputs: Outputs, smoothing: float) -> jax.Array:
    """Target distributions [B, C]: the classes of an image by their shares, smoothed (Szegedy et
    al. 2016, section 7)."""
    classes, share = outputs.scores.shape[-1], outputs.share[:, None]
    first, second = (jax.nn.one_hot(x, classes) for x in (outputs.label, outputs.partner))
    return (1 - smoothing) * (share * first + (1 - share) * second) + smoothing / classes


def make(config: ConfigDict) -> base.Method:
    """Fine-tuning with the networks and settings of a resolved config."""
    c, m = config.finetune, config.model
    backbone = multicrop.encoders(m)
    width = 2 * m.width if c.global_token == "concat" else m.width
    hidden = (
        heads.linear_head(m.width, c.hidden, init_std=m.init_std, dtype=m.dtype)
        if c.hidden
        else None
    )
    classifier = heads.linear_head(
        c.hidden or width, c.classes, norm=c.norm, init_std=c.init_scale * m.init_std, dtype=m.dtype
    )

    def init(key):
        """Encoder and classifier; no carry."""
        key_backbone, key_hidden, key_classifier = jax.random.split(key, 3)
        params = {"backbone": backbone.student.init(key_backbone)}
        if hidden:
            params["hidden"] = hidden.init(key_hidden)
        return params | {"classifier": classifier.init(key_classifier)}, None

    def scores(params, image):
        """Class scores [B, C] from image tokens [B, d]."""
        if hidden:
            image = jax.nn.gelu(hidden.apply(params["hidden"], image), approximate=False)
        return classifier.apply(params["classifier"], image)

    def encode(params, teacher, constants, views_of, keys, progress):
        images = views_of["global"].images[:, 0]
        tokens = backbone.student.apply(params["backbone"], images, keys=keys)
        truth = (views_of[name] for name in ("label", "partner", "share"))
        return Outputs(scores(params, multicrop.global_token(tokens, c.global_token)), *truth)

    def objective(params, teacher, outputs, carry, key, progress):
        """Cross-entropy with the smoothed shares. The accuracy refers to the class with the larger
        share."""
        each = optax.softmax_cross_entropy(outputs.scores, targets(outputs, c.smoothing))
        major = jnp.where(outputs.share >= 0.5, outputs.label, outputs.partner)
        correct = outputs.scores.argmax(axis=-1) == major
        return each.mean(), base.Output(carry, {"accuracy": correct.mean(dtype=jnp.float32)})

    def show(params, images, features, *_):
        """Extra logits [B, C], the class scores."""
        return {"logits": scores(params, features.image)}

    t = config.teacher
    slowest = min(t.momentum, t.final_momentum)
    initial_share = slowest**config.run.total_steps if c.average else 0.0

    def health(metrics):
        """Warns of a loss above chance, and of a moving average that is too slow for the run."""
        warnings = []
        loss, chance = metrics.get("loss"), math.log(c.classes)
        if loss is not None and loss > chance + 0.1:
            warnings.append(
                f"worse than chance: the loss is {loss:.2f}, that of random guesses {chance:.2f};"
                " lower optim.lr or raise optim.warmup_epochs"
            )
        if initial_share > 0.1:
            warnings.append(
                f"slow average: the initial weights will make up {100 * initial_share:.0f} % of the"
                " final average; lower teacher.momentum or set finetune.average=False"
            )
        return warnings

    return base.Method(
        views=view_recipe(config),
        init=init,
        encode=encode,
        objective=objective,
        features=multicrop.features_of(backbone.teacher, m, c.global_token, show),
        teacher_of=_all if c.average else base.no_teacher,
        rules=rules(m.depth, m.stages, c.layer_decay),
        health=health,
        starts_evaluated=True,
    )


def _all(params):
    return params


def rules(depth: int, stages: Sequence[int], decay: float) -> base.Rules:
    """Layer-wise learning-rate decay (BEiT, Bao et al. 2022, appendix): the factor is 1 for the
    classifier and the final norm, decay^(depth - i) for block i (0 = the first), and
    decay^(depth + 1) before the blocks. Weight decay applies to matrices except tokens and position
    embeddings."""
    lowest = layer_factor(decay, depth, -1)
    return (
        ("backbone/(cls|position|registers|queries)", base.Rule(lr=lowest, decay=False)),
        *(
            (f"backbone/{pattern}", base.Rule(lr=layer_factor(decay, depth, i)))
            for pattern, i in layers(depth, stages)
        ),
        *base.DEFAULT_RULES,
    )
