"""timm's folders: config.json in both directions, and how its ViT computes differently."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.convert import dinov3, rows, tables
from ssl_jax.convert.described import Described, Folder, Network, side_of, with_scales
from ssl_jax.models import vit

# An architecture of about this width; `model_args` say the rest.
_ARCHITECTURES = {
    192: "vit_tiny_patch16_224",
    384: "vit_small_patch16_224",
    768: "vit_base_patch16_224",
    1024: "vit_large_patch16_224",
    1280: "vit_huge_patch14_224",
}
_GELU = {"erf": "gelu", "tanh": "gelu_tanh"}
_POOLS = {"cls": "token", "mean": "avg"}
_EPS = 1e-6  # of its LayerNorms; no argument that JSON can hold changes it
_SWIN, _SWIN_EPS = "swin_tiny_patch4_window7_224", 1e-5
_DINOV3, _DINOV3_EPS = "vit_small_patch16_dinov3", 1e-5
# Architectures of which no argument says it.
_SIXTEEN_HEADS = "so400m|giantopt|vit_base_patch16_gap"
_TANH = "patch32_siglip|giantopt|so400m_patch16_siglip|large_patch16_siglip(_gap)?_512"
# Settings that belong to an architecture and that neither tensors nor config.json show.
_UNLIKE = {"quickgelu": "its MLPs have another activation", "rope": "it rotates queries and keys"}


def write(network: Network) -> Folder:
    """The folder that `timm.create_model("local-dir:FOLDER", pretrained=True)` loads.

    Raises InputError for what timm's ViT cannot compute.
    """
    c, arrays = network.shape, dict(network.params)
    if c.stages:
        return _swin(network)
    if c.position == "rope":
        return _rotating(network)
    remarks = _remarks(network) + _of_norms(c, _EPS)
    learned = arrays.get("backbone/registers", np.zeros((0, c.width), np.float32))
    if len(learned):  # timm adds a code to every token in front of the patches
        codes = arrays["backbone/position"]
        arrays["backbone/position"] = np.concatenate(
            [codes[: int(c.cls)], np.zeros_like(learned), codes[int(c.cls) :]]
        )
    tensors, _ = rows.write(tables.FAMILIES["timm"].rows, arrays)
    pool = _POOLS.get(network.image, "token" if c.cls else "avg")
    nearest = min(_ARCHITECTURES, key=lambda width: abs(width - c.width))
    arguments = dict(
        img_size=c.image_size,
        patch_size=c.patch,
        embed_dim=c.width,
        depth=c.depth,
        num_heads=c.heads,
        mlp_ratio=c.mlp_ratio,
        class_token=c.cls,
        reg_tokens=len(learned),
        init_values=c.layer_scale or None,
        act_layer=_GELU[c.gelu],
        global_pool=pool,
        fc_norm=False,  # the last norm comes before the average
        dynamic_img_size=True,
    )
    arguments = {name: value for name, value in arguments.items() if value is not None}
    config = _config(c, _ARCHITECTURES[nearest], pool, arguments)
    return Folder(tensors, config, {}, "timm", _ARCHITECTURES[nearest], remarks)


def _config(c: vit.ViTConfig, architecture: str, pool: str, arguments: dict[str, Any]) -> dict:
    """config.json of an architecture with these arguments."""
    return dict(
        architecture=architecture,
        num_classes=0,
        num_features=c.width,
        global_pool=pool,
        model_args=arguments,
        pretrained_cfg=dict(
            tag="ssl_jax",
            custom_load=False,
            input_size=[c.in_channels, c.image_size, c.image_size],
            fixed_input_size=False,
            interpolation="bicubic",
            crop_pct=1.0,  # all of the shorter side, as `ssl_jax.embed`
            crop_mode="center",
            mean=list(c.mean),
            std=list(c.std),
            num_classes=0,
            pool_size=None,
            first_conv="patch_embed.proj",
            classifier="head.fc" if c.stages else "head",
        ),
    )


def _swin(network: Network) -> Folder:
    """The folder of a Swin transformer."""
    c, count, remarks = network.shape, len(network.shape.stages), []
    _check_fixed(c, "Swin transformer", gelu="erf")
    if count != 4:
        raise InputError(
            f"model.stages has {count} stages; Swin transformers of four are exported to timm"
        )
    if not c.shift_first:
        remarks.append(
            f"At sizes that windows of {c.window} tokens do not divide features differ: timm shifts"
            " the grid before it is padded, this network after (model.shift_first=False)."
        )
    remarks += _of_norms(c, _SWIN_EPS)
    tensors, _ = rows.write(tables.FAMILIES["timm_swin"].rows, network.params)
    arguments = dict(
        img_size=c.image_size,
        patch_size=c.patch >> (count - 1),
        embed_dim=c.width >> (count - 1),
        depths=list(c.stages),
        num_heads=[c.heads >> (count - 1 - i) for i in range(count)],
        window_size=c.window,
        mlp_ratio=c.mlp_ratio,
        strict_img_size=False,
        global_pool="avg",
    )
    config = _config(c, _SWIN, "avg", arguments)
    return Folder(tensors, config, {}, "timm", _SWIN, remarks)


def _check_fixed(c: vit.ViTConfig, model: str, **fixed: Any) -> None:
    """Raises InputError for fields that have other values than those of timm's model, which no
    config changes."""
    for key, value in fixed.items():
        if getattr(c, key) != value:
            other = "onnx, stablehlo or safetensors" if c.stages else "hf, whose config holds it"
            raise InputError(
                f"model.{key} is {getattr(c, key)}, but timm's {model} has {value}, which no config"
                f" changes; export --to {other}"
            )


def _of_norms(c: vit.ViTConfig, eps: float) -> list[str]:
    """The remark on timm's LayerNorms, which add `eps`. Raises InputError for a network that adds
    more."""
    if c.norm_eps > eps:
        _check_fixed(c, "architecture", norm_eps=eps)
    if c.norm_eps == eps:
        return []
    return [
        f"timm adds {eps:g} to variances, not {c.norm_eps:g}: features of trained weights differ by"
        f" about {eps / 2:g} of their size."
    ]


def _rotating(network: Network) -> Folder:
    """The folder of a network with rotary position embeddings."""
    c, arrays = network.shape, with_scales(network.params, network.shape)
    gated = c.mlp == "swiglu"
    if c.qkv_bias == "all":
        _check_fixed(c, "DINOv3", qkv_bias="qv")
    if not gated:
        _check_fixed(c, "DINOv3", gelu="erf")
    remarks = _of_norms(c, _DINOV3_EPS) + dinov3.periods_remark(c, "timm")
    pool = _POOLS.get(network.image, "token" if c.cls else "avg")
    arguments = dict(
        img_size=c.image_size,
        patch_size=c.patch,
        embed_dim=c.width,
        depth=c.depth,
        num_heads=c.heads,
        mlp_ratio=c.hidden / c.width,
        class_token=c.cls,
        num_reg_tokens=len(arrays.get("backbone/registers", ())),
        init_values=c.layer_scale or 1.0,
        qkv_bias=c.qkv_bias == "qv",
        swiglu_mlp=gated,
        swiglu_align_to=1,
        rope_temperature=c.rope_base,
        global_pool=pool,
        use_fc_norm=False,  # the last norm comes before the average
    )
    tensors, _ = rows.write(dinov3.timm_rows(gated), arrays)
    return Folder(tensors, _config(c, _DINOV3, pool, arguments), {}, "timm", _DINOV3, remarks)


def _remarks(network: Network) -> list[str]:
    c, remarks = network.shape, []
    if (c.position_resize, c.resize_kernel) != ("exact", "antialias-0.5"):
        remarks.append(
            f"At sizes other than {c.image_size} x {c.image_size} features differ slightly: timm"
            " resizes position embeddings by an antialiased bicubic kernel, this network was made"
            f' for position_resize="{c.position_resize}", resize_kernel="{c.resize_kernel}".'
        )
    return remarks


def read(config: Mapping[str, Any]) -> Described | None:
    """The description in a config.json of timm; None if it is from another library.

    Raises InputError for an architecture whose difference no tensor shows.
    """
    name = config.get("architecture")
    if not isinstance(name, str):
        return None
    rotating = "dinov3" in name
    for word, reason in _UNLIKE.items():
        if word in name and not rotating:
            raise InputError(f"timm's {name} is a network that ssl_jax does not have: {reason}")
    # Old folders have one level; in newer ones the inner says how images were prepared.
    prepared = config.get("pretrained_cfg", config)
    arguments = config.get("model_args", {})
    model: dict[str, Any] = {
        key: tuple(prepared[key])
        for key in ("mean", "std")
        if prepared.get(key) and len(prepared[key]) == 3
    }
    if isinstance(arguments.get("num_heads"), int):  # of a Swin transformer tensors show them
        model["heads"] = arguments["num_heads"]
    elif re.search(_SIXTEEN_HEADS, name):
        model["heads"] = 16
    tanh = re.search(_TANH, name)
    activation = arguments.get("act_layer", "gelu_tanh" if tanh else "gelu")
    if activation not in _GELU.values():
        raise InputError(
            f'act_layer is "{activation}"; known are {" and ".join(sorted(_GELU.values()))}'
        )
    model["gelu"] = next(ours for ours, theirs in _GELU.items() if theirs == activation)
    pool = arguments.get("global_pool", config.get("global_pool", ""))
    image = next((ours for ours, theirs in _POOLS.items() if theirs == pool), "")
    note = f'its image vector is not that of timm, whose global_pool is "{pool}"'
    note = note if pool and not image else ""
    if rotating:
        model["rope_base"] = arguments.get("rope_temperature", 100.0)
        if not arguments.get("rope_rotate_half", True):
            raise InputError("rope_rotate_half is False, which rotates other pairs of channels")
    is_vit, is_swin = rotating or re.match("vit|deit", name), name.startswith("swin_")
    if is_vit:
        model |= side_of(arguments.get("img_size"), "img_size")
    family = "timm_dinov3" if rotating else "timm" if is_vit else "timm_swin" if is_swin else ""
    return Described(family, model, image, note=note)
