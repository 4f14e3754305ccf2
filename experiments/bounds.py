"""Bounds for small runs, as methods of their own: `infonce`, contrastive learning with the batch as
negatives, and `supervised`, the same network, views and steps with the labels or the masks.

    ssl-jax train --import=experiments.bounds --config=compare:infonce --workdir=runs/infonce

in a checkout. They are no part of the package: nothing else may see labels in training.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ssl_jax import methods
from ssl_jax.config import key
from ssl_jax.data.source import make_source
from ssl_jax.methods import base, multicrop, section_keys
from ssl_jax.models import heads
from ssl_jax.views import recipe


def contrastive_defaults() -> dict:
    """The section `infonce` of the config."""
    return dict(
        temperature=key(0.2, "of the softmax over the batch", above=0),
        head_hidden=key(256, "width of the projection's hidden layer", least=1),
        head_out=key(64, "width of the L2-normalised embedding", least=1),
        global_token=section_keys.token_key(),
    )


def supervised_defaults() -> dict:
    """The section `supervised` of the config."""
    return dict(
        truth=key("label", "what is predicted", choices=("label", "mask")),
        global_token=section_keys.token_key(),
    )


def check(config) -> None:
    """Refuses settings that contradict each other. Raises InputError."""
    section_keys.check_token(config)
    section_keys.check_no_masks(config, config.method)


class Outputs(NamedTuple):
    """Of each global view: embeddings [B, V, d] or class scores [B, V, ..., c], and the truth."""

    predicted: jax.Array
    truth: jax.Array


def contrastive(config) -> base.Method:
    """SimCLR's loss (Chen et al. 2020) on the views of DINO's recipe."""
    c, m = config.infonce, config.model
    backbone = multicrop.encoders(m).student
    head = heads.projection_head(
        m.width, hidden=c.head_hidden, out=c.head_out, layers=2, init_std=m.init_std, dtype=m.dtype
    )

    def init(key):
        key_backbone, key_head = jax.random.split(key)
        return {"backbone": backbone.init(key_backbone), "head": head.init(key_head)}, None

    def encode(params, teacher, constants, views, keys, progress):
        tokens = multicrop.encode(backbone, params["backbone"], views["global"], keys=keys)
        out = head.apply(params["head"], multicrop.global_token(tokens, c.global_token))
        return Outputs(out, views["index"])

    def objective(params, teacher, outputs, carry, key, progress):
        """Each view finds the other view of its image among all views of the batch."""
        first, second = multicrop.views_first(outputs.predicted)[:2]
        both = jnp.concatenate([first, second])
        similarity = jnp.matmul(both, both.T, precision="highest") / c.temperature
        similarity = jnp.where(jnp.eye(len(both), dtype=bool), -jnp.inf, similarity)
        other = jnp.roll(jnp.arange(len(both)), len(first))
        loss = optax.softmax_cross_entropy_with_integer_labels(similarity, other).mean()
        metrics = {
            "found": (similarity.argmax(-1) == other).mean(),
            "embedding_spread": base.spread(jnp.stack([first, second])),
        }
        return loss, base.Output(carry, metrics)

    return base.Method(
        views=recipe.recipe_multicrop(config.views, m.patch),
        init=init,
        encode=encode,
        objective=objective,
        features=multicrop.features_of(multicrop.encoders(m).teacher, m, c.global_token),
        health=base.spread_warnings,
    )


def supervised(config) -> base.Method:
    """A linear classifier on the image's token (labels) or on each patch token (masks)."""
    c, m = config.supervised, config.model
    backbone = multicrop.encoders(m).student
    views = recipe.recipe_multicrop(config.views, m.patch)
    source = make_source(config.data)
    first = source[0]
    if c.truth == "label":
        classes = source.num_classes
    else:
        classes = len(source.mask_names or ())

    def init(key):
        kernel = jnp.zeros((m.width, classes))
        return {"backbone": backbone.init(key), "classifier": {"kernel": kernel}}, None

    def constants():
        """The truth of every record: labels [N] or masks [N, H, W]."""
        table = np.empty((len(source), *np.shape(first[c.truth])), np.int16)
        for i in range(len(source)):
            table[i] = source[i][c.truth]
        return {"truth": jnp.asarray(table)}

    def encode(params, teacher, constants, views_of, keys, progress):
        group, index = views_of["global"], views_of["index"]
        tokens = multicrop.encode(backbone, params["backbone"], group, keys=keys)
        truth = constants["truth"][index]
        if c.truth == "label":
            of_view, shape = multicrop.global_token(tokens, c.global_token), group.flips.shape
            truth = jnp.broadcast_to(truth[:, None], shape)
        else:
            of_view = tokens.patches
            at_centres = functools.partial(patch_classes, grid=views["global"].grid[0])
            truth = jax.vmap(at_centres)(truth, group.boxes, group.flips)
        return Outputs(of_view @ params["classifier"]["kernel"], truth)

    def objective(params, teacher, outputs, carry, key, progress):
        each = optax.softmax_cross_entropy_with_integer_labels(*outputs)
        right = (outputs.predicted.argmax(-1) == outputs.truth).mean()
        return each.mean(), base.Output(carry, {"accuracy": right})

    return base.Method(
        views=views,
        init=init,
        encode=encode,
        objective=objective,
        features=multicrop.features_of(multicrop.encoders(m).teacher, m, c.global_token),
        constants=constants,
    )


def patch_classes(mask, boxes, flips, grid: int):
    """[V, grid^2] int: the class at the centre of each patch of crops.

    mask: [H, W] of the image. boxes: [V, 4] (y, x, height, width) in its pixels. flips: [V] bool.
    """
    centre = (jnp.arange(grid) + 0.5) / grid
    across = jnp.where(flips[:, None], 1 - centre, centre)
    y = boxes[:, 0, None] + centre * boxes[:, 2, None]
    x = boxes[:, 1, None] + across * boxes[:, 3, None]
    rows, columns = (
        jnp.clip(place.astype(jnp.int32), 0, side - 1)
        for place, side in zip((y, x), mask.shape, strict=True)
    )
    return mask[rows[:, :, None], columns[:, None, :]].reshape(len(boxes), -1).astype(jnp.int32)


methods.register("infonce", contrastive, contrastive_defaults, check)
methods.register("supervised", supervised, supervised_defaults, check)
