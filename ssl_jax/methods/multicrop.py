"""Shared parts of methods with a student and an EMA teacher: encoders, encoding a group of views,
masked patches, temperatures, rules of the last layer, features."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ssl_jax import ops
from ssl_jax.methods import base
from ssl_jax.methods.section_keys import (  # noqa: F401, as methods outside the package call them
    check_no_masks,
    check_token,
    check_weights,
    freeze_key,
    target_temperature_keys,
    temperature_keys,
    token_key,
    warmup_key,
)
from ssl_jax.models import heads, vit, zoo
from ssl_jax.models.functional import Model
from ssl_jax.views import recipe


class Encoders(NamedTuple):
    """The vision transformer as student and as teacher (without drop-path and mask token)."""

    student: Model
    teacher: Model


def encoders(model: ConfigDict, *, masked: bool = False) -> Encoders:
    """Both encoders by the config section `model`. masked: whether the student has a mask token."""
    student = vit.vit(zoo.vit_config(model, mask_token=masked))
    return Encoders(student, vit.vit(zoo.vit_config(model, drop_path=0.0)))


def without_mask_token(params: dict) -> dict:
    """A method's parameters for the teacher: without the mask token, which only the student has."""
    backbone = {name: leaf for name, leaf in params["backbone"].items() if name != "mask_token"}
    return {**params, "backbone": backbone}


def encode(
    backbone: Model,
    params: Mapping[str, Any],
    group: recipe.Group,
    *,
    keys: jax.Array | None = None,
    masked: bool = False,
) -> vit.Tokens:
    """Encodes all views of one group in one pass.

    Args:
      backbone: a vision transformer; params: its parameters.
      group: images [B, V, H, W, 3] in [0, 1]; masks [B, V, n], used if `masked`; keep [B, V, m],
        the patches to encode, or None for all.
      keys: [B] PRNG keys for drop-path, one per image, or None for evaluation mode. Each view folds
        in its index.

    Returns:
      Tokens with leading axes [B, V].
    """
    batch, count = group.images.shape[:2]

    def merge(array):
        return array.reshape(batch * count, *array.shape[2:])

    view_keys = None
    if keys is not None:
        of_image = jax.vmap(jax.random.fold_in, in_axes=(None, 0))
        view_keys = merge(jax.vmap(of_image, in_axes=(0, None))(keys, jnp.arange(count)))
    tokens = backbone.apply(
        params,
        merge(group.images),
        masks=merge(group.masks) if masked else None,
        keep=None if group.keep is None else merge(group.keep),
        keys=view_keys,
    )
    return jax.tree.map(lambda x: x.reshape(batch, count, *x.shape[1:]), tokens)


def student_teacher(
    backbone: Encoders,
    params: Mapping[str, Any],
    teacher: Mapping[str, Any],
    views: Mapping[str, recipe.Group],
    keys: jax.Array,
    *,
    masked: bool = False,
) -> tuple[list[vit.Tokens], vit.Tokens]:
    """Encodes all views by the student, and the unmasked global views by the teacher.

    keys: [B, 2], for drop-path in global and in local views. masked: whether the student's global
    views are masked.

    Returns the student's tokens of the global views and of the local ones, if any, and the
    teacher's tokens.
    """
    student = [
        encode(
            backbone.student,
            params["backbone"],
            views[name],
            keys=keys[:, i],
            masked=masked and name == "global",
        )
        for i, name in enumerate(("global", "local"))
        if name in views
    ]
    return student, encode(backbone.teacher, teacher["backbone"], views["global"])


def split_keys(keys: jax.Array, count: int) -> jax.Array:
    """[B, count] keys from one key per image [B]."""
    return jax.vmap(lambda one: jax.random.split(one, count))(keys)


def global_token(tokens: vit.Tokens, kind: str) -> jax.Array:
    """[..., d]: the class token ("cls"), or the mean of the patch tokens ("mean") or of the query
    tokens ("queries"); "concat": the first two, [..., 2 d]."""
    if kind == "concat":
        return jnp.concatenate([global_token(tokens, part) for part in ("cls", "mean")], axis=-1)
    if kind == "queries":
        assert tokens.queries is not None
        return tokens.queries.mean(axis=-2)
    if kind == "mean":
        return tokens.patches.mean(axis=-2)
    assert kind == "cls" and tokens.cls is not None, kind  # see `check_token`
    return tokens.cls


