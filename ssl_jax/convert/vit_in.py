"""The encoder of a published checkpoint as a vision transformer of ours."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from ssl_jax.config import InputError
from ssl_jax.convert import fill, hub, torch_in
from ssl_jax.convert.weights import Report, Weights, brief
from ssl_jax.models import vit
from ssl_jax.ops import numerics


def load_vit(
    path: str | Path, *, family: str | None = None, part: str = "teacher", heads: int | None = None
) -> tuple[vit.ViTConfig, dict, Report]:
    """The encoder of a published checkpoint, with a config with which our network computes the same
    as theirs at every image size.

    Args:
      path, part: see `load_torch`.
      family: key of FAMILIES. Must be given for an encoder alone under the names that several
        share: "dino", "mae" or "timm", with LayerScale "dinov2" or "timm".
      heads: attention heads, which shapes do not give; None: as config.json says, else as published
        networks of this width have them, which the report notes.

    Returns:
      (ViTConfig, params, report) for `models.vit.vit(config).apply(params, images)`. Heads, mean,
        deviation and the like come from a config.json next to the weights; without one,
        ViTConfig.mean and .std are ImageNet's; for weights trained with others, change them with
        dataclasses.replace.

    Raises:
      InputError: as `load_torch`; the family cannot be recognised; no published network has this
        width, and nothing says how many heads there are.
    """
    described = hub.describe(path)
    source = torch_in.load(path, family=family)
    weights = source.tree(part)
    if source.family == "vit":
        scaled = "backbone/blocks/0/ls1/gamma" in weights.arrays
        whose = ("DINOv2 and timm", "dinov2") if scaled else ("DINO, MAE and timm", 'dino", "mae')
        raise InputError(
            f"{path} holds an encoder under names that {whose[0]} share; give"
            f' family="{whose[1]}" or "timm"'
        )
    known = _known(weights, described.model) | ({"heads": heads} if heads else {})
    fields = _fields(weights, known)
    config = vit.ViTConfig(**fields)
    if not (known.get("heads") or config.stages):
        usual = f"{config.heads} attention heads, as published networks of this width (heads=N)"
        weights = weights._replace(note="; ".join(filter(None, (weights.note, usual))))
    shapes = jax.eval_shape(vit.vit(config).init, numerics.key(0))
    params, report = fill.fill({"backbone": shapes}, weights, only="backbone")
    if report.missing:
        raise InputError(f"{path} lacks {brief(report.missing)}, which a vision transformer needs")
    return config, params["backbone"], report


def known_fields(path: str | Path, model: Mapping[str, Any]) -> dict[str, Any]:
    """{field of ViTConfig: value} of the encoder in a published checkpoint, as far as its weights
    and config.json tell. model: a `model` section, whose `heads` count where these do not tell
    them, unless it has another width. Raises InputError as `load_torch`."""
    described, weights = hub.describe(path), torch_in.load(path).tree("teacher")
    known = _known(weights, described.model)
    norm = weights.arrays.get("backbone/norm/scale")
    if model.get("width", 0) in (0, 0 if norm is None else norm.size):
        known = {"heads": model.get("heads", 0)} | known
    return _fields(weights, known)


def _known(weights: Weights, described: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json says of an encoder, and its names and tensors, which count more."""
    return {"norm_eps": weights.norm_eps} | dict(described) | weights.model


