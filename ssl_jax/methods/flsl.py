"""FLSL: feature-level self-supervised learning (NeurIPS 2023).

Bi-level clustering of patch tokens, without a class token. Within a view, a token is pulled to its
mode, one mean-shift step over the view's own tokens (self-attention without parameters). Between
views, the mode's centroid must be that of the teacher's mode, found by the same token in the
teacher's view (cross-attention). So a student view has to lie inside the teacher's, which shows
more of the image."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from ssl_jax import losses, ops
from ssl_jax.config import InputError, check_choice
from ssl_jax.methods import base, multicrop, similarity
from ssl_jax.models import heads, vit, zoo
from ssl_jax.views import recipe, windows


def defaults() -> ml_collections.ConfigDict:
    """The `flsl` section of the config: the paper's values for ViT-S/16 on ImageNet."""
    c = ml_collections.ConfigDict()
    c.v = 0.03  # weight of a token's distance to its mode; 0 is the ablation that collapses
    c.v_start = (
        -1.0
    )  # v at step 0, from where it goes to v on half a cosine; below 0 = v throughout
    c.eta = 1.0  # weight of the agreement of modes across views
    c.gamma = 5.0  # weight of the divergence of the mean prediction from uniform
    # Inverse temperatures x token width D. After a LayerNorm |z|^2 is D at first, so these multiply
    # cosines: they keep their meaning at any width, unlike tau itself. The published code has tau =
    # .1 / sqrt(384) and .2 / sqrt(384) for every network: D = 768 doubles them.
    c.sa_sharpness = 0.1 * 384**0.5  # tau_sa x D of the self-attention
    c.ca_sharpness = (
        0.2 * 384**0.5
    )  # tau_ca x D of the cross-attention; below sa_sharpness it collapses, says the published code
    # at epoch 0, from where it goes to sa_sharpness on half a cosine, per epoch; below 0 = constant
    c.sa_sharpness_start = -1.0
    c.ca_sharpness_start = -1.0  # the same for ca_sharpness
    # True: tokens are first scaled to |z|^2 = D, so that attention sees true cosines (eq. 4)
    c.normalize = False
    c.window = 2  # one query per window x window patches of a global student view; 1 = all patches
    c.local_window = 2  # the same in a local view
    c.random_position = True  # which patch of a window: any, or (False) the upper left one
    # student views are crops of the teacher's view; False: all are independent crops of the image,
    # which collapses
    c.nested = True
    c.student_scale = (
        0.5,
        1.0,
    )  # area of a global student view / area of the teacher's view (of the image, if not nested)
    # Photometric draws. "either": with probability 1/2 {blur}, else {blur p = views.blur_prob[1],
    # then solarize p = views.solarize_prob} (published code); "both": {blur, then solarize}
    # (paper). {blur}: p = views.blur_prob[0], of local views views.blur_prob[2].
    c.photometric = "either"
    c.head_hidden = 2048  # width of the head's two hidden layers
    c.head_bottleneck = 256  # width before the centroids, L2-normalised
    c.prototypes = 4096  # K, centroids: rows of the weight-normalised last layer, with gain 1
    c.freeze_last_layer_epochs = (
        1  # the last layer, and its AdamW moments and step count, do not move before this epoch
    )
    c.student_temperature = 0.1  # tau_s
    c.teacher_temperature = 0.04  # tau_t at epoch 0
    c.final_teacher_temperature = 0.07  # tau_t after the warm-up
    c.teacher_temperature_epochs = (
        30.0  # linear warm-up in steps of one epoch; 0 = final value from the start
    )
    # "softmax", "centered" (minus a moving average, as DINO) or "batch_softmax" (the paper's
    # "Sinkhorn")
    c.targets = "softmax"
    c.center_momentum = 0.9  # of that moving average
    return c


def check(config) -> None:
    """Refuses impossible settings of the `flsl` section by name. Raises InputError."""
    c, v, m = config.flsl, config.views, config.model

    def require(fits, key, wanted):
        if not fits:
            raise InputError(f"flsl.{key} is {c[key]}; it must be {wanted}")

    check_choice("flsl.photometric", c.photometric, ("either", "both"))
    check_choice("flsl.targets", c.targets, ("softmax", "centered", "batch_softmax"))
    for key in ("student_temperature", "teacher_temperature", "final_teacher_temperature"):
        require(c[key] > 0, key, "above 0")
    for key in ("v", "eta", "gamma", "sa_sharpness", "ca_sharpness", "teacher_temperature_epochs"):
        require(c[key] >= 0, key, "0 or more")
    require(c.prototypes >= 2, "prototypes", "at least 2")
    require(0 <= c.center_momentum < 1, "center_momentum", "in [0, 1)")
    scale = c.student_scale
    require(
        len(scale) == 2 and 0 < scale[0] <= scale[1] <= 1,
        "student_scale",
        "(lo, hi) with 0 < lo <= hi <= 1",
    )
    if v.global_count not in (1, 2):
        raise InputError(
            f"views.global_count is {v.global_count}; FLSL has 1 teacher view, or 2 for the"
            " symmetric loss"
        )
    for key, size, needed in (
        ("window", "global_size", True),
        ("local_window", "local_size", v.local_count > 0),
    ):
        grid = v[size] // m.patch
        if needed and not 1 <= c[key] <= grid:
            raise InputError(
                f"flsl.{key} is {c[key]}; views.{size}={v[size]} has {grid} x {grid} patches: use 1"
                f" to {grid}"
            )
    if m.cls or m.queries:
        raise InputError("FLSL has patch tokens only; set model.cls=False and model.queries=0")
    if v.mask != "none":
        raise InputError(f'views.mask is "{v.mask}" but FLSL masks nothing; set views.mask="none"')


