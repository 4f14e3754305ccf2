"""SOP: Self-Organizing Visual Prototypes for non-parametric representation learning.

No learned prototypes. At every step anchors are drawn from a memory of teacher embeddings, each anchor is joined by its nearest memory
rows ("support embeddings"), and these members vote: an embedding's prediction is a distribution over the anchors (section 2.2 of the
paper). The student matches the teacher's prediction across views (class token) and inside masked views (patches).
"""

import jax
import jax.numpy as jnp
import ml_collections

from ssl_jax import losses, ops, schedule
from ssl_jax.config import InputError
from ssl_jax.methods import base, multicrop
from ssl_jax.models import heads, vit, zoo
from ssl_jax.views import recipe


def defaults() -> ml_collections.ConfigDict:
    """The `sop` section of the config: paper values for ViT-S/16 on ImageNet (specs section 7)."""
    c = ml_collections.ConfigDict()
    c.head_hidden = 2048  # width of the head's two hidden layers
    c.head_out = 256  # d, width of the L2-normalised embedding
    c.global_token = "cls"  # "cls" or "mean" (average of the patch tokens, an ablation)
    c.student_temperature = 0.1  # tau_s
    c.teacher_temperature = 0.04  # tau_t at step 0
    c.final_teacher_temperature = 0.07  # tau_t after the warm-up
    c.teacher_temperature_epochs = 30.0  # linear warm-up, per iteration; 0 = final value from the start
    c.contributions = "similarity"  # rule for Y: "similarity" (official code), "smoothed" (pseudo-code) or "onehot"
    c.smoothing = 0.1  # eps: the anchor's own weight is 1 - eps
    c.pool = "exclude_anchors"  # who may support an anchor: "exclude_anchors" (official code) or "self" (pseudo-code)
    c.anchors = "random"  # "random": drawn anew each step; "fixed": vectors kept from the start (the ablation that collapses)
    c.cls = ml_collections.ConfigDict(
        dict(
            weight=1.0,  # lambda_1
            anchors=4096,  # K
            members=9,  # per SOP, the anchor included
            tasks=4,  # T_C, independent draws of anchors per step
            memory=65536,  # N_C, rows of the class memory
        )
    )
    c.patch = ml_collections.ConfigDict(
        dict(
            weight=1.0,  # lambda_2; 0 switches masks and patch loss off
            anchors=512,
            members=1,
            tasks=1,  # T_P
            memory=8192,  # N_p, rows of the patch memory
        )
    )
    return c


def check(config) -> None:
    """Refuses impossible settings of the `sop` section by name. Raises InputError."""
    c = config.sop
    base.check_choice("sop.global_token", c.global_token, ("cls", "mean"))
    base.check_choice("sop.contributions", c.contributions, ("similarity", "smoothed", "onehot"))
    base.check_choice("sop.pool", c.pool, ("exclude_anchors", "self"))
    base.check_choice("sop.anchors", c.anchors, ("random", "fixed"))
    for key in ("student_temperature", "teacher_temperature", "final_teacher_temperature"):
        if not c[key] > 0:
            raise InputError(f"sop.{key} is {c[key]}; a temperature must be above 0")
    if not 0 < c.smoothing < 1:
        raise InputError(f"sop.smoothing is {c.smoothing}; it must lie between 0 and 1")
    for name in ("cls", "patch"):
        task = c[name]
        if min(task.anchors, task.members, task.tasks, task.memory) < 1:
            raise InputError(f"sop.{name}: anchors, members, tasks and memory must be at least 1, got {task.to_dict()}")
        if task.anchors < 2:
            raise InputError(f"sop.{name}.anchors is {task.anchors}; a distribution over anchors needs at least 2")
        pool = task.memory - task.anchors * (c.anchors == "random" and c.pool == "exclude_anchors")
        if task.anchors > task.memory or task.members - 1 > pool:
            raise InputError(
                f"sop.{name}.memory is {task.memory}, too small for {task.anchors} anchors with {task.members - 1} further "
                f"members each; it must be at least {task.anchors + task.members - 1}"
            )
    if c.global_token == "cls" and not config.model.cls:
        raise InputError('sop.global_token is "cls" but model.cls is False; set model.cls=True or sop.global_token="mean"')
    if c.patch.weight > 0 and config.views.mask == "none":
        raise InputError('sop.patch.weight is above 0 but views.mask is "none"; mask patches or set sop.patch.weight=0')
    if config.views.global_count != 2:
        raise InputError(f"views.global_count is {config.views.global_count}; SOP needs exactly 2 global views")