def _fields(weights: Weights, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The shape of an encoder from its weights, and what else is known of it."""
    arrays = {
        path.removeprefix("backbone/"): array
        for path, array in weights.arrays.items()
        if path.startswith("backbone/")
    }
    if any(path.startswith("stages/") for path in arrays):
        return _swin_fields(weights, arrays, fields)
    rotates = fields.get("position") == "rope"
    depth = len({path.split("/")[1] for path in arrays if path.startswith("blocks/")})
    missing = [
        name
        for name in ("patch/kernel", "position", "blocks/0/mlp/fc2/kernel")
        if name not in arrays and not (rotates and name == "position")
    ]
    if missing:
        raise InputError(
            f"{weights.source} lacks {', '.join(missing)}, which give the shape of the network"
        )
    width, hidden = arrays["patch/kernel"].shape[1], arrays["blocks/0/mlp/fc2/kernel"].shape[0]
    ratio = (
        hidden / width
        if int(hidden / width * width) == hidden
        else math.nextafter(hidden / width, math.inf)
    )
    side = math.isqrt(arrays["patch/kernel"].shape[0] // 3)
    if rotates:  # any size will do
        grid, position = (fields.get("image_size") or 14 * side) // side, "rope"
    else:
        _, grid = fill.grid_of(arrays["position"].shape[0])
        fixed = fields.get("position") == "sincos" and fill.is_sincos(arrays["position"])
        position = "sincos" if fixed else "learned"
    if 3 * side**2 != arrays["patch/kernel"].shape[0] or grid is None:
        raise InputError(
            f"{weights.source}: patches must be square with 3 channels, and position embeddings a"
            " square grid"
        )
    shown: dict[str, Any] = dict(
        width=width,
        depth=depth,
        patch=side,
        image_size=side * grid,
        mlp_ratio=ratio,
        cls="cls" in arrays,
        registers=len(arrays.get("registers", ())),
        queries=len(arrays.get("queries", ())),
        # How a network starts to learn; any number above 0 makes room for the factors.
        layer_scale=(fields.get("layer_scale") or 1.0) if "blocks/0/ls1/gamma" in arrays else 0.0,
        mask_token="mask_token" in arrays,
        position=position,
    )
    if fields.get("image_size", side * grid) // side != grid:
        raise InputError(
            f"{weights.source} has position embeddings for images of {side * grid} pixels, but its"
            f" config.json says {fields['image_size']}"
        )
    heads = fields.get("heads") or _usual_heads(width, rotates, weights.source)
    return dict(fields) | shown | {"heads": heads}


def _usual_heads(width, rotates, source):
    """Attention heads of published networks of a width. Raises InputError for a width of which none
    is known."""
    if rotates and width == 1280:  # DINOv3's H+
        return 20
    if width in _REGULAR:
        return width // 64
    if width not in _HEADS:
        raise InputError(
            f"{source} does not say how many attention heads its network of width {width} has; add"
            " heads=N (--heads=N; for init_from --config.model.heads=N), or export it once with"
            " --heads=N"
        )
    return _HEADS[width]


# Widths of published networks with heads of 64: timm's, with DINO's, MAE's and DINOv2's among them.
_REGULAR = (192, 256, 320, 384, 512, 640, 768, 832, 896, 1024, 1536)
# Heads of those with others: So400m, ViT-H, g, G and DINOv3's 7B.
_HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16, 4096: 32}


def _swin_fields(
    weights: Weights, arrays: Mapping[str, Any], fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The same of a Swin transformer. Its native image has one window in the last stage."""
    found: dict[int, set[int]] = {}
    for path in arrays:
        if match := re.fullmatch(r"stages/(\d+)/blocks/(\d+)/attn/relative_bias", path):
            found.setdefault(int(match[1]), set()).add(int(match[2]))
    last = len(found) - 1
    needed = ("patch/kernel", "norm/scale", f"stages/{last}/blocks/0/mlp/fc1/kernel")
    if missing := [name for name in needed if name not in arrays]:
        raise InputError(
            f"{weights.source} lacks {', '.join(missing)}, which give the shape of the network"
        )
    tables = [arrays[f"stages/{i}/blocks/0/attn/relative_bias"] for i in (0, last)]
    first, end = ((math.isqrt(len(table)) + 1) // 2 for table in tables)
    width, hidden = arrays["norm/scale"].size, arrays[needed[-1]].shape[1]
    patch = math.isqrt(arrays["patch/kernel"].shape[0] // 3) << last
    shown = dict(
        width=width,
        depth=sum(map(len, found.values())),
        heads=tables[-1].shape[1],
        patch=patch,
        stages=tuple(len(found[i]) for i in sorted(found)),
        window=first,
        image_size=patch * end,
        mlp_ratio=hidden / width,
        cls=False,
        mask_token="mask_token" in arrays,
    )
    return dict(fields) | shown