def views(config) -> recipe.ViewRecipe:
    """Groups "global" and, if symmetric, "other": the teacher's views, one place in two treatments;
    "student" and "local" inside it.
    """
    c, v = config.flsl, config.views

    def group(count, size, scale, blur, inside="", reuse=""):
        draw = recipe.photometric(v, blur_prob=blur, solarize_prob=v.solarize_prob)
        if c.photometric == "either":
            draw = dataclasses.replace(
                draw,
                solarize_prob=0.0,
                alternative_prob=0.5,
                alternative=(v.blur_prob[1], v.solarize_prob),
            )
        place = dict(inside=inside, reuse=reuse) if c.nested else {}
        return recipe.GroupRecipe(
            count=count,
            size=size,
            scale=tuple(scale),
            patch=config.model.patch,
            flip=v.flip,
            photometric=(draw,) * count,
            **place,
        )

    groups = {"global": group(1, v.global_size, v.global_scale, v.blur_prob[0])}
    if v.global_count == 2:
        groups["other"] = group(1, v.global_size, v.global_scale, v.blur_prob[0], reuse="global")
    groups["student"] = group(
        v.global_count, v.global_size, c.student_scale, v.blur_prob[0], inside="global"
    )
    if v.local_count:
        groups["local"] = group(
            v.local_count, v.local_size, v.local_scale, v.blur_prob[2], inside="global"
        )
    return recipe.ViewRecipe(tuple(groups.items()))


def _networks(config, teacher: bool):
    c = config.flsl
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
    """Parameters of student encoder and head; carry: the center [K], zeros, if targets are
    centered.
    """
    key_backbone, key_head = jax.random.split(key)
    backbone, head = _networks(config, teacher=False)
    params = {"backbone": backbone.init(key_backbone), "head": head.init(key_head)}
    return params, (
        {"center": jnp.zeros(config.flsl.prototypes, jnp.float32)}
        if config.flsl.targets == "centered"
        else {}
    )


def _towards(end, start, position, total):
    """`end`, reached from `start` at position `total` on half a cosine; start < 0: `end`
    throughout.
    """
    return ops.warmup_cosine(position, base=start if start >= 0 else end, end=end, total=total)


def _shift(queries, keys, tau):
    """Modes [B, V, m, d] of queries over keys [B, V, n, d] with tau [B]; mean entropy (nats) and
    mean largest weight of the rows, [B].
    """
    modes = jax.vmap(lambda q, k, t: ops.mean_shift(q, k, inverse_temperature=t))(
        queries, keys, tau
    )
    scores = (
        jnp.einsum("bvqd,bvnd->bvqn", *jax.lax.stop_gradient((queries, keys)))
        * tau[:, None, None, None]
    )
    log_rows = jax.nn.log_softmax(scores, axis=-1)
    return (
        modes,
        ops.entropy(log_probs=log_rows).mean(axis=(1, 2)),
        jnp.exp(log_rows.max(axis=-1)).mean(axis=(1, 2)),
    )


