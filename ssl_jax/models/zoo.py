"""Named sizes of vision transformers, and what a model costs."""

import dataclasses
import math
from typing import NamedTuple

import jax

from ssl_jax.config import MODEL_SIZES
from ssl_jax.models.vit import ViTConfig


class Size(NamedTuple):
    width: int
    depth: int
    heads: int
    # the patch side the size is usually published with; taken where the config gives patch = 0
    patch: int


SIZES = {name: Size(*shape, patch=14 if name == "h" else 16) for name, shape in MODEL_SIZES.items()}


def vit_config(section, **overrides) -> ViTConfig:
    """The ViTConfig of a config's `model` section.

    Args:
      section: anything that maps field names to values (ConfigDict, dict): `size` and fields of
      ViTConfig. A named size fixes width, depth and heads (the section may leave them 0 or repeat
      them) and a patch of 0; "custom" takes all from the section. **overrides: fields of ViTConfig
      that win over the section (a teacher's drop_path=0.0).

    Raises:
      ValueError: unknown size or field, width/depth/heads that contradict the size, or values
      ViTConfig refuses.
    """
    size, fields = section["size"], {f.name for f in dataclasses.fields(ViTConfig)}
    if size != "custom" and size not in SIZES:
        raise ValueError(f'model.size is "{size}"; choose one of {", ".join(SIZES)}, custom')
    unknown = sorted((set(section) | set(overrides)) - fields - {"size"})
    if unknown:
        raise ValueError(
            f"model.{unknown[0]} is no field of a vision transformer; fields:"
            f" {', '.join(sorted(fields))}"
        )
    values = {name: section[name] for name in fields & set(section)} | overrides
    if size != "custom":
        named = SIZES[size]._asdict()
        for name in ("width", "depth", "heads"):
            if values.get(name) and values[name] != named[name]:
                raise ValueError(
                    f'model.{name} is {values[name]} but model.size = "{size}" means {named[name]};'
                    ' set model.size="custom" to choose it'
                )
        values = values | {name: value for name, value in named.items() if not values.get(name)}
    for name in ("mean", "std"):
        if name in values:
            values[name] = tuple(values[name])
    return ViTConfig(**values)


def forward_flops(config: ViTConfig, height: int, width: int, kept: int | None = None) -> float:
    """Floating-point operations of all matrix products of one image's forward pass (a multiply-add
    counts as 2).

    Args:
      height, width: image size in pixels.
      kept: patches that enter the blocks if others are dropped (all are embedded); None = all.

    Norms, softmax, GELU and the resizing of position codes are left out: together about 1 % at
    ViT-B/16.
    """
    d, patches = config.width, (height // config.patch) * (width // config.patch)
    tokens = (patches if kept is None else kept) + config.cls + config.queries
    embed = patches * config.patch**2 * config.in_channels * d
    # qkv; scores and weighted sum; projection
    attention = tokens * d * 3 * d + 2 * tokens * tokens * d + tokens * d * d
    mlp = 2 * tokens * d * config.hidden
    return 2.0 * (embed + config.depth * (attention + mlp))


def count(params) -> int:
    """Number of scalars in a parameter tree (arrays or shapes: `count(jax.eval_shape(model.init,
    key))` allocates nothing).
    """
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