def global_tokens(shape: vit.ViTConfig) -> list[str]:
    """Those of `global_token` that a network of this shape has."""
    has = {"cls": shape.cls, "mean": True, "queries": shape.queries, "concat": shape.cls}
    return [kind for kind, there in has.items() if there]


def views_first(array: jax.Array) -> jax.Array:
    """Moves [B, V, ...] to [V, B, ...], the order of the losses."""
    return jnp.moveaxis(array, 1, 0)


def masked_first(masks: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """Indices of `count` patches per view, masked ones first, and which of them are masked.

    Args:
      masks: [B, V, n] bool; no view may have more than `count` True.

    Returns:
      index [B, V, count] int32 (masked patches first, in order) and mask [B, V, count] bool.
    """
    index = jnp.argsort(~masks, axis=-1, stable=True)[..., :count]
    return index, jnp.take_along_axis(masks, index, axis=-1)


def take(patches: jax.Array, index: jax.Array) -> jax.Array:
    """Gathers patches [..., n, d] at index [..., m] -> [..., m, d]."""
    return jnp.take_along_axis(patches, index[..., None], axis=-2)


def features_of(
    encoder: Model, model: ConfigDict | vit.ViTConfig, token: str, show: Callable | None = None
) -> Callable:
    """The function `features` of a method, see `base.Method`.

    Args:
      encoder: the vision transformer without drop-path and mask token; model: its section of the
        config. token: the image vector, see `global_token`.
      show: (params, images, features, tokens, constants) -> {name: array}, the method's extras.
    """

    def features(params, images, *, layers=(), attention=False, extras=False, constants=None):
        tokens = encoder.apply(params["backbone"], images, layers=layers, attention=attention)
        batch, height, width = images.shape[:3]
        result = base.Features(
            image=global_token(tokens, token),
            cls=tokens.cls,
            patches=tokens.patches.reshape(batch, height // model.patch, width // model.patch, -1),
            attention=tokens.attention,
            layers=tokens.layers,
            extras={},
        )
        if extras and show:
            result = result._replace(extras=show(params, images, result, tokens, constants))
        return result

    return features


def prototype_head(
    model: ConfigDict, section: ConfigDict, prototypes: int, bottleneck: int | None = None
) -> Model:
    """DINO's head for the encoder of the config section `model`, with a method's hidden widths."""
    return heads.dino_head(
        model.width,
        prototypes,
        hidden=section.head_hidden,
        bottleneck=section.head_bottleneck if bottleneck is None else bottleneck,
        init_std=model.init_std,
        dtype=model.dtype,
    )


class SplitHead(NamedTuple):
    """`prototype_head` as two functions of its parameters, for a loss that multiplies by itself.

    embed(head, tokens) -> [..., e] of unit length, in the compute type. prototypes(head) -> [e, K]
    float32. Their product is what `prototype_head` returns.
    """

    embed: Callable[[Any, jax.Array], jax.Array]
    prototypes: Callable[[Any], jax.Array]


def split_head(
    model: ConfigDict, section: ConfigDict, prototypes: int, bottleneck: int | None = None
) -> SplitHead:
    """See `SplitHead`; the arguments are those of `prototype_head`."""
    width = section.head_bottleneck if bottleneck is None else bottleneck
    mlp = heads.projection_head(
        model.width,
        hidden=section.head_hidden,
        out=width,
        init_std=model.init_std,
        dtype=model.dtype,
    )
    last = heads.prototypes(width, prototypes)

    def embed(head, tokens):
        return mlp.apply({"mlp": head["mlp"]}, tokens).astype(model.dtype)

    return SplitHead(embed, lambda head: last.apply(head["last"]))


# --- settings


def teacher_temperature(section: ConfigDict, done: jax.Array, warmup: float) -> jax.Array:
    """tau_t with its linear warm-up.

    section: with teacher_temperature and final_teacher_temperature. done, warmup: both in epochs
    (tau_t is then constant within each, as in the code of DINO and iBOT) or both in steps.
    """
    start, end = section.teacher_temperature, section.final_teacher_temperature
    return ops.linear_warmup(done, start=start, end=end, warmup=warmup)


def last_layer_rules(path: str, *, freeze_epochs: float, fixed_gain: bool) -> base.Rules:
    """Rules for a last layer that is frozen for `freeze_epochs`, with a gain that is trained and
    decayed or fixed at 1."""
    waiting = base.Rule(freeze_epochs=freeze_epochs)
    gain = base.Rule(freeze_epochs=base.NEVER) if fixed_gain else waiting
    return ((f"{path}/gain", gain), (f"{path}/.*", waiting), *base.DEFAULT_RULES)
