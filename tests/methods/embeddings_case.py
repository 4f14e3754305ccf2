"""A small case of SOP, SOVE or MaSSL for the tests of their objectives: config, embeddings as
`encode` gives them, memories.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ssl_jax import ops, settings
from ssl_jax.methods import base
from ssl_jax.methods.sop import embeddings
from tests import tiny
from tests.losses import reference

BATCH, VIEWS, PATCHES, WIDTH = 3, 4, 5, 6
TASKS = {
    "cls": dict(anchors=5, members=3, tasks=2, memory=14),
    "patch": dict(anchors=4, members=2, tasks=1, memory=10),
}
# Step 5 of a warm-up over 8.
PROGRESS = base.Progress(jnp.int32(5), jnp.int32(1), jnp.float32(1.25), 4, 40)
STEPS_OF_WARMUP = 2.0, 5 / 7  # epochs of 4 steps, and how far step 5 is


def config_of(name, **changes):
    """A 2-block ViT of width 16 on 16 px views; `section` in the name of a change stands for the
    method's own section.
    """
    c = settings.base_config(name)
    section = c[name]
    c.update_from_flattened_dict(
        tiny.values(
            f"""
        views.global_size=16 views.local_size=8 views.local_count=2 model.size=custom
        views.mask={"block" if "patch" in section else "none"} model.width=16 model.depth=2
        model.heads=2 model.patch=4 model.image_size=16 model.init_std=0.25 .head_hidden=32
        .head_out={WIDTH} .teacher_temperature_epochs={STEPS_OF_WARMUP[0]}
    """,
            name,
        )
    )
    for task in TASKS.keys() & section.keys():
        section[task].update({key: x for key, x in TASKS[task].items() if key in section[task]})
    for key, value in changes.items():
        c.update_from_flattened_dict({key.replace("section", name).replace("__", "."): value})
    return c


def outputs_of(config, seed=0) -> embeddings.Outputs:
    """Unit embeddings, and masks of which one view has none."""
    rng = np.random.default_rng(seed)
    out = embeddings.Outputs(
        student=reference.unit(rng, BATCH, VIEWS, WIDTH),
        teacher=reference.unit(rng, BATCH, 2, WIDTH),
    )
    if "patch" in embeddings.tasks(config[config.method]):
        student, teacher = (reference.unit(rng, BATCH, 2, PATCHES, WIDTH) for _ in range(2))
        masks = rng.random((BATCH, 2, PATCHES)) < 0.5
        masks[0, 1] = False
        out = out._replace(
            student_patches=student,
            teacher_patches=teacher,
            masks=masks,
            memory_patch=reference.unit(rng, BATCH, WIDTH),
        )
    return jax.tree.map(jnp.asarray, out)


def views_first(outputs) -> dict:
    """The outputs that have an axis of views, as NumPy arrays [V, B, ...]."""
    return {
        name: np.moveaxis(np.asarray(value), 1, 0)
        for name, value in outputs._asdict().items()
        if value is not None and name != "memory_patch"
    }


def carry_of(method):
    return method.init(jax.random.key(1))[1]


def objective(method, outputs, carry, key):
    """(loss, Output)."""
    return method.objective(None, None, outputs, carry, key, PROGRESS)


def evaluate(method, outputs, carry, key):
    """((loss, Output), gradient with respect to every float in outputs and carry)."""

    def floats(tree):
        return jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jnp.floating) else None, tree)

    def loss(both):
        def fill(x, whole):
            return whole if x is None else x

        merged = jax.tree.map(fill, both, (outputs, carry), is_leaf=lambda x: x is None)
        return objective(method, *merged, key)

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
