"""Named sizes of vision transformers, and what a model costs."""

import dataclasses
import math
from typing import NamedTuple

import jax

from ssl_jax.config import InputError, check_multiple, key
from ssl_jax.models import position
from ssl_jax.models.vit import ViTConfig


class Size(NamedTuple):
    width: int
    depth: int
    heads: int
    # the patch side the size is usually published with; taken where the config gives patch = 0
    patch: int


SIZES = {
    "ti": Size(192, 12, 3, patch=16),
    "s": Size(384, 12, 6, patch=16),
    "b": Size(768, 12, 12, patch=16),
    "l": Size(1024, 24, 16, patch=16),
    "h": Size(1280, 32, 16, patch=14),
}


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


def defaults() -> dict:
    """The section `model` of the config."""
    set_by_size = 'from the size; set by hand for model.size="custom"'
    return dict(
        size=key("s", "name of a size", choices=(*SIZES, "custom"), free=True),
        width=key(0, f"token width; 0 = {set_by_size}", "channels", least=0, most=65536),
        depth=key(0, f"number of blocks; 0 = {set_by_size}", "blocks", least=0, most=1000),
        heads=key(0, f"attention heads; 0 = {set_by_size}", "heads", least=0, most=4096),
        patch=key(16, "side of a square patch", "pixels", above=0, most=1024),
        image_size=key(
            224,
            "native grid of the position codes; other image sizes are interpolated",
            "pixels, square",
            above=0,
            most=16384,
        ),
        mlp_ratio=key(4.0, "hidden width of the MLP / token width", above=0, most=100),
        cls=key(True, "class token"),
        queries=key(0, "extra learned query tokens", "tokens", least=0, most=10000),
        position=key(
            "learned", 'position codes: "sincos" are fixed', choices=("learned", "sincos")
        ),
        position_resize=key(
            "exact",
            'resizing of position codes: "exact", or "dino_offset" (DINO-family weights)',
            choices=position.RULES,
        ),
        resize_kernel=key(
            "keys-0.75",
            'its cubic kernel: "keys-0.75" (torch, plain), or "antialias-0.5" (timm weights)',
            choices=position.KERNELS,
        ),
        drop_path=key(
            0.0,
            "highest stochastic-depth rate (last block), linear over blocks; student only",
            least=0,
            below=1,
        ),
        init_std=key(
            0.02,
            "standard deviation of initial weights; above 0.4 torch's cut at +-2 would matter",
            above=0,
            most=0.4,
        ),
        position_std=key(
            0.0, "the same for learned position codes alone; 0 = init_std", least=0, most=4
        ),
        gelu=key("erf", '"erf" (exact) or "tanh" (approximate, faster)', choices=("erf", "tanh")),
        scan=key(
            False,
            "one compiled block, scanned: compiles 10 x faster on accelerators; same numbers",
            free=True,
        ),
        remat=key(
            False,
            "recompute activations of a block in the backward pass: less memory, same numbers",
            free=True,
        ),
        dtype=key(
            "float32",
            "of the computation; parameters, losses and softmax are always float32",
            choices=("float32", "bfloat16"),
        ),
    )


def model_shape(section) -> tuple[int, int, int]:
    """(width, depth, heads) of a config's `model` section, from its size or set by hand. Raises
    InputError on a contradiction.
    """
    names = ("width", "depth", "heads")
    values = tuple(section[name] for name in names)
    if section.size == "custom":
        for name, value in zip(names, values, strict=True):
            if value < 1:
                raise InputError(
                    f'model.{name} is {value}; model.size="custom" needs width, depth and heads'
                    " above 0"
                )
        return values
    fixed = SIZES[section.size][:3]
    for name, value, wanted in zip(names, values, fixed, strict=True):
        if value not in (0, wanted):
            raise InputError(
                f'model.{name} is {value} but model.size "{section.size}" has {wanted}; '
                f'set model.size="custom" or model.{name}=0'
            )
    return fixed


def check(config) -> None:
    """Refuses a `model` section whose keys contradict each other. Raises InputError."""
    m = config.model
    width, _, heads = model_shape(m)
    check_multiple("model.width", width, heads, "model.heads")
    if m.position == "sincos":
        check_multiple("model.width", width, 4, 'model.position="sincos"')
    check_multiple("model.image_size", m.image_size, m.patch, "model.patch")
    if width * m.mlp_ratio < 1:
        raise InputError(
            f"model.mlp_ratio is {m.mlp_ratio}, which leaves the MLP of width {width} no hidden"
            f" unit; use at least {1 / width:.3g}"
        )