def views(config) -> recipe.ViewRecipe:
    return recipe.recipe_multicrop(config.views, config.model.patch)


def _networks(config, teacher: bool):
    # Only the student sees masks, so only it owns a mask vector; the teacher has no drop-path.
    masked = config.sop.patch.weight > 0 and not teacher
    backbone = vit.vit(zoo.vit_config(config.model, mask_token=masked, drop_path=0.0 if teacher else config.model.drop_path))
    head = heads.projection_head(
        config.model.width, hidden=config.sop.head_hidden, out=config.sop.head_out, init_std=config.model.init_std, dtype=config.model.dtype
    )
    return backbone, head


def init(key, config):
    """Parameters of student encoder and head; carry: class and patch memory (unit rows), fixed anchors if asked for."""
    keys = jax.random.split(key, 6)
    backbone, head = _networks(config, teacher=False)
    params = {"backbone": backbone.init(keys[0]), "head": head.init(keys[1])}
    c, carry = config.sop, {}
    for i, name in enumerate(_tasks(config)):
        spec = {"embedding": ((c.head_out,), jnp.float32)}
        carry[name] = {"memory": ops.memory_init(spec, c[name].memory, filled=keys[2 + i])}
        if c.anchors == "fixed":
            anchors = jax.random.normal(keys[4 + i], (c[name].tasks, c[name].anchors, c.head_out))
            carry[name]["anchors"] = anchors / jnp.linalg.norm(anchors, axis=-1, keepdims=True)
    return params, carry


def _tasks(config) -> tuple[str, ...]:
    return ("cls", "patch") if config.sop.patch.weight > 0 else ("cls",)


def encode(params, teacher, batch, keys, config):
    """Projects student and teacher tokens of every view.

    Args:
      keys: [B] PRNG keys, one per image, so that the result does not depend on how the batch is cut.

    Returns:
      student [B, V, d], teacher [B, 2, d], and with patches: student_patch, teacher_patch [B, 2, m, d] and their mask [B, 2, m]
      (True = masked; m is the largest number of masked patches), memory_patch [B, d].
    """
    backbone, head = _networks(config, teacher=False)
    frozen_backbone, frozen_head = _networks(config, teacher=True)
    token = config.sop.global_token
    image_keys = jax.vmap(lambda k: jax.random.split(k, 3))(keys)

    clean = multicrop.encode(frozen_backbone, teacher["backbone"], batch["global"], masked=False, keys=None)
    out = {"teacher": frozen_head.apply(teacher["head"], multicrop.global_token(clean, token))}

    seen = multicrop.encode(backbone, params["backbone"], batch["global"], masked="patch" in _tasks(config), keys=image_keys[:, 0])
    student = [head.apply(params["head"], multicrop.global_token(seen, token))]
    if "local" in batch:
        local = multicrop.encode(backbone, params["backbone"], batch["local"], masked=False, keys=image_keys[:, 1])
        student.append(head.apply(params["head"], multicrop.global_token(local, token)))
    out["student"] = jnp.concatenate(student, axis=1)

    if "patch" in _tasks(config):
        # The loss reads masked patches only: project just those (specs section 10); exact, because the rest is multiplied by 0.
        masks = batch["global"].masks
        index, out["mask"] = multicrop.masked_first(masks, recipe.max_masked(views(config), "global"))
        out["student_patch"] = head.apply(params["head"], multicrop.take(seen.patches, index))
        out["teacher_patch"] = frozen_head.apply(teacher["head"], multicrop.take(clean.patches, index))
        # One random patch of global view 2 per image enters the patch memory (specs section 5).
        pick = jax.vmap(lambda k: jax.random.randint(k, (1,), 0, masks.shape[-1]))(image_keys[:, 2])
        out["memory_patch"] = frozen_head.apply(teacher["head"], multicrop.take(clean.patches[:, 1], pick))[:, 0]
    return out


