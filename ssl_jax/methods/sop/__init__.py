"""SOP: Self-Organizing Visual Prototypes for non-parametric representation learning.

There are no learned prototypes. At every step, anchors are drawn from a memory of teacher
embeddings, each is joined by its nearest memory rows ("support embeddings"), and these members
vote: an embedding's prediction is a distribution over the anchors (section 2.2 of the paper). The
student matches the teacher's prediction across views (class token) and inside masked views
(patches).

SOVE, the older version, uses this module with other defaults (`methods.sove`); networks and
memories are in `embeddings`.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ssl_jax import losses, ops
from ssl_jax.config import InputError, key
from ssl_jax.methods import base
from ssl_jax.methods.multicrop import views_first
from ssl_jax.methods.sop import embeddings


def defaults() -> dict:
    """The section `sop` of the config: the paper's values for ViT-S/16 on ImageNet."""
    return dict(
        **embeddings.shared_keys(),
        contributions=key(
            "similarity",
            'rule for the contributions Y of an SOP\'s members: "similarity" (official code),'
            ' "smoothed" (pseudo-code) or "onehot"',
            choices=("similarity", "smoothed", "onehot"),
        ),
        smoothing=key(
            0.1,
            'eps of contributions="smoothed", in which the anchor itself has the weight 1 - eps',
            above=0,
            below=1,
        ),
        pool=key(
            "exclude_anchors",
            'rows that may join an anchor\'s SOP: all but anchors ("exclude_anchors", official'
            ' code), or all but the anchor itself ("self", pseudo-code)',
            choices=("exclude_anchors", "self"),
        ),
        anchors=key(
            "random",
            '"random" = anchors drawn anew in each step; "fixed" = vectors kept from the start,'
            " the ablation that collapses",
            choices=("random", "fixed"),
        ),
        cls=dict(
            weight=key(1.0, "weight of the class token's loss, lambda_1; 0 = none", least=0),
            anchors=key(4096, "number of SOPs per task, K", least=2, most=2**24),
            members=key(9, "embeddings per SOP, including the anchor", least=1, most=1000),
            tasks=key(
                4, "number of tasks per step, independent draws of anchors, T_C", least=1, most=1000
            ),
            memory=key(65536, "number of rows of the class memory, N_C", least=1, below=2**31),
        ),
        patch=dict(
            weight=key(
                1.0, "weight of the patch loss, lambda_2; 0 = no patch loss and no masks", least=0
            ),
            anchors=key(512, "number of SOPs per task, K", least=2, most=2**24),
            members=key(1, "embeddings per SOP, including the anchor", least=1, most=1000),
            tasks=key(
                1, "number of tasks per step, independent draws of anchors, T_P", least=1, most=1000
            ),
            memory=key(8192, "number of rows of the patch memory, N_p", least=1, below=2**31),
        ),
    )


def check(config: ConfigDict) -> None:
    """Raises InputError for settings that contradict each other."""
    embeddings.check(config)
    c = config[config.method]
    for name in ("cls", "patch"):
        task = c[name]
        excluded = task.anchors if c.anchors == "random" and c.pool == "exclude_anchors" else 0
        if task.anchors > task.memory or task.members - 1 > task.memory - excluded:
            raise InputError(
                f"{config.method}.{name}.memory is {task.memory}, too small for {task.anchors}"
                f" anchors with {task.members - 1} further members each; it must be at least"
                f" {task.anchors + task.members - 1}"
            )


def make(config: ConfigDict) -> base.Method:
    """SOP, or SOVE, with the networks and settings of a resolved config."""
    c = config[config.method]

    def objective(params, teacher, outputs, carry, key, progress):
        """L = lambda_1 L_CLS + lambda_2 L_MIM (eq. 2 and 4); then pushes the teacher's embeddings
        of this batch into the memories."""
        temperatures = embeddings.temperatures(c, progress)
        key_cls, key_patch = jax.random.split(key)
        target = views_first(outputs.teacher)

        sops = build(c, c.cls, carry["cls"], key_cls)
        terms = losses.sop(views_first(outputs.student), target, *sops, **temperatures)
        loss = c.cls.weight * terms["loss"]
        metrics = {f"cls_{name}": value for name, value in terms.items()}

        if "patch" in carry:
            sops = build(c, c.patch, carry["patch"], key_patch)
            patches = (outputs.student_patches, outputs.teacher_patches, outputs.masks)
            student_patches, target_patches, masks = map(views_first, patches)
            terms = losses.sop_patch(student_patches, target_patches, *sops, masks, **temperatures)
            loss = loss + c.patch.weight * terms["loss"]
            metrics |= {f"patch_{name}": value for name, value in terms.items()}

        metrics["embedding_spread"] = base.spread(target)
        metrics["teacher_temperature"] = temperatures["teacher_temperature"]
        return loss, base.Output(embeddings.remember(carry, outputs), metrics)

    method = embeddings.method(config, objective)
    if c.anchors == "random":
        return method

    def init(key):
        """Parameters and carry as for random anchors, and fixed anchors in the carry, unit vectors
        [T, K, d]."""
        params, carry = method.init(key)
        keys = jax.random.split(key, 6)[4:]  # method.init uses the first four
        for name, key_anchors in zip(carry, keys, strict=False):
            shape = (c[name].tasks, c[name].anchors, c.head_out)
            anchors = jax.random.normal(key_anchors, shape, jnp.float32)
            carry[name]["anchors"] = anchors / jnp.linalg.norm(anchors, axis=-1, keepdims=True)
        return params, carry

    return method._replace(init=init)


def build(
    section: ConfigDict, task: ConfigDict, carry: Mapping[str, Any], key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """SOPs of all independent tasks: members [T, K, M, d] and contributions [T, K, M] (section
    2.2).

    task: `cls` or `patch` of the section; carry: the task's part of the carry.
    """
    rows = carry["memory"]["rows"]["embedding"]
    if "anchors" in carry:
        anchors = carry["anchors"]
    else:
        anchors = ops.sample_anchors(key, rows.shape[0], task.anchors, num_tasks=task.tasks)

    def build_task(anchors):
        members, similarity = ops.build_sops(
            rows, anchors, num_members=task.members, pool=section.pool
        )
        weights = ops.sop_weights(
            similarity, rule=section.contributions, smoothing=section.smoothing
        )
        return members, weights

    return jax.lax.map(build_task, anchors)
