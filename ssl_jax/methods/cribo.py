"""CrIBo: self-supervised learning via cross-image object-level bootstrapping (Lebailly, Stegmueller
et al. 2024).

The patch tokens of two views of an image are clustered together into objects. A student matches its
EMA teacher on images, on the two views of an object, and on an object and its nearest neighbour
among the objects of earlier images, if the way back leads to it again."""

import math

import jax
import jax.numpy as jnp
import ml_collections

from ssl_jax import losses, ops
from ssl_jax.config import InputError, check_choice
from ssl_jax.methods import base, multicrop, objects
from ssl_jax.models import heads, vit, zoo
from ssl_jax.views import boxes, recipe


def defaults() -> ml_collections.ConfigDict:
    """The `cribo` section of the config: the published values for ViT-S/16 on ImageNet."""
    c = ml_collections.ConfigDict()
    c.head_hidden = (
        2048  # width of the two hidden layers of the trunk, which images and objects share
    )
    c.head_bottleneck = 256  # width before the prototypes, L2-normalised
    c.prototypes = 65536  # P, of each of the two last layers
    c.norm_last_layer = (
        False  # gain fixed at 1 (published ViT-B); False: it learns and decays (published ViT-S)
    )
    c.freeze_last_layer_epochs = (
        1  # the last layers, and their AdamW moments and step count, do not move before this epoch
    )
    c.student_temperature = 0.1  # tau_s
    c.teacher_temperature = 0.04  # tau_t at epoch 0
    c.final_teacher_temperature = 0.07  # tau_t after the warm-up
    c.teacher_temperature_epochs = (
        30.0  # linear warm-up in steps of one epoch; 0 = final value from the start
    )
    c.center_momentum = 0.9  # of both centers
    c.global_weight = 1.0  # of the loss over images, L_g
    c.cross_view_weight = 1.0  # of the loss over the two views of an object, L_cv
    c.cross_image_weight = (
        1.0  # of the loss over an object and its neighbour, L_ci; 0: no memory. Both 0: no objects
    )
    c.clusters = 32  # K, candidate objects per image
    c.clustering = "sinkhorn"  # "sinkhorn", or "kmeans" (no balance, no places; the ablation)
    c.position_weight = 1.0  # lambda_pos, at epoch 0
    c.final_position_weight = (
        -1.0
    )  # lambda_pos in the last epoch, linear in epochs between; below 0 = constant
    c.cluster_temperature = 0.05  # 1 / lambda
    c.cluster_iters = 5  # rounds of assignment and update
    c.sinkhorn_iters = 5  # scalings per round
    c.normalize = (  # costs are brought to [0, 1] per "image", or over the "batch" (official code)
        "image"
    )
    # column marginals follow the clusters' sizes (published runs), or stay uniform (paper)
    c.update_marginals = True
    c.hard = True  # one cluster per token, or soft assignments
    c.memory = 25000  # S, images whose objects are remembered
    c.cycle = True  # neighbours count only if cycle-consistent; False: all (the ablation)
    # images among which the way back is searched (a device's batch in the official code); 0 = the
    # whole batch
    c.group = 128
    # L_ci divides each view by its "own" number of cycles, or both by that of the "first" (official
    # code)
    c.counts = "own"
    c.start_epoch = 1  # first epoch with L_ci
    # images whose logits are held at a time (changes memory, not the loss); 0 = by the number of
    # logits
    c.chunk = 0
    return c


