"""FLSL: feature-level self-supervised learning (NeurIPS 2023).

Bi-level clustering of patch tokens, without a class token. Within a view, a token is pulled towards
its mode: one mean-shift step over the tokens of the view (self-attention without parameters).
Between views, the mode's centroid must match that of the teacher's mode, which the same token finds
in the teacher's view (cross-attention). Hence a student view must lie inside the teacher's.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ssl_jax import losses, ops
from ssl_jax.config import InputError, key
from ssl_jax.methods import base, gram, multicrop, section_keys
from ssl_jax.methods.flsl import crops, modes
from ssl_jax.models import heads
from ssl_jax.views import windows

WINDOWS = {"student": "window", "local": "local_window"}  # {student view: key of its window}


def defaults() -> dict:
    """The section `flsl` of the config: the paper's values for ViT-S/16 on ImageNet."""
    # The keys hold inverse temperatures times the token width D. |z|^2 is initially D after a
    # LayerNorm, so they multiply cosines and are independent of the width. The published code has
    # tau = .1 / sqrt(384) and .2 / sqrt(384) for every network: D = 768 doubles tau x D.
    return dict(
        v=key(0.03, "weight v of a token's distance to its mode; 0 = training collapses", least=0),
        v_start=key(
            -1.0, "v at step 0, which moves to v on half a cosine; -1 = v throughout", least=-1
        ),
        eta=key(1.0, "weight of the agreement of modes between views", least=0),
        gamma=key(5.0, "weight of the KL divergence of the mean prediction from uniform", least=0),
        sa_sharpness=key(
            0.1 * 384**0.5, "sharpness of the self-attention, tau_sa x token width D", least=0
        ),
        ca_sharpness=key(
            0.2 * 384**0.5,
            "sharpness of the cross-attention, tau_ca x token width D; below sa_sharpness training"
            " collapses (published code)",
            least=0,
        ),
        sa_sharpness_start=key(
            -1.0,
            "sharpness of the self-attention in epoch 0, which moves to sa_sharpness on half a"
            " cosine; -1 = constant",
            least=-1,
        ),
        ca_sharpness_start=key(
            -1.0,
            "sharpness of the cross-attention in epoch 0, which moves to ca_sharpness on half a"
            " cosine; -1 = constant",
            least=-1,
        ),
        normalize=key(False, "scale tokens to |z|^2 = D, so that attention uses cosines (eq. 4)"),
        window=key(
            2,
            "side in patches of the windows of a global student view, each of which gives one"
            " query",
            least=1,
            most=1000,
        ),
        local_window=key(
            2,
            "side in patches of the windows of a local view, each of which gives one query",
            least=1,
            most=1000,
        ),
        random_position=key(
            True, "take a random patch of each window as query; False = the upper left patch"
        ),
        nested=key(
            True,
            "crop student views from the teacher's views; False = from the image, which collapses",
        ),
        student_scale=key(
            (0.5, 1.0),
            "(least, largest) area of a global student view / area of the teacher's view, or of"
            " the image if nested=False",
            above=0,
            most=1,
            length=2,
            ordered=True,
        ),
        photometric=key(
            "either",
            'blur and solarisation: "both", blur, then solarisation (paper); "either", half of the'
            " views blur alone, half blur with views.blur_prob[1] and solarisation (published"
            " code)",
            choices=("either", "both"),
        ),
        head_hidden=key(2048, "width of the head's two hidden layers", least=1, most=65536),
        head_bottleneck=key(
            256, "width of the L2-normalised input of the centroids", least=1, most=65536
        ),
        prototypes=key(
            4096, "number of centroids, K: rows of the last layer, with gain 1", least=2, most=2**24
        ),
        freeze_last_layer_epochs=section_keys.freeze_key("the last layer and its moments"),
        **section_keys.temperature_keys(),
        targets=key(
            "softmax",
            'teacher targets: "softmax"; "centered", softmax after subtracting a moving average'
            ' (DINO); "batch_softmax", Sinkhorn as in the paper',
            choices=("softmax", "centered", "batch_softmax"),
        ),
        center_momentum=key(
            0.9,
            'momentum of the moving average of the teacher\'s logits; used by targets="centered"'
            " alone",
            least=0,
            below=1,
        ),
    )


def check(config: ConfigDict) -> None:
    """Raises InputError for settings that contradict each other."""
    c, v, m = config.flsl, config.views, config.model
    section_keys.check_no_masks(config, "FLSL")
    if m.cls or m.queries:
        raise InputError("FLSL has patch tokens only; set model.cls=False and model.queries=0")
    if v.global_count not in (1, 2):
        raise InputError(
            f"views.global_count is {v.global_count}; FLSL has 1 teacher view, or 2 for the"
            " symmetric loss"
        )
    sizes = {"window": "global_size"} | ({"local_window": "local_size"} if v.local_count else {})
    for name, size in sizes.items():
        grid = v[size] // m.patch
        if c[name] > grid:
            raise InputError(
                f"flsl.{name} is {c[name]}; views.{size}={v[size]} has {grid} x {grid} patches: use"
                f" 1 to {grid}"
            )


