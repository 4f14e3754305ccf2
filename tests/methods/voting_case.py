"""A small case of SOP, SOVE or MaSSL for the tests of their objectives: config, embeddings as
`encode` gives them, memories.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax import ops, settings
from ssl_jax.methods import base
from tests.losses import reference

BATCH, VIEWS, PATCHES, WIDTH = 3, 4, 5, 6
TASKS = {
    "cls": dict(anchors=5, members=3, tasks=2, memory=14),
    "patch": dict(anchors=4, members=2, tasks=1, memory=10),
}
PROGRESS = base.Progress(
    jnp.int32(5), jnp.int32(1), jnp.float32(1.25), 4, 40
)  # step 5 of a warm-up over 8
STEPS_OF_WARMUP = 2.0, 5 / 7  # epochs of 4 steps, and how far step 5 is


def config_of(method, **changes):
    """A 2-block ViT of width 16 on 16 px views; `section` in the name of a change stands for the
    method's own section.
    """
    c = settings.base_config(method.name)
    c.views.update(
        dict(
            global_size=16,
            local_size=8,
            local_count=2,
            mask="block" if "patch" in c[method.name] else "none",
        )
    )
    c.model.update(
        dict(size="custom", width=16, depth=2, heads=2, patch=4, image_size=16, init_std=0.25)
    )
    c[method.name].update(
        dict(head_hidden=32, head_out=WIDTH, teacher_temperature_epochs=STEPS_OF_WARMUP[0])
    )
    for name, values in TASKS.items():
        if name in c[method.name]:
            c[method.name][name].update(
                {key: value for key, value in values.items() if key in c[method.name][name]}
            )
    c.update_from_flattened_dict(
        {
            key.replace("section", method.name).replace("__", "."): value
            for key, value in changes.items()
        }
    )
    return c


def outputs_of(config, seed=0):
    """Unit embeddings, and masks of which one view has none."""
    rng = np.random.default_rng(seed)
    out = {
        "student": reference.unit(rng, BATCH, VIEWS, WIDTH),
        "teacher": reference.unit(rng, BATCH, 2, WIDTH),
    }
    if "patch" in config[config.method] and config[config.method].patch.weight > 0:
        out |= {
            name: reference.unit(rng, BATCH, 2, PATCHES, WIDTH)
            for name in ("student_patch", "teacher_patch")
        }
        out["mask"] = rng.random((BATCH, 2, PATCHES)) < 0.5
        out["mask"][0, 1] = False
        out["memory_patch"] = reference.unit(rng, BATCH, WIDTH)
    return jax.tree.map(jnp.asarray, out)


def evaluate(method, config, outputs, carry, key):
    """((loss, Output), gradient with respect to every float in outputs and carry)."""

    def floats(tree):
        return jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jnp.floating) else None, tree)

    def loss(both):
        def fill(x, whole):
            return whole if x is None else x

        merged = jax.tree.map(fill, both, (outputs, carry), is_leaf=lambda x: x is None)
        return method.objective(None, None, *merged, key, PROGRESS, config)

    return jax.jit(jax.value_and_grad(loss, has_aux=True))(floats((outputs, carry)))


def temperatures(section):
    """(tau_s, tau_t) at PROGRESS, float64."""
    start, end = section.teacher_temperature, section.final_teacher_temperature
    return section.student_temperature, start + (end - start) * STEPS_OF_WARMUP[1]


def sops(task, held, key, section):
    """(members [T, K, M, d], shares [T, K, M]) built in NumPy from the paper's description; only
    the anchors' draw is ours.
    """
    rows = np.asarray(held["memory"]["rows"]["embedding"], np.float64)
    if "anchors" in held:
        drawn = np.asarray(held["anchors"], np.float64)
    else:
        drawn = np.asarray(ops.sample_anchors(key, len(rows), task.anchors, num_tasks=task.tasks))
    members, shares = [], []
    for anchors in drawn:
        by_index = anchors.ndim == 1
        vectors = rows[anchors] if by_index else anchors
        similarity = vectors @ rows.T
        for i, anchor in enumerate(anchors if by_index else ()):
            similarity[i, anchors if section.pool == "exclude_anchors" else anchor] = -np.inf
        near = np.argsort(-similarity, axis=1)[:, : task.members - 1]
        members.append(np.concatenate([rows[near], vectors[:, None]], axis=1))
        near_similarity = np.take_along_axis(similarity, near, axis=1)
        shares.append(
            reference.shares(
                np.pad(near_similarity, ((0, 0), (0, 1))), section.contributions, section.smoothing
            )
        )
    return np.stack(members), np.stack(shares)