def _build(task, memory, fixed, key, c):
    """SOPs of all independent tasks: members [T, K, M, d] and contributions [T, K, M] (section 2.2)."""
    rows = memory["rows"]["embedding"]
    anchors = fixed if fixed is not None else ops.sample_anchors(key, rows.shape[0], task.anchors, num_tasks=task.tasks)

    def one(a):
        members, similarity = ops.build_sops(rows, a, num_members=task.members, pool=c.pool)
        return members, ops.sop_weights(similarity, rule=c.contributions, smoothing=c.smoothing)

    return jax.lax.map(one, anchors)


def objective(params, teacher, outputs, carry, key, progress, config):
    """L = lambda_1 L_CLS + lambda_2 L_patch (specs section 4), then the memories take this batch's teacher embeddings."""
    del params, teacher
    c = config.sop
    key_cls, key_patch = jax.random.split(key)
    temperatures = dict(student_temperature=c.student_temperature, teacher_temperature=teacher_temperature(progress, config))
    views_first = {k: jnp.moveaxis(v, 1, 0) for k, v in outputs.items() if k != "memory_patch"}  # [V, B, ...]

    members, weights = _build(c.cls, carry["cls"]["memory"], carry["cls"].get("anchors"), key_cls, c)
    terms = losses.sop(views_first["student"], views_first["teacher"], members, weights, **temperatures)
    loss = c.cls.weight * terms["loss"]
    metrics = {f"cls_{name}": value for name, value in terms.items()}
    new_rows = {"cls": views_first["teacher"][1]}  # global view 2

    if "patch" in carry:
        members, weights = _build(c.patch, carry["patch"]["memory"], carry["patch"].get("anchors"), key_patch, c)
        terms = losses.sop_patch(
            views_first["student_patch"], views_first["teacher_patch"], members, weights, views_first["mask"], **temperatures
        )
        loss = loss + c.patch.weight * terms["loss"]
        metrics |= {f"patch_{name}": value for name, value in terms.items()}
        new_rows["patch"] = outputs["memory_patch"]

    # Both losses have read the memories as they were BEFORE this step; only now the new rows go in (specs section 5).
    carry = {
        name: {**carry[name], "memory": ops.memory_push(carry[name]["memory"], {"embedding": jax.lax.stop_gradient(rows)})}
        for name, rows in new_rows.items()
    }
    metrics["embedding_spread"] = base.spread(views_first["teacher"])
    metrics["teacher_temperature"] = temperatures["teacher_temperature"]
    return loss, base.Output(carry, metrics)


def teacher_temperature(progress, config):
    """tau_t: linear warm-up per iteration (specs/errata 7)."""
    c = config.sop
    return schedule.linear_warmup(
        progress.step,
        start=c.teacher_temperature,
        end=c.final_teacher_temperature,
        warmup=c.teacher_temperature_epochs * progress.steps_per_epoch,
    )


def teacher_of(params):
    """The teacher copies encoder and head; the mask vector exists only in the student."""
    return {**params, "backbone": {k: v for k, v in params["backbone"].items() if k != "mask_token"}}


def rules(config):
    del config
    return base.DEFAULT_RULES


def features(params, images, config, *, layers=(), attention=False):
    """Encoder features without the head; `params` may be the teacher's or the student's tree."""
    backbone, _ = _networks(config, teacher=True)
    return multicrop.features(
        backbone, teacher_of(params)["backbone"], images, kind=config.sop.global_token, patch=config.model.patch,
        layers=layers, attention=attention,
    )  # fmt: skip


def health(metrics, config):
    """Meters against log K: collapse (marginal entropy near 0), no signal (every target uniform)."""
    warnings = base.assignment_warnings(metrics, "cls", config.sop.cls.anchors)
    if config.sop.patch.weight > 0:
        warnings += base.assignment_warnings(metrics, "patch", config.sop.patch.anchors)
    return warnings + base.spread_warnings(metrics)


METHOD = base.Method(
    name="sop", defaults=defaults, check=check, views=views, init=init, encode=encode, objective=objective,
    teacher_of=teacher_of, rules=rules, features=features, health=health,
)  # fmt: skip
