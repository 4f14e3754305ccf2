"""MaSSL: memory augmented self-supervised learning (Silva, Pedrini and Ramirez Rivera 2024), SOP's
predecessor.

A view's prediction is a softmax over the rows of a memory of teacher embeddings. This is the
special case of SOP without support embeddings (k = 0, so that each member is its anchor) and with
one-hot contributions. At every step the memory is split at random into blocks, each a separate
task; if the blocks cover the memory, every row votes exactly once.
"""

import jax.numpy as jnp
from ml_collections import ConfigDict

from ssl_jax import losses, ops
from ssl_jax.config import InputError, key
from ssl_jax.methods import base, multicrop, section_keys
from ssl_jax.methods.sop import embeddings


def defaults() -> dict:
    """The section `massl` of the config: the published command for ViT-S/16 on ImageNet."""
    return dict(
        **embeddings.shared_keys(),
        cls=dict(
            anchors=key(
                16384,
                "number of memory rows per block, over which a view's distribution is taken",
                least=2,
                most=2**24,
            ),
            tasks=key(8, "number of blocks used per step, without common rows", least=1, most=1000),
            memory=key(131072, "rows of the memory of past embeddings", least=1, below=2**31),
        ),
    )


def check(config: ConfigDict) -> None:
    """Raises InputError for settings that contradict each other."""
    embeddings.check(config)
    section_keys.check_no_masks(config, "MaSSL")
    c = config.massl.cls
    if c.anchors * c.tasks > c.memory:
        raise InputError(
            f"massl.cls.memory is {c.memory}, too small for {c.tasks} blocks of {c.anchors} rows"
            f" that share none; it must be at least {c.anchors * c.tasks}"
        )


def make(config: ConfigDict) -> base.Method:
    """MaSSL with the networks and settings of a resolved config."""
    c, task = config.massl, config.massl.cls

    def objective(params, teacher, outputs, carry, key, progress):
        """Cross-entropy between the views' distributions over the rows of a block, averaged over
        blocks; then pushes the teacher's embeddings of this batch into the memory."""
        temperatures = embeddings.temperatures(c, progress)
        student, target = map(multicrop.views_first, (outputs.student, outputs.teacher))
        blocks = ops.sample_anchors(
            key, task.memory, task.anchors, num_tasks=task.tasks, strategy="partition"
        )
        members = carry["cls"]["memory"]["rows"]["embedding"][blocks][:, :, None]  # [T, K, 1, d]
        weights = jnp.ones(members.shape[:3], members.dtype)  # one-hot: each row votes for itself
        terms = losses.sop(student, target, members, weights, **temperatures)
        metrics = {f"cls_{name}": value for name, value in terms.items()}
        metrics["embedding_spread"] = base.spread(target)
        metrics["teacher_temperature"] = temperatures["teacher_temperature"]
        return terms["loss"], base.Output(embeddings.remember(carry, outputs), metrics)

    return embeddings.method(config, objective)
