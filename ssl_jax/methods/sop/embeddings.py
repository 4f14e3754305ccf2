"""Shared parts of SOP, SOVE and MaSSL: a student, its EMA teacher, and memories of embeddings.

Both networks embed views by an encoder and a projection head. The teacher's embeddings enter ring
memories, whose rows replace the learned prototypes of other methods. Each method chooses the voting
rows and the loss. The sections of the three methods have the same keys, except that MaSSL has no
patch objective.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ssl_jax import ops
from ssl_jax.config import InputError, key
from ssl_jax.methods import base, gram, multicrop, section_keys
from ssl_jax.models import heads
from ssl_jax.views import configured, recipe

_RISES = base.Meaning(
    rises_with="cls_usage",
    why="the more anchors are in use (cls_usage), the more choices a prediction has; judge by"
    " the scores of evaluations",
)


class Outputs(NamedTuple):
    """Unit-length embeddings of the views of each image.

    student: [B, V, d], global views first. teacher: [B, 2, d], clean global views.

    Only with a patch objective, m being the largest number of masked patches of a view:
    student_patches, teacher_patches: [B, 2, m, d], masked ones first. masks: [B, 2, m], True =
    masked. memory_patch: [B, d], the teacher's embedding of a random patch of global view 2.
    """

    student: jax.Array
    teacher: jax.Array
    student_patches: jax.Array | None = None
    teacher_patches: jax.Array | None = None
    masks: jax.Array | None = None
    memory_patch: jax.Array | None = None


def shared_keys() -> dict:
    """The keys of networks and temperatures."""
    return dict(
        head_hidden=key(2048, "width of the head's two hidden layers", least=1, most=65536),
        head_out=key(256, "width of the L2-normalised embedding, d", least=1, most=65536),
        global_token=section_keys.token_key(),
        **section_keys.temperature_keys(),
    )


def tasks(section: ConfigDict) -> tuple[str, ...]:
    """The objectives in use: "cls", and "patch" if its weight is above 0."""
    return ("cls", "patch") if "patch" in section and section.patch.weight > 0 else ("cls",)


def check(config: ConfigDict) -> None:
    """Raises InputError for shared keys that contradict each other."""
    section_keys.check_token(config)
    if "patch" in config[config.method]:
        section_keys.check_weights(config)
    if config.views.global_count != 2:
        raise InputError(
            f"views.global_count is {config.views.global_count}; {config.method.upper()} needs"
            " exactly 2 global views"
        )


def method(config: ConfigDict, objective: Callable) -> base.Method:
    """A Method with the networks and memories of a resolved config and this objective."""
    c, m = config[config.method], config.model
    with_patches = "patch" in tasks(c)
    views = configured.recipe_multicrop(config.views, m.patch, masked=with_patches)
    most_masked = recipe.max_masked(views, "global")
    backbone = multicrop.encoders(m, masked=with_patches)
    head = heads.projection_head(
        m.width, hidden=c.head_hidden, out=c.head_out, init_std=m.init_std, dtype=m.dtype
    )

    def init(key):
        """Encoder and head; carry: a memory of random unit rows for each objective."""
        key_backbone, key_head, *key_memories = jax.random.split(key, 6)
        params = {"backbone": backbone.student.init(key_backbone), "head": head.init(key_head)}
        row = {"embedding": ((c.head_out,), jnp.float32)}
        carry = {
            name: {"memory": ops.memory_init(row, c[name].memory, filled=key_memory)}
            for name, key_memory in zip(tasks(c), key_memories, strict=False)
        }
        return params, carry

    def embed(params, tokens):
        """Embeddings [B, V, d] of views."""
        return head.apply(params["head"], multicrop.global_token(tokens, c.global_token))

    def encode(params, teacher, constants, views, keys, progress):
        keys = multicrop.split_keys(keys, 3)
        student, clean = multicrop.student_teacher(
            backbone, params, teacher, views, keys[:, :2], masked=with_patches
        )
        embeddings = [embed(params, tokens) for tokens in student]
        outputs = Outputs(jnp.concatenate(embeddings, axis=1), embed(teacher, clean))
        if not with_patches:
            return gram.seen(config, outputs, student[0].patches, clean.patches)

        masks = views["global"].masks
        # Only masked patches enter the loss, so the head embeds no others.
        index, masked = multicrop.masked_first(masks, most_masked)

        def one_patch(key):
            return jax.random.randint(key, (1,), 0, masks.shape[-1], jnp.int32)

        # One random patch of global view 2 per image enters the patch memory (appendix A).
        pick = jax.vmap(one_patch)(keys[:, 2])
        outputs = outputs._replace(
            student_patches=head.apply(params["head"], multicrop.take(student[0].patches, index)),
            teacher_patches=head.apply(teacher["head"], multicrop.take(clean.patches, index)),
            masks=masked,
            memory_patch=head.apply(
                teacher["head"], multicrop.take(clean.patches[:, 1], pick)
            ).squeeze(1),
        )
        return gram.seen(config, outputs, student[0].patches, clean.patches)

    def show(params, images, features, *_):
        """Extras, if the weights include the head: embedding [B, d] of the image and, with a patch
        objective, patch_embeddings [B, h, w, d]."""
        if "head" not in params:
            return {}
        shown = {"embedding": head.apply(params["head"], features.image)}
        if with_patches:
            shown["patch_embeddings"] = head.apply(params["head"], features.patches)
        return shown

    anchors = {name: c[name].anchors for name in tasks(c)}

    def health(metrics):
        return base.assignment_warnings(metrics, **anchors) + base.spread_warnings(metrics)

    plain = base.Method(
        views=views,
        init=init,
        encode=encode,
        objective=objective,
        features=multicrop.features_of(backbone.teacher, m, c.global_token, show),
        teacher_of=multicrop.without_mask_token,
        health=health,
        meanings=base.entropies(**anchors) | {"loss": _RISES, "cls_loss": _RISES},
    )
    return gram.added(config, plain)


def remember(carry: Mapping[str, Mapping[str, Any]], outputs: Outputs) -> dict[str, dict[str, Any]]:
    """The carry with pushes of the teacher's embeddings of this batch: global view 2, and one patch
    of it per image.
    """
    rows = {"cls": outputs.teacher[:, 1]}
    if outputs.memory_patch is not None:
        rows["patch"] = outputs.memory_patch
    return {
        name: {**part, "memory": base.Push({"embedding": rows[name]})}
        for name, part in carry.items()
    }


def temperatures(section: ConfigDict, progress: base.Progress) -> dict[str, Any]:
    """tau_s, and tau_t with its linear warm-up per step (not per epoch, as in DINO)."""
    steps = section.teacher_temperature_epochs * progress.steps_per_epoch
    warm = multicrop.teacher_temperature(section, progress.step, steps)
    return dict(student_temperature=section.student_temperature, teacher_temperature=warm)