def encode(params, teacher, batch, keys, config):
    """Tokens, modes and centroid scores at the sampled queries of all student views.

    Returns:
      query, mode [B, Q, d]: the student's; student, teacher [B, Q, K]: scores of the modes in its
      own and in the teacher's view; attention {name: [B]}: how sharp the two attentions of the
      global student views are.
    """
    c, width = config.flsl, config.model.width
    backbone, head = _networks(config, teacher=False)
    frozen_backbone, frozen_head = _networks(config, teacher=True)
    keys = jax.vmap(lambda key: jax.random.split(key, 4))(keys)
    # Constant within an epoch: a chunk of the batch knows the epoch of its records, and not the
    # step.
    tau_sa, tau_ca = (
        _towards(
            c[f"{name}_sharpness"], c[f"{name}_sharpness_start"], batch["epoch"], config.run.epochs
        )
        / width
        for name in ("sa", "ca")
    )

    def tokens(network, weights, group, keys):
        patches = multicrop.encode(
            network, weights["backbone"], group, masked=False, keys=keys
        ).patches
        return heads.l2_normalize(patches) * width**0.5 if c.normalize else patches

    shown = batch["global"]
    if "other" in batch:
        shown = shown._replace(
            images=jnp.concatenate([shown.images, batch["other"].images], axis=1)
        )
    clean = tokens(frozen_backbone, teacher, shown, None)  # [B, T, N, d]

    parts, attention = [], {}
    for i, (name, window) in enumerate((("student", c.window), ("local", c.local_window))):
        if name not in batch:
            continue
        seen = tokens(backbone, params, batch[name], keys[:, 2 * i])  # [B, V, n, d]
        count, grid = seen.shape[1], batch[name].images.shape[2] // config.model.patch
        view_keys = jax.vmap(lambda key, count=count: jax.random.split(key, count))(
            keys[:, 2 * i + 1]
        )
        query = multicrop.take(
            seen, windows.sample(view_keys, grid, window, random_position=c.random_position)
        )
        mode, *sa = _shift(query, seen, tau_sa)
        # Symmetric: each student view meets the OTHER treatment of the teacher's crop. The tokens
        # ask, not their modes (eq. 12).
        met = clean[:, (np.arange(count) + 1) % clean.shape[1]]
        found, *ca = _shift(jax.lax.stop_gradient(query), met, tau_ca)
        attention = attention or dict(
            zip(("sa_entropy", "sa_peak", "ca_entropy", "ca_peak"), (*sa, *ca))
        )
        parts.append([x.reshape(len(x), -1, width) for x in (query, mode, found)])
    query, mode, found = (jnp.concatenate(x, axis=1) for x in zip(*parts))
    student, target = head.apply(params["head"], mode), frozen_head.apply(teacher["head"], found)
    return {
        "query": query,
        "mode": mode,
        "student": student,
        "teacher": target,
        "attention": attention,
    }


def objective(params, teacher, outputs, carry, key, progress, config):
    """L = v L_intra + eta L_inter + gamma L_vmr (eq. 13) over all queries of the global batch."""
    del params, teacher, key
    c = config.flsl
    v, tau = (
        _towards(c.v, c.v_start, progress.step, progress.total_steps),
        teacher_temperature(progress, config),
    )
    terms = losses.flsl(
        outputs["query"],
        outputs["mode"],
        outputs["student"],
        outputs["teacher"],
        v=v,
        eta=c.eta,
        gamma=c.gamma,
        student_temperature=c.student_temperature,
        teacher_temperature=tau,
        targets="batch_softmax" if c.targets == "batch_softmax" else "softmax",
        center=carry.get("center"),
        center_momentum=c.center_momentum,
    )
    carry = {name: terms.pop(name) for name in carry}
    metrics = {f"mode_{name}": value for name, value in terms.items()}
    metrics |= {f"attention_{name}": value.mean() for name, value in outputs["attention"].items()}
    unit = jax.lax.stop_gradient(heads.l2_normalize(outputs["query"]))
    metrics |= {
        "embedding_spread": base.spread(unit.reshape(-1, unit.shape[-1])),
        "token_spread": base.spread(unit),
    }
    return terms["loss"], base.Output(carry, metrics | {"v": v, "teacher_temperature": tau})


def teacher_temperature(progress, config):
    """tau_t: linear warm-up, constant within an epoch (as in the published code)."""
    c = config.flsl
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
    """The last layer waits for `freeze_last_layer_epochs`; its gain stays at 1."""
    last = base.Rule(freeze_epochs=config.flsl.freeze_last_layer_epochs)
    return (
        ("head/last/gain", base.Rule(freeze_epochs=base.NEVER)),
        ("head/last/.*", last),
        *base.DEFAULT_RULES,
    )


def features(params, images, config, *, layers=(), attention=False):
    """Encoder features without the head; the image is the mean of its tokens. `params`: the
    teacher's or the student's tree.
    """
    backbone, _ = _networks(config, teacher=True)
    return multicrop.features(
        backbone,
        params["backbone"],
        images,
        kind="mean",
        patch=config.model.patch,
        layers=layers,
        attention=attention,
    )


def health(metrics, config):
    """Meters against log K: collapse to one centroid, uniform targets that teach nothing, or tokens
    that are all one vector.
    """
    return base.assignment_warnings(metrics, "mode", config.flsl.prototypes) + base.spread_warnings(
        metrics
    )


def pictures(params, images, config):
    """Aggregated similarity after a quarter, half, three quarters and all of the blocks (fig. 3);
    attention of single patches (fig. 4a).
    """
    depth = zoo.vit_config(config.model).depth
    blocks = tuple(sorted({max(1, round(depth * part / 4)) - 1 for part in (1, 2, 3, 4)}))
    found = features(params, images, config, layers=blocks, attention=True)
    return {
        "similarity": similarity.maps(images, found, depth),
        "attention": similarity.attention(images, found),
    }


METHOD = base.Method(
    name="flsl",
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
