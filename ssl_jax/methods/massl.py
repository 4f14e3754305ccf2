"""MaSSL: memory augmented self-supervised learning (Silva, Pedrini and Ramirez Rivera 2024), SOP's
predecessor.

A view's prediction is a plain softmax over the rows of a memory of teacher embeddings. It is SOP's
special case without support embeddings: k = 0, so that a member is its anchor, and one-hot
contributions. The memory is cut at random into blocks, anew at every step; each block is a task of
its own, and with blocks * rows of a block = memory every row votes exactly once.
"""

import jax.numpy as jnp
import ml_collections

from ssl_jax import losses, ops
from ssl_jax.config import InputError
from ssl_jax.methods import base, voting


def defaults() -> ml_collections.ConfigDict:
    """The `massl` section of the config: the published command for ViT-S/16 on ImageNet."""
    c = ml_collections.ConfigDict()
    c.head_hidden = 2048  # width of the head's two hidden layers
    c.head_out = 256  # d, width of the L2-normalised embedding
    c.global_token = "cls"  # "cls" or "mean" (average of the patch tokens)
    c.student_temperature = 0.1  # tau_s
    c.teacher_temperature = 0.04  # tau_t at step 0
    c.final_teacher_temperature = 0.07  # tau_t after the warm-up
    c.teacher_temperature_epochs = (
        30.0  # linear warm-up, per iteration; 0 = final value from the start
    )
    c.cls = ml_collections.ConfigDict(
        dict(
            anchors=16384,  # rows of a block
            tasks=8,  # blocks used in a step
            memory=131072,  # rows of the memory
        )
    )
    return c


def check(config) -> None:
    """Refuses impossible settings of the `massl` section by name. Raises InputError."""
    voting.check(config)
    c = config.massl.cls
    if c.anchors * c.tasks > c.memory:
        raise InputError(
            f"massl.cls.memory is {c.memory}, too small for {c.tasks} blocks of {c.anchors} rows"
            f" that share none; it must be at least {c.anchors * c.tasks}"
        )
    if config.views.mask != "none":
        raise InputError(
            f'views.mask is "{config.views.mask}" but MaSSL masks nothing; set views.mask="none"'
        )


def objective(params, teacher, outputs, carry, key, progress, config):
    """Cross-entropy between the views' distributions over the rows of a block, averaged over
    blocks; then the memory moves on.
    """
    del params, teacher
    c, temperatures = config.massl.cls, voting.temperatures(progress, config)
    seen = voting.views_first(outputs)  # [V, B, d]
    blocks = ops.sample_anchors(key, c.memory, c.anchors, num_tasks=c.tasks, strategy="partition")
    members = carry["cls"]["memory"]["rows"]["embedding"][blocks][:, :, None]  # [T, K, 1, d]
    weights = jnp.ones(members.shape[:3], members.dtype)  # one-hot: each row votes for itself
    terms = losses.sop(seen["student"], seen["teacher"], members, weights, **temperatures)
    metrics = {f"cls_{name}": value for name, value in terms.items()}
    metrics["embedding_spread"] = base.spread(seen["teacher"])
    metrics["teacher_temperature"] = temperatures["teacher_temperature"]
    return terms["loss"], base.Output(voting.remember(carry, outputs), metrics)


METHOD = base.Method(
    name="massl",
    defaults=defaults,
    check=check,
    views=voting.views,
    init=voting.init,
    encode=voting.encode,
    objective=objective,
    teacher_of=voting.teacher_of,
    features=voting.features,
    health=voting.health,
    pictures=voting.pictures,
)
