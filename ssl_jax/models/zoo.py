"""Named sizes of vision transformers, and the cost of a model."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from ssl_jax.config import InputError, check_choice, key, keys_of, unknown
from ssl_jax.models import lora, stem, swin
from ssl_jax.models.shape import ViTConfig, check_together

_SHAPE = ("width", "depth", "heads")


class Size(NamedTuple):
    width: int
    depth: int
    heads: int
    # the usual patch side of published models; used if the config has patch = 0
    patch: int
    stages: tuple[int, ...] = ()


SIZES = {
    "ti": Size(192, 12, 3, patch=16),
    "s": Size(384, 12, 6, patch=16),
    "b": Size(768, 12, 12, patch=16),
    "l": Size(1024, 24, 16, patch=16),
    "h": Size(1280, 32, 16, patch=14),
    "h_plus": Size(1280, 32, 20, patch=16),
    "g": Size(1536, 40, 24, patch=14),
    "7b": Size(4096, 40, 32, patch=16),
    "swin_t": Size(768, 12, 24, patch=32, stages=(2, 2, 6, 2)),
}


def vit_config(section: ConfigDict | Mapping[str, Any], **overrides: Any) -> ViTConfig:
    """The ViTConfig of a config's `model` section.

    Args:
      section: a mapping (ConfigDict, dict) with `size` and fields of ViTConfig. A named size sets
        width, depth and heads (0 or equal in the section) and, if the section has 0, the patch;
        "custom" takes all from the section.
      **overrides: fields of ViTConfig that replace the section's (such as drop_path=0.0 for a
        teacher).

    Raises:
      InputError: an unknown size or field; width, depth or heads that contradict the size; a value
        that ViTConfig refuses.
    """
    values = {name: section[name] for name in section if name not in lora.defaults()} | overrides
    size, fields = values.pop("size"), keys_of(ViTConfig).keys()
    if strange := sorted(values.keys() - fields):
        raise InputError(unknown("key of the model", f"model.{strange[0]}", sorted(fields)))
    shape = zip(_SHAPE, model_shape(values | {"size": size}), strict=True)
    values["stages"] = stages(values | {"size": size})
    if size != "custom" and not values.get("patch"):
        values["patch"] = SIZES[size].patch
    for name in ("mean", "std"):
        if name in values:
            values[name] = tuple(values[name])
    if isinstance(values.get("remat"), bool):  # from runs of earlier versions
        values["remat"] = "block" if values["remat"] else "none"
    return ViTConfig(**values | dict(shape))


def forward_flops(config: ViTConfig, height: int, width: int, visible: int | None = None) -> float:
    """FLOPs of all matrix products in one image's forward pass (a multiply-add counts as 2), by
    formula; `flops.matmul_flops` counts any network.

    Args:
      height, width: image size in pixels.
      visible: number of patches that enter the blocks (all are embedded); None = all.

    The count excludes norms, softmax, GELU and the resizing of position embeddings, together about
    1 % for ViT-B/16.
    """
    if config.stages:
        return swin.forward_flops(config, height, width)
    d, patches = config.width, (height // config.patch) * (width // config.patch)
    tokens = (
        (patches if visible is None else visible) + config.cls + config.registers + config.queries
    )
    if config.stem == "conv":
        embed = stem.products(patches, config.patch, config.in_channels, d)
    else:
        embed = patches * config.patch**2 * config.in_channels * d
    # qkv; scores and weighted sum; projection
    attention = tokens * d * 3 * d + 2 * tokens * tokens * d + tokens * d * d
    mlp = (3 if config.mlp == "swiglu" else 2) * tokens * d * config.hidden
    return 2.0 * (embed + config.depth * (attention + mlp))


def count(params: Any) -> int:
    """Number of scalars in a tree of arrays or shapes; for a model, without allocation:
    `count(jax.eval_shape(model.init, key))`.
    """
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def defaults() -> dict:
    """The section `model` of the config: the size, the fields of ViTConfig (except `mask_token`,
    which the method sets) and the keys of adapters."""
    fields = keys_of(ViTConfig)
    del fields["mask_token"]
    size = key(
        "s", "size of the network: width, depth, heads", choices=(*SIZES, "custom"), free=True
    )
    return dict(size=size, **fields, **lora.defaults())


def model_shape(section: ConfigDict | Mapping[str, Any]) -> tuple[int, int, int]:
    """(width, depth, heads) of a `model` section (a Mapping), by its named size or its own keys.

    Raises:
      InputError: an unknown size, or keys that contradict it.
    """
    size = section["size"]
    check_choice("model.size", size, (*SIZES, "custom"))
    values = tuple(section.get(name, 0) for name in _SHAPE)
    if size == "custom":
        for name, value in zip(_SHAPE, values, strict=True):
            if value < 1:
                raise InputError(
                    f'model.{name} is {value}; model.size="custom" needs width, depth and heads'
                    " above 0"
                )
        return values
    fixed = SIZES[size][:3]
    for name, value, fixed_value in zip(_SHAPE, values, fixed, strict=True):
        if value not in (0, fixed_value):
            raise InputError(
                f'model.{name} is {value} but model.size "{size}" has {fixed_value}; '
                f'set model.size="custom" or model.{name}=0'
            )
    return fixed


def stages(section: ConfigDict | Mapping[str, Any]) -> tuple[int, ...]:
    """Blocks of each stage of a `model` section; () for a plain vision transformer. Raises
    InputError if they contradict the size."""
    size, blocks = section["size"], tuple(section.get("stages", ()))
    if size == "custom":
        return blocks
    if blocks not in ((), SIZES[size].stages):
        raise InputError(
            f'model.stages is {blocks} but model.size "{size}" has {SIZES[size].stages or "none"};'
            ' set model.size="custom" or model.stages=()'
        )
    return SIZES[size].stages


def check(config: ConfigDict) -> None:
    """Refuses a `model` section whose keys contradict each other. Raises InputError."""
    m = config.model
    lora.check(config)
    shape = dict(zip(_SHAPE, model_shape(m), strict=True), stages=stages(m))
    check_together(m.to_dict() | shape, "model.")