def check(config) -> None:
    """Refuses impossible settings of the `cribo` section by name. Raises InputError."""
    c, v = config.cribo, config.views
    check_choice("cribo.clustering", c.clustering, ("sinkhorn", "kmeans"))
    check_choice("cribo.normalize", c.normalize, ("image", "batch"))
    check_choice("cribo.counts", c.counts, ("own", "first"))
    for key in (
        "student_temperature",
        "teacher_temperature",
        "final_teacher_temperature",
        "cluster_temperature",
    ):
        if not c[key] > 0:
            raise InputError(f"cribo.{key} is {c[key]}; a temperature must be above 0")
    for key in ("clusters", "memory", "cluster_iters", "sinkhorn_iters"):
        if c[key] < 1:
            raise InputError(f"cribo.{key} is {c[key]}; it must be at least 1")
    for key in (*_weights(c), "position_weight", "group", "start_epoch", "chunk"):
        if not c[key] >= 0:
            raise InputError(f"cribo.{key} is {c[key]}; it must be 0 or more")
    if not any(_weights(c).values()):
        raise InputError(
            f"{', '.join(f'cribo.{key}' for key in _weights(c))} are all 0; there is nothing to"
            " learn from"
        )
    if c.prototypes < 2:
        raise InputError(
            f"cribo.prototypes is {c.prototypes}; a distribution over prototypes needs at least 2"
        )
    if not 0 <= c.center_momentum < 1:
        raise InputError(f"cribo.center_momentum is {c.center_momentum}; it must lie in [0, 1)")
    if not config.model.cls:
        raise InputError(
            "model.cls is False but CrIBo's image is the class token; set model.cls=True"
        )
    for key, wanted in (("global_count", 2), ("local_count", 0), ("mask", "none")):
        if v[key] != wanted:
            raise InputError(
                f"views.{key} is {v[key]!r}; CrIBo has two global views, no local ones and no"
                f" masks: set it to {wanted!r}"
            )
    tokens = 2 * (v.global_size // config.model.patch) ** 2
    if c.clusters > tokens:
        raise InputError(
            f"cribo.clusters is {c.clusters}, but two views of {v.global_size} px have {tokens}"
            f" tokens; use at most {tokens}"
        )


def _weights(c) -> dict[str, float]:
    return {key: c[key] for key in ("global_weight", "cross_view_weight", "cross_image_weight")}


def _objects(config) -> bool:
    """Whether there are objects at all."""
    return config.cribo.cross_view_weight > 0 or config.cribo.cross_image_weight > 0


def views(config) -> recipe.ViewRecipe:
    return recipe.recipe_multicrop(config.views, config.model.patch)


def _networks(config, teacher: bool):
    """Encoder, trunk of the head, and last layer (two sets of parameters share its form)."""
    c, m = config.cribo, config.model
    backbone = vit.vit(zoo.vit_config(m, drop_path=0.0 if teacher else m.drop_path))
    trunk = heads.projection_head(
        m.width, hidden=c.head_hidden, out=c.head_bottleneck, init_std=m.init_std, dtype=m.dtype
    )
    return backbone, trunk, heads.prototypes(c.head_bottleneck, c.prototypes, dtype=m.dtype)


def init(key, config):
    """Parameters of encoder, trunk and last layers; carry: a center per level, zeros, and the
    memory of objects, empty.
    """
    c, levels = config.cribo, ("images", "objects") if _objects(config) else ("images",)
    backbone, trunk, last = _networks(config, teacher=False)
    keys = jax.random.split(key, 4)
    head = {"trunk": trunk.init(keys[1])} | {
        level: last.init(k) for level, k in zip(levels, keys[2:])
    }
    carry = {"center": {level: jnp.zeros(c.prototypes, jnp.float32) for level in levels}}
    if c.cross_image_weight > 0:
        carry["memory"] = objects.empty_memory(c.memory * c.clusters, config.model.width)
    return {"backbone": backbone.init(keys[0]), "head": head}, carry


def encode(params, teacher, batch, keys, config):
    """Tokens of both views.

    Returns:
      student, teacher [B, 2, e], class tokens after the trunk; and with objects: student_tokens,
      teacher_tokens [B, 2N, d] (view 1, then view 2), positions [B, 2N, 2] (y, x) in source pixels
      and seed_keys [B]. Clustering waits for the whole batch: its costs may be normalised over it,
      and the weight of places may follow the epoch.
    """
    (backbone, trunk, _), (frozen, _, _) = (_networks(config, teacher=t) for t in (False, True))
    group = batch["global"]
    image_keys = jax.vmap(lambda k: jax.random.split(k, 2))(keys)
    student = multicrop.encode(
        backbone, params["backbone"], group, masked=False, keys=image_keys[:, 0]
    )
    fixed = multicrop.encode(frozen, teacher["backbone"], group, masked=False, keys=None)
    out = {
        "student": trunk.apply(params["head"]["trunk"], student.cls),
        "teacher": trunk.apply(teacher["head"]["trunk"], fixed.cls),
    }
    if _objects(config):

        def joint(x):
            return x.reshape(x.shape[0], -1, x.shape[-1])

        side = config.views.global_size // config.model.patch
        out |= {
            "student_tokens": joint(student.patches),
            "teacher_tokens": joint(fixed.patches),
            "seed_keys": image_keys[:, 1],
        }
        out["positions"] = joint(boxes.patch_positions(group.boxes, group.flips, (side, side)))
    return out


def objective(params, teacher, outputs, carry, key, progress, config):
    """L = L_g + L_cv + L_ci (eq. 11); then the centers follow, and the memory takes this batch's
    objects.
    """
    del key
    c, (_, trunk, last) = config.cribo, _networks(config, teacher=True)

    def view_first(x):
        return jnp.moveaxis(x, 1, 0)

    tau, new = teacher_temperature(progress, config), {}
    given, metrics = {"image_center": carry["center"]["images"]}, {"teacher_temperature": tau}
    if _objects(config):
        lam = position_weight(progress, config)
        assigned = objects.assign(
            outputs["teacher_tokens"],
            outputs["positions"],
            outputs["seed_keys"],
            c,
            clusters=c.clusters,
            weight=lam,
        )
        found, valid = jax.lax.stop_gradient(
            ops.object_tokens(outputs["teacher_tokens"], assigned)
        )  # eq. 1
        of_student, _ = ops.object_tokens(
            outputs["student_tokens"], assigned
        )  # by the TEACHER's assignment

        def embed(weights, x):
            return view_first(trunk.apply(weights["head"]["trunk"], x))

        given |= dict(
            student_objects=embed(params, of_student), teacher_objects=embed(teacher, found)
        )
        given |= dict(valid=valid, object_center=carry["center"]["objects"])
        metrics |= {"position_weight": lam, "objects_per_image": valid.sum() / valid.shape[0]}
    if c.cross_image_weight > 0:
        neighbours, consistent, exists = objects.retrieve(
            found, valid, carry["memory"], group=c.group
        )  # eq. 2 and 4
        given |= dict(
            neighbours=trunk.apply(teacher["head"]["trunk"], neighbours),
            gate=(progress.epoch >= c.start_epoch).astype(jnp.float32),
            cycle=consistent if c.cycle else jnp.broadcast_to(valid & exists, consistent.shape),
        )
        metrics |= objects.bootstrapping(consistent, valid) | {
            "memory_fill": ops.memory_valid(carry["memory"]).mean()
        }
        new["memory"] = objects.remember(
            carry["memory"], found, valid
        )  # only now: no object finds itself

    def layers(head):
        return tuple(
            last.apply(head[level]) if level in head else None for level in ("images", "objects")
        )

    terms = losses.cribo(
        view_first(outputs["student"]),
        view_first(outputs["teacher"]),
        **given,
        student_temperature=c.student_temperature,
        teacher_temperature=tau,
        center_momentum=c.center_momentum,
        weights=tuple(_weights(c).values()),
        counts=c.counts,
        student_prototypes=layers(params["head"]),
        teacher_prototypes=layers(teacher["head"]),
        chunk=c.chunk or None,
    )
    new["center"] = {level: terms.pop(f"{level[:-1]}_center") for level in carry["center"]}
    metrics |= {name: value for name, value in terms.items() if name != "loss"}
    metrics["embedding_spread"] = base.spread(view_first(outputs["teacher"]))
    return terms["loss"], base.Output(new, metrics)


def teacher_temperature(progress, config):
    """tau_t: linear warm-up, constant within an epoch."""
    c = config.cribo
    return ops.linear_warmup(
        progress.epoch,
        start=c.teacher_temperature,
        end=c.final_teacher_temperature,
        warmup=c.teacher_temperature_epochs,
    )


def position_weight(progress, config):
    """lambda_pos: constant, or linear from the first to the last epoch, constant within an
    epoch.
    """
    c, epochs = config.cribo, math.ceil(progress.total_steps / progress.steps_per_epoch)
    if c.final_position_weight < 0:
        return jnp.float32(c.position_weight)
    return ops.linear_warmup(
        progress.epoch, start=c.position_weight, end=c.final_position_weight, warmup=epochs
    )


def teacher_of(params):
    """The teacher copies everything."""
    return params


def rules(config):
    """The last layers wait for `freeze_last_layer_epochs`; their gains stay at 1 with
    `norm_last_layer`, else they learn and decay.
    """
    c, last = config.cribo, "head/(images|objects)"
    waiting = base.Rule(freeze_epochs=c.freeze_last_layer_epochs)
    gain = base.Rule(freeze_epochs=base.NEVER) if c.norm_last_layer else waiting
    return ((f"{last}/gain", gain), (f"{last}/.*", waiting), *base.DEFAULT_RULES)


def features(params, images, config, *, layers=(), attention=False):
    """Encoder features without the head; `params` may be the teacher's or the student's tree."""
    backbone = _networks(config, teacher=True)[0]
    options = dict(kind="cls", patch=config.model.patch, layers=layers, attention=attention)
    return multicrop.features(backbone, params["backbone"], images, **options)


def health(metrics, config):
    """Meters against log P; views that share no object; a full memory that nothing comes
    back from.
    """
    warnings = [
        w
        for level in ("image", "object")
        for w in base.assignment_warnings(metrics, level, config.cribo.prototypes)
    ]
    if metrics.get("objects_per_image", 1.0) < 1:
        warnings.append(
            "hardly any object: views share no cluster; raise views.global_scale, or lower"
            " cribo.clusters"
        )
    if metrics.get("memory_fill", 0.0) == 1 and metrics["bootstrapping_ratio"] < 1e-3:
        warnings.append(
            "no bootstrapping: hardly a neighbour leads back to its object; later than the first"
            " epochs: lower cribo.clusters"
        )
    return warnings + base.spread_warnings(metrics)


def pictures(params, images, config):
    """Objects beside their nearest neighbours in the other images (fig. 4 and 5), of up to 12
    clusters per image as there.
    """
    patches = features(params, jnp.asarray(images), config).patches
    return objects.pictures(
        images, patches, config.cribo, seed=config.seed, clusters=min(12, config.cribo.clusters)
    )


METHOD = base.Method(
    name="cribo",
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
