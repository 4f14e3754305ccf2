"""SOP: Self-Organizing Visual Prototypes for non-parametric representation learning.

No learned prototypes. At every step anchors are drawn from a memory of teacher embeddings, each
anchor is joined by its nearest memory rows ("support embeddings"), and these members vote: an
embedding's prediction is a distribution over the anchors (section 2.2 of the paper). The student
matches the teacher's prediction across views (class token) and inside masked views (patches).

SOVE, its older version, is this module with another section of the config (`methods.sove`);
`voting` holds networks and memories."""

import jax
import jax.numpy as jnp
import ml_collections

from ssl_jax import losses, ops
from ssl_jax.config import InputError, check_choice
from ssl_jax.methods import base, voting


def defaults() -> ml_collections.ConfigDict:
    """The `sop` section of the config: the paper's values for ViT-S/16 on ImageNet."""
    c = ml_collections.ConfigDict()
    c.head_hidden = 2048  # width of the head's two hidden layers
    c.head_out = 256  # d, width of the L2-normalised embedding
    c.global_token = "cls"  # "cls" or "mean" (average of the patch tokens, an ablation)
    c.student_temperature = 0.1  # tau_s
    c.teacher_temperature = 0.04  # tau_t at step 0
    c.final_teacher_temperature = 0.07  # tau_t after the warm-up
    c.teacher_temperature_epochs = (
        30.0  # linear warm-up, per iteration; 0 = final value from the start
    )
    # rule for Y: "similarity" (official code), "smoothed" (pseudo-code) or "onehot"
    c.contributions = "similarity"
    c.smoothing = 0.1  # eps: the anchor's own weight is 1 - eps
    # who may support an anchor: "exclude_anchors" (official code) or "self" (pseudo-code)
    c.pool = "exclude_anchors"
    # "random": drawn anew each step; "fixed": vectors kept from the start (the ablation that
    # collapses)
    c.anchors = "random"
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
    """Refuses impossible settings of the method's section by name. Raises InputError."""
    voting.check(config)
    c, method = voting.section(config), config.method
    check_choice(f"{method}.contributions", c.contributions, ("similarity", "smoothed", "onehot"))
    check_choice(f"{method}.pool", c.pool, ("exclude_anchors", "self"))
    check_choice(f"{method}.anchors", c.anchors, ("random", "fixed"))
    if not 0 < c.smoothing < 1:
        raise InputError(f"{method}.smoothing is {c.smoothing}; it must lie between 0 and 1")
    for name in ("cls", "patch"):
        task = c[name]
        pool = task.memory - task.anchors * (c.anchors == "random" and c.pool == "exclude_anchors")
        if task.anchors > task.memory or task.members - 1 > pool:
            raise InputError(
                f"{method}.{name}.memory is {task.memory}, too small for {task.anchors} anchors"
                f" with {task.members - 1} further members each; it must be at least"
                f" {task.anchors + task.members - 1}"
            )


def init(key, config):
    """Parameters of student encoder and head; carry: class and patch memory (unit rows), fixed
    anchors if asked for.
    """
    params, carry = voting.init(key, config)
    c, keys = voting.section(config), jax.random.split(key, 6)  # the first four are voting's
    if c.anchors == "fixed":
        for i, (name, held) in enumerate(carry.items()):
            anchors = jax.random.normal(keys[4 + i], (c[name].tasks, c[name].anchors, c.head_out))
            held["anchors"] = anchors / jnp.linalg.norm(anchors, axis=-1, keepdims=True)
    return params, carry


def _build(task, held, key, c):
    """SOPs of all independent tasks: members [T, K, M, d] and contributions [T, K, M] (section
    2.2).
    """
    rows, anchors = held["memory"]["rows"]["embedding"], held.get("anchors")
    if anchors is None:
        anchors = ops.sample_anchors(key, rows.shape[0], task.anchors, num_tasks=task.tasks)

    def one(a):
        members, similarity = ops.build_sops(rows, a, num_members=task.members, pool=c.pool)
        return members, ops.sop_weights(similarity, rule=c.contributions, smoothing=c.smoothing)

    return jax.lax.map(one, anchors)


def objective(params, teacher, outputs, carry, key, progress, config):
    """L = lambda_1 L_CLS + lambda_2 L_MIM (eq. 2 and 4), then the memories take this batch's
    teacher embeddings.
    """
    del params, teacher
    c, temperatures = voting.section(config), voting.temperatures(progress, config)
    seen = voting.views_first(outputs)  # [V, B, ...]
    key_cls, key_patch = jax.random.split(key)

    sops = _build(c.cls, carry["cls"], key_cls, c)
    terms = losses.sop(seen["student"], seen["teacher"], *sops, **temperatures)
    loss = c.cls.weight * terms["loss"]
    metrics = {f"cls_{name}": value for name, value in terms.items()}

    if "patch" in carry:
        sops = _build(c.patch, carry["patch"], key_patch, c)
        terms = losses.sop_patch(
            seen["student_patch"], seen["teacher_patch"], *sops, seen["mask"], **temperatures
        )
        loss = loss + c.patch.weight * terms["loss"]
        metrics |= {f"patch_{name}": value for name, value in terms.items()}

    metrics["embedding_spread"] = base.spread(seen["teacher"])
    metrics["teacher_temperature"] = temperatures["teacher_temperature"]
    return loss, base.Output(voting.remember(carry, outputs), metrics)


METHOD = base.Method(
    name="sop",
    defaults=defaults,
    check=check,
    views=voting.views,
    init=init,
    encode=voting.encode,
    objective=objective,
    teacher_of=voting.teacher_of,
    features=voting.features,
    health=voting.health,
    pictures=voting.pictures,
)
