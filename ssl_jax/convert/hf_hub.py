"""transformers' folders: config.json and preprocessor_config.json in both directions, and which of
its models a network is."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.convert import dinov3, rows, tables
from ssl_jax.convert.described import Described, Folder, Network, side_of, with_scales
from ssl_jax.models.shape import ViTConfig

_GELU = {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}
# model_type: (its class, family of its tensors).
_MODELS = {
    "vit": ("ViTModel", "hf"),
    "ijepa": ("IJepaModel", "hf"),
    "vit_mae": ("ViTMAEModel", "hf"),
    "dinov2": ("Dinov2Model", "hf_dinov2"),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", "hf_dinov2_registers"),
    "dinov3_vit": ("DINOv3ViTModel", "hf_dinov3"),
}
_ELSEWHERE = {  # model types of networks that look like ViTs
    "eva02": "RoPE instead of position embeddings",
    "clip": "a norm in front of the blocks",
    "siglip": "an attention pooling head",
}


def write(network: Network) -> Folder:
    """The folder that `transformers.AutoModel.from_pretrained(FOLDER)` loads.

    Raises InputError for what no model of transformers computes.
    """
    c, arrays, kind = network.shape, dict(network.params), _kind(network)
    name, family = _MODELS[kind]
    if kind == "dinov3_vit":
        return _rotating(network)
    config = _config(c, kind, _GELU[c.gelu])
    config |= dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, qkv_bias=True)
    extra: dict[str, np.ndarray] = {}
    if kind in ("vit", "ijepa"):
        config |= dict(intermediate_size=c.hidden)
    if kind == "vit":  # a pooler that hands the class token on
        extra["pooler.dense.weight"] = np.eye(c.width, dtype=np.float32)
        extra["pooler.dense.bias"] = np.zeros(c.width, np.float32)
        config |= dict(pooler_act="linear", pooler_output_size=c.width)
    if family != "hf":
        config |= dict(mlp_ratio=c.hidden // c.width, use_swiglu_ffn=False, layerscale_value=1.0)
    if kind == "dinov2":
        config |= dict(use_mask_token=False)
    if kind == "dinov2_with_registers":
        config |= dict(num_register_tokens=len(arrays["backbone/registers"]))
        # It always owns a mask vector and LayerScale.
        arrays["backbone/mask_token"] = np.zeros((1, c.width), np.float32)
        arrays = with_scales(arrays, c)
    tensors, _ = rows.write(tables.FAMILIES[family].rows, arrays)
    texts = {"preprocessor_config.json": _preparation(network)}
    return Folder(
        tensors | extra, config, texts, "transformers", name, _remarks(network, kind, family)
    )


def _config(c: ViTConfig, kind: str, act: str) -> dict[str, Any]:
    """What config.json has for every model."""
    return dict(
        model_type=kind,
        architectures=[_MODELS[kind][0]],
        hidden_size=c.width,
        num_hidden_layers=c.depth,
        num_attention_heads=c.heads,
        hidden_act=act,
        layer_norm_eps=c.norm_eps,
        image_size=c.image_size,
        patch_size=c.patch,
        num_channels=c.in_channels,
        torch_dtype="float32",
    )


def _rotating(network: Network) -> Folder:
    """The folder of a network with rotary position embeddings."""
    c, arrays = network.shape, dict(network.params)
    name, _ = _MODELS["dinov3_vit"]
    gated = c.mlp == "swiglu"
    config = _config(c, "dinov3_vit", "silu" if gated else _GELU[c.gelu])
    config |= dict(
        intermediate_size=c.hidden,
        use_gated_mlp=gated,
        query_bias=c.qkv_bias != "none",
        key_bias=c.qkv_bias == "all",
        value_bias=c.qkv_bias != "none",
        num_register_tokens=len(arrays.get("backbone/registers", ())),
        rope_theta=c.rope_base,
        pos_embed_rescale=None,
    )
    arrays["backbone/mask_token"] = np.zeros((1, c.width), np.float32)
    arrays.setdefault("backbone/registers", np.zeros((0, c.width), np.float32))
    arrays = with_scales(arrays, c)
    remarks = dinov3.periods_remark(c, "transformers")
    texts = {"preprocessor_config.json": _preparation(network)}
    tensors = dinov3.to_hugging_face(arrays, c)
    return Folder(tensors, config, texts, "transformers", name, remarks)


def modules(network: Network) -> tuple[rows.Row, ...]:
    """The names in memory, since transformers 5, of the model that computes this network. Raises
    InputError if there is none."""
    kind = _kind(network)
    if kind != "dinov3_vit":
        found = tables.FAMILIES[_MODELS[kind][1]].rows
        return tuple(row._replace(names=row.names[-1:]) for row in found)
    found = dinov3.hugging_face_names(network.shape.mlp == "swiglu")
    return tuple(row._replace(names=(f"model.{row.names[0]}",)) for row in found)


def _kind(network: Network) -> str:
    """The model_type that computes this network. Raises InputError if there is none."""
    c, registers = network.shape, "backbone/registers" in network.params
    if c.position == "rope":
        if not c.cls:
            raise InputError(
                "transformers' DINOv3 has a class token, this network none (model.cls=False);"
                " export --to timm, whose model can do without"
            )
        return "dinov3_vit"
    if not c.cls:
        needs = [
            text
            for text, used in (
                ("LayerScale (model.layer_scale)", c.layer_scale > 0),
                ("registers or query tokens", registers),
            )
            if used
        ]
        if needs:
            raise InputError(
                f"no model of transformers has {' and '.join(needs)} without a class token"
                " (model.cls=False); export --to timm, whose ViT has"
            )
        return "ijepa"
    if not registers and not c.layer_scale:
        return "vit"
    if c.hidden % c.width:
        raise InputError(
            f"model.mlp_ratio is {c.mlp_ratio:g}, but transformers' models with LayerScale or"
            " registers take whole numbers only; export --to timm"
        )
    return "dinov2_with_registers" if registers else "dinov2"


def _preparation(network: Network) -> dict[str, Any]:
    """preprocessor_config.json: shorter side, central square, mean and deviation, as
    `ssl_jax.embed` prepares images."""
    c = network.shape
    return dict(
        image_processor_type="BitImageProcessor",
        do_convert_rgb=True,
        do_resize=True,
        size={"shortest_edge": c.image_size},
        resample=3,  # bicubic
        do_center_crop=True,
        crop_size={"height": c.image_size, "width": c.image_size},
        do_rescale=True,
        rescale_factor=1 / 255,
        do_normalize=True,
        image_mean=list(c.mean),
        image_std=list(c.std),
    )


def _remarks(network: Network, kind: str, family: str) -> list[str]:
    c, rule = network.shape, tables.FAMILIES[family].model
    remarks = []
    if any(getattr(c, key) != rule[key] for key in ("position_resize", "resize_kernel")):
        kernel = "antialiased bicubic" if "antialias" in rule["resize_kernel"] else "bicubic"
        remarks.append(
            f"At sizes other than {c.image_size} x {c.image_size} features differ slightly:"
            f" {_MODELS[kind][0]} resizes position embeddings by a{'n' * (kernel[0] == 'a')}"
            f' {kernel} kernel, this network was made for position_resize="{c.position_resize}",'
            f' resize_kernel="{c.resize_kernel}".'
        )
    if family == "hf":
        remarks.append(
            f"Images of another size than {c.image_size} x {c.image_size} need"
            " model(images, interpolate_pos_encoding=True)."
        )
    return remarks


def read(config: Mapping[str, Any], preparation: Mapping[str, Any]) -> Described | None:
    """The description in config.json and preprocessor_config.json ({} = missing) of transformers;
    None if the first is not from transformers.

    Raises InputError for a model that this package does not have.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return None
    if kind in _ELSEWHERE:
        raise InputError(
            f'model_type "{kind}" is a network that ssl_jax does not have: {_ELSEWHERE[kind]}'
        )
    if not preparation.get("do_normalize", True):
        preparation = {**preparation, "image_mean": (0.0,) * 3, "image_std": (1.0,) * 3}
    model: dict[str, Any] = {
        ours: tuple(preparation[theirs])
        for ours, theirs in (("mean", "image_mean"), ("std", "image_std"))
        if preparation.get(theirs)
    }
    if model and not preparation.get("do_rescale", True):
        raise InputError(
            "preprocessor_config.json normalises pixels of 0 to 255 (do_rescale is false); this"
            " package normalises pixels of 0 to 1"
        )
    activation = config.get("hidden_act", "gelu")
    activations = {**{theirs: ours for ours, theirs in _GELU.items()}, "gelu_new": "tanh"}
    gated = bool(config.get("use_gated_mlp"))
    if gated and activation != "silu":
        raise InputError(
            f'hidden_act is "{activation}" with use_gated_mlp; gated MLPs have "silu" here'
        )
    if gated or config.get("use_swiglu_ffn"):
        activation = "gelu"  # of no MLP
    if activation not in activations:
        raise InputError(
            f'hidden_act is "{activation}"; known are {", ".join(sorted(activations))}'
        )
    model["gelu"] = activations[activation]
    if "num_attention_heads" in config:
        model["heads"] = config["num_attention_heads"]
    if "layer_norm_eps" in config:
        model["norm_eps"] = config["layer_norm_eps"]
    if kind == "dinov3_vit":
        model["rope_base"] = config.get("rope_theta", 100.0)
    if kind in _MODELS:
        model |= side_of(config.get("image_size"), "image_size")
    return Described(_MODELS[kind][1] if kind in _MODELS else "", model, "")