class Outputs(NamedTuple):
    """Outputs at the Q sampled tokens of all student views of an image."""

    tokens: jax.Array  # [B, Q, d], the student's
    modes: jax.Array  # [B, Q, d], modes of these tokens in their own view
    student: jax.Array  # [B, Q, K], centroid scores of these modes
    teacher: jax.Array  # [B, Q, K], centroid scores of the modes in the teacher's view
    attention: dict  # {meter: [B]}, sharpness of attention in the global student views


def make(config: ConfigDict) -> base.Method:
    """FLSL with the networks and settings of a resolved config."""
    c, m = config.flsl, config.model
    views = crops.nested(config)
    backbone = multicrop.encoders(m)
    head = multicrop.prototype_head(m, c, c.prototypes)

    def init(key):
        """Encoder and head; carry: a zero center [K] if targets are centered."""
        key_backbone, key_head = jax.random.split(key)
        params = {"backbone": backbone.student.init(key_backbone), "head": head.init(key_head)}
        centered = c.targets == "centered"
        return params, {"center": jnp.zeros(c.prototypes, jnp.float32)} if centered else {}

    def patches(encoder, params, group, keys=None):
        tokens = multicrop.encode(encoder, params["backbone"], group, keys=keys).patches
        return heads.l2_normalize(tokens) * m.width**0.5 if c.normalize else tokens

    def sharpness(name, progress):
        """tau x D of an attention, constant within an epoch."""
        end, start = c[f"{name}_sharpness"], c[f"{name}_sharpness_start"]
        return towards(end, start, progress.epoch, progress.total_epochs)

    def encode(params, teacher, constants, views, keys, progress):
        keys = multicrop.split_keys(keys, 4)
        tau_sa, tau_ca = (sharpness(name, progress) / m.width for name in ("sa", "ca"))
        group = views["global"]
        if "other" in views:
            images = jnp.concatenate([group.images, views["other"].images], axis=1)
            group = group._replace(images=images)
        clean = patches(backbone.teacher, teacher, group)  # [B, T, N, d]

        parts = []
        for i, (name, window) in enumerate(WINDOWS.items()):
            if name in views:
                tokens = patches(backbone.student, params, views[name], keys[:, 2 * i])
                view_keys = multicrop.split_keys(keys[:, 2 * i + 1], tokens.shape[1])
                grid = views[name].images.shape[2] // m.patch
                index = windows.sample(
                    view_keys, grid, c[window], random_position=c.random_position
                )
                parts.append(modes.both_views(tokens, clean, index, tau_sa, tau_ca))
                if name == "student":
                    large = tokens
                    attention = modes.attention_meters(tokens, clean, index, tau_sa, tau_ca)
        stacked = modes.Modes(*(jnp.concatenate(x, axis=1) for x in zip(*parts, strict=True)))
        outputs = Outputs(
            stacked.tokens,
            stacked.modes,
            student=head.apply(params["head"], stacked.modes),
            teacher=head.apply(teacher["head"], stacked.teacher_modes),
            attention=attention,
        )
        return gram.seen(config, outputs, large)

    def objective(params, teacher, outputs, carry, key, progress):
        """L = v L_intra + eta L_inter + gamma L_vmr (eq. 13) over all tokens of the batch; then
        updates the center, if there is one.
        """
        v = towards(c.v, c.v_start, progress.step, progress.total_steps)
        tau = multicrop.teacher_temperature(c, progress.epoch, c.teacher_temperature_epochs)
        if c.targets == "batch_softmax":
            log_targets = losses.batch_softmax(outputs.teacher, temperature=tau)
        else:
            center = carry.get("center", jnp.zeros(c.prototypes))
            log_targets = ops.centered_softmax(outputs.teacher, center, temperature=tau, log=True)
        terms = losses.flsl(
            outputs.tokens,
            outputs.modes,
            outputs.student,
            log_targets,
            weights=(v, c.eta, c.gamma),
            student_temperature=c.student_temperature,
        )
        if carry:
            carry = {"center": ops.ema_center(center, outputs.teacher, momentum=c.center_momentum)}
        unit = jax.lax.stop_gradient(heads.l2_normalize(outputs.tokens))
        metrics = {f"mode_{name}": value for name, value in terms.items()}
        metrics |= {f"attention_{name}": x.mean() for name, x in outputs.attention.items()}
        metrics |= {
            "embedding_spread": base.spread(unit.reshape(-1, m.width)),
            "token_spread": base.spread(unit),
            "v": v,
            "teacher_temperature": tau,
        }
        return terms["loss"], base.Output(carry, metrics)

    def health(metrics):
        warnings = base.assignment_warnings(metrics, mode=c.prototypes)
        return warnings + base.spread_warnings(metrics)

    method = base.Method(
        views=views,
        init=init,
        encode=encode,
        objective=objective,
        features=multicrop.features_of(backbone.teacher, m, "mean"),
        teacher_of=lambda params: params,
        rules=multicrop.last_layer_rules(
            "head/last", freeze_epochs=c.freeze_last_layer_epochs, fixed_gain=True
        ),
        health=health,
        meanings=base.entropies(mode=c.prototypes),
    )
    return gram.added(config, method, "student")


def towards(end: float, start: float, position: jax.Array, total: float) -> jax.Array:
    """Half a cosine from `start` to `end` at position `total`; always `end` if start < 0."""
    return ops.warmup_cosine(position, base=start if start >= 0 else end, end=end, total=total)
