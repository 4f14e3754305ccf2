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
            2048, "width of hidden layers, shared by images and objects", least=1, most=65536
        ),
        head_bottleneck=key(
            256, "width of the L2-normalised input of the prototypes", least=1, most=65536
        ),
        prototypes=key(
            65536,
            "number of prototypes P in each of the two last layers, of images and of objects",
            least=2,
            most=2**24,
        ),
        norm_last_layer=key(
            False,
            "fix the gain of the last layers at 1 (published ViT-B); False = learned, with weight"
            " decay (ViT-S)",
        ),
        freeze_last_layer_epochs=section_keys.freeze_key("the last layers and their moments"),
        **section_keys.temperature_keys(),
        center_momentum=key(
            0.9,
            "momentum of the moving averages that center the logits of images and of objects",
            least=0,
            below=1,
        ),
        global_weight=key(1.0, "weight of the loss over images, L_g", least=0),
        cross_view_weight=key(
            1.0, "weight of the loss between the two views of an object, L_cv", least=0
        ),
        cross_image_weight=key(
            1.0,
            "weight of the loss between an object and its neighbour, L_ci; 0 = no memory of"
            " objects",
            least=0,
        ),
        clusters=key(32, "number of candidate objects per image, K", least=1, most=10**4),
        clustering=key(
            "sinkhorn",
            'how tokens are grouped into objects: "sinkhorn"; "kmeans", without balance and'
            ' positions (table 12); "masks", by the classes of the masks, at most K per image'
            " (table 11)",
            choices=("sinkhorn", "kmeans", "masks"),
        ),
        position_weight=key(
            1.0, "weight of positions in the clustering, lambda_pos, in epoch 0", least=0
        ),
        final_position_weight=key(
            -1.0, "lambda_pos in the last epoch, reached linearly; -1 = constant", least=-1
        ),
        cluster_temperature=key(
            0.05, "temperature of the clustering's Sinkhorn assignment, 1 / lambda", above=0
        ),
        cluster_iters=key(5, "clustering rounds of assignment and update", least=1, most=1000),
        sinkhorn_iters=key(5, "Sinkhorn scalings per round of the clustering", least=1, most=1000),
        normalize=key(
            "image",
            'range over which clustering costs are scaled to [0, 1]: each "image", or the whole'
            ' "batch" (official code)',
            choices=("image", "batch"),
        ),
        update_marginals=key(
            True,
            "let column marginals of Sinkhorn follow cluster sizes (published runs);"
            " False = uniform (paper)",
        ),
        hard=key(True, "assign each token to one cluster; False = soft assignments"),
        memory=key(
            25000, "images with objects in the memory, S", unit="images", least=1, below=2**31
        ),
        cycle=key(
            True, "use only cycle-consistent neighbours in L_ci; False = all neighbours (table 8)"
        ),
        same_classes=key(
            False,
            "use only neighbours with the same set of mask classes in L_ci; with cycle=False,"
            " instead of cycle consistency (table 11)",
        ),
        group=key(
            128,
            "images whose objects are searched for the way back of a cycle (official code: a"
            " device's batch); 0 = the whole batch",
            unit="images",
            least=0,
            most=2**24,
        ),
        counts=key(
            "own",
            "divisor of a view's L_ci: the view's \"own\" number of counted objects, or that of"
            ' the "first" view (official code)',
            choices=("own", "first"),
        ),
        start_epoch=key(1, "first epoch in which L_ci is used", unit="epochs", least=0, most=10**6),
        chunk=key(
            0,
            "images whose object logits are in memory at once; 0 = chosen by the number of logits",
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
