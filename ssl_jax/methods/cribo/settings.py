"""The section `cribo` of the config and its checks."""

import math

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ssl_jax import ops
from ssl_jax.config import InputError, key
from ssl_jax.methods import base, section_keys

WEIGHTS = ("global_weight", "cross_view_weight", "cross_image_weight")


def defaults() -> dict:
    """The section `cribo` of the config: the published values for ViT-S/16 on ImageNet."""
    return dict(
        head_hidden=key(
            2048, "width of the hidden layers that images and objects share", least=1, most=65536
        ),
        head_bottleneck=key(256, "width before the prototypes, L2-normalised", least=1, most=65536),
        prototypes=key(65536, "P, of each of the two last layers", least=2, most=2**24),
        norm_last_layer=key(
            False, "gain fixed at 1 (published ViT-B); False: it learns and decays (ViT-S)"
        ),
        freeze_last_layer_epochs=section_keys.freeze_key("the last layers and their moments"),
        **section_keys.temperature_keys(),
        center_momentum=key(0.9, "of both centers", least=0, below=1),
        global_weight=key(1.0, "of the loss over images, L_g", least=0),
        cross_view_weight=key(1.0, "of the loss over the views of an object, L_cv", least=0),
        cross_image_weight=key(
            1.0, "of the loss over an object and its neighbour, L_ci; 0: no memory", least=0
        ),
        clusters=key(32, "K, candidate objects per image", least=1, most=10**4),
        clustering=key(
            "sinkhorn",
            '"kmeans" has neither balance nor positions (table 12); "masks": the classes of the'
            " masks, of at most K classes an image (table 11)",
            choices=("sinkhorn", "kmeans", "masks"),
        ),
        position_weight=key(1.0, "lambda_pos in epoch 0", least=0),
        final_position_weight=key(
            -1.0, "lambda_pos in the last epoch, linear in between; -1 = constant", least=-1
        ),
        cluster_temperature=key(0.05, "1 / lambda", above=0),
        cluster_iters=key(5, "rounds of assignment and update", least=1, most=1000),
        sinkhorn_iters=key(5, "scalings per round", least=1, most=1000),
        normalize=key(
            "image",
            'costs are brought to [0, 1] per image, or over the "batch" (official code)',
            choices=("image", "batch"),
        ),
        update_marginals=key(
            True, "column marginals follow cluster sizes (published runs); False: uniform (paper)"
        ),
        hard=key(True, "one cluster per token, or soft assignments"),
        memory=key(
            25000, "S, images whose objects are remembered", unit="images", least=1, below=2**31
        ),
        cycle=key(True, "only cycle-consistent neighbours count; False: all (table 8)"),
        same_classes=key(
            False,
            "only neighbours with the same set of classes count, by the masks; with cycle=False"
            " instead of cycles (table 11)",
        ),
        group=key(
            128,
            "images among which the way back is searched (official code: a device's batch);"
            " 0 = the batch",
            unit="images",
            least=0,
            most=2**24,
        ),
        counts=key(
            "own",
            'each view is divided by its own number of cycles, or both by that of the "first"'
            " (official code)",
            choices=("own", "first"),
        ),
        start_epoch=key(1, "first epoch with L_ci", unit="epochs", least=0, most=10**6),
        chunk=key(
            0,
            "images whose logits are held at a time; 0 = by the number of logits",
            unit="images",
            least=0,
            free=True,
            most=2**24,
        ),
    )


def check(config: ConfigDict) -> None:
    """Raises InputError for settings that contradict each other."""
    c, v = config.cribo, config.views
    if not any(c[name] for name in WEIGHTS):
        raise InputError(
            f"{', '.join(f'cribo.{name}' for name in WEIGHTS)} are all 0; there is nothing to learn"
            " from"
        )
    if not config.model.cls:
        raise InputError(
            "model.cls is False but CrIBo's image is the class token; set model.cls=True"
        )
    for name, required in (("global_count", 2), ("local_count", 0), ("mask", "none")):
        if v[name] != required:
            raise InputError(
                f"views.{name} is {v[name]!r}; CrIBo has two global views, no local ones and no"
                f" masks: set it to {required!r}"
            )
    data = config.data
    if learns_from_masks(c) and (data.decode_size or data.cache == "device"):
        raise InputError(
            f"data.decode_size is {data.decode_size} and data.cache {data.cache!r}, which leave out"
            " the masks that cribo.clustering and cribo.same_classes ask for; set"
            ' data.decode_size=0 and data.cache="memory" or "none"'
        )
    tokens = 2 * (v.global_size // config.model.patch) ** 2
    if c.clusters > tokens:
        raise InputError(
            f"cribo.clusters is {c.clusters}, but two views of {v.global_size} px have {tokens}"
            f" tokens; use at most {tokens}"
        )


def learns_from_masks(section: ConfigDict) -> bool:
    """Whether the method needs the masks of the training images (table 11)."""
    return section.clustering == "masks" or section.same_classes


def position_weight(section: ConfigDict, progress: base.Progress) -> jax.Array:
    """lambda_pos: constant, or linear over epochs and constant within each."""
    if section.final_position_weight < 0:
        return jnp.float32(section.position_weight)
    return ops.linear_warmup(
        progress.epoch,
        start=section.position_weight,
        end=section.final_position_weight,
        warmup=math.ceil(progress.total_epochs),
    )
