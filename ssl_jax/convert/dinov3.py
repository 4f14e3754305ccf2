"""DINOv3's networks under the names of its authors' code, of Hugging Face and of timm.

Besides parameters, the authors' files hold the periods of the rotary position embeddings, and masks
that say which of query, key and value have a bias.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ssl_jax.config import InputError
from ssl_jax.convert import rows
from ssl_jax.convert.rows import Row, linear, matrix, norm, patches, tokens
from ssl_jax.models import rope
from ssl_jax.models.shape import ViTConfig

_BASE = 100.0  # of the periods of all published networks
_BLOCK = "backbone/blocks/{i}"


class Prepared(NamedTuple):
    """Tensors in the form that `rows.read` translates.

    tensors: {name: array}. origins: {name: name in the file}, where it was made of another one.
    model: what the config's `model` section must say beside the table's.
    """

    tensors: dict[str, np.ndarray]
    origins: dict[str, str]
    model: dict[str, Any]


def periods_remark(shape: ViTConfig, library: str) -> list[str]:
    """The remark about a library that does not round periods."""
    if not shape.rope_rounded:
        return []
    return [
        f"{library} computes exact periods, this network has them rounded to bfloat16"
        " (model.rope_rounded): features differ slightly."
    ]


# --- the authors' code


def authors_rows(gated: bool) -> tuple[Row, ...]:
    """An encoder; gated: its MLPs are SwiGLUs."""
    mlp = (("w1", "w2"), "w3") if gated else (("fc1",), "fc2")
    return (
        *_tokens("cls_token", "storage_tokens", "patch_embed.proj"),
        Row("backbone/mask_token", ("mask_token",)),
        _JOINT,
        *_block("blocks.{i}", "attn", "proj", "ls{}.gamma", *mlp),
    )


# One matrix for query, key and value.
_JOINT = Row(f"{_BLOCK}/attn/qkv/kernel", ("blocks.{i}.attn.qkv.weight",), matrix)


def _tokens(cls: str, registers: str, patch: str) -> tuple[Row, ...]:
    return (
        Row("backbone/patch/kernel", (f"{patch}.weight",), patches),
        Row("backbone/patch/bias", (f"{patch}.bias",)),
        Row("backbone/cls", (cls,), tokens),
        Row("backbone/registers", (registers,), tokens),
        *norm("backbone/norm", "norm"),
    )


def _block(
    block: str, attention: str, out: str, scale: str, first: tuple[str, ...], last: str
) -> tuple[Row, ...]:
    """A block without the matrices of query, key and value.

    Args:
      block: its name. attention, and in it out: the last layer. scale: of LayerScale {}.
      first: the first layer of the MLP, or gate and value of a SwiGLU. last: its last layer.
    """
    heads = f"{block}.{attention}"
    pieces = [(name, (i, len(first))) for i, name in enumerate(first)]
    return (
        *norm(f"{_BLOCK}/norm1", f"{block}.norm1"),
        *norm(f"{_BLOCK}/norm2", f"{block}.norm2"),
        # Biases of all three, or of query and value.
        Row(f"{_BLOCK}/attn/qkv/bias", (f"{heads}.qkv.bias",)),
        Row(f"{_BLOCK}/attn/q_bias", (f"{heads}.q_bias",)),
        Row(f"{_BLOCK}/attn/v_bias", (f"{heads}.v_bias",)),
        *linear(f"{_BLOCK}/attn/proj", f"{heads}.{out}"),
        *(Row(f"{_BLOCK}/ls{i}/gamma", (f"{block}.{scale.format(i)}",)) for i in (1, 2)),
        *(
            row
            for name, piece in pieces
            for row in linear(f"{_BLOCK}/mlp/fc1", f"{block}.mlp.{name}", piece=piece)
        ),
        *linear(f"{_BLOCK}/mlp/fc2", f"{block}.mlp.{last}"),
    )


def from_authors(tensors: Mapping[str, np.ndarray]) -> Prepared:
    """Masked biases as those of query and value, periods as settings.

    Raises InputError for a norm of the class token alone, a bias of the key that counts, periods of
    another kind.
    """
    found, origins = dict(tensors), dict[str, str]()
    model: dict[str, Any] = {"rope_rounded": False}
    _check_no_codes(tensors)
    for name in tensors:
        if re.fullmatch(r"(.*\.)?cls_norm\..*", name):
            raise InputError(f"{name} belongs to a norm of the class token alone, which ours lacks")
        if name.endswith("rope_embed.periods"):
            periods = found.pop(name)
            model |= {"rope_rounded": _rounded(name, periods)}
            if norm := [x for other, x in tensors.items() if other.endswith("norm1.weight")]:
                model |= {"heads": max(1, norm[0].size // (4 * periods.size))}
        if name.endswith(".bias_mask"):
            bias = name.removesuffix("_mask")
            query, key, value = np.split(found.pop(bias) * found.pop(name), 3)
            if np.any(key):
                raise InputError(f"{bias} has a key part that {name} lets through; it must be 0")
            for part, array in (("q_bias", query), ("v_bias", value)):
                new = bias.removesuffix("qkv.bias") + part
                found[new], origins[new] = array, bias
    return Prepared(found, origins, model)


def _check_no_codes(tensors: Mapping[str, np.ndarray]) -> None:
    """Refuses other networks of the same names, which add position embeddings: InputError."""
    others = ("pos_embed", "position_embeddings", "relative_position_bias_table")
    for name in tensors:
        if name.endswith(others):
            raise InputError(
                f"{name} belongs to another network, such as BEiT or EVA; of networks with gamma_1,"
                " storage_tokens or rope only DINOv3's are read, which have no position embeddings"
            )


def _rounded(name: str, periods: np.ndarray) -> bool:
    """Whether these periods are those of base 100 rounded to bfloat16, or exact."""
    for rounded in (False, True):
        wanted = rope.periods(4 * periods.size, _BASE, rounded)
        if np.allclose(periods, wanted, rtol=1e-6, atol=0):
            return rounded
    raise InputError(f"{name} are not 100^(k / {periods.size}), exact or rounded to bfloat16")


# --- Hugging Face


def hugging_face_rows(gated: bool) -> tuple[Row, ...]:
    """As `authors_rows`."""
    mlp = (("gate_proj", "value_proj") if gated else ("up_proj",), "down_proj")
    names = ("cls_token", "register_tokens", "patch_embeddings")
    return (
        *_tokens(*(f"embeddings.{name}" for name in names)),
        Row("backbone/mask_token", ("embeddings.mask_token",), tokens),
        *(
            _JOINT._replace(names=(f"layer.{{i}}.attention.{part}_proj.weight",), piece=(i, 3))
            for i, part in enumerate("qkv")
        ),
        *_block("layer.{i}", "attention", "o_proj", "layer_scale{}.lambda1", *mlp),
    )


def hugging_face_names(gated: bool) -> tuple[Row, ...]:
    """The same with the names of the files, to be written."""
    found = hugging_face_rows(gated)
    return tuple(
        row._replace(names=tuple(name.replace("value_proj", "up_proj") for name in row.names))
        for row in found
    )


def from_hugging_face(tensors: Mapping[str, np.ndarray]) -> Prepared:
    """Biases under the names of `_block`, and `up_proj`, which is the whole first layer of an MLP
    or the value beside a gate, under a name of its own in the second case."""
    found, origins = {name: x for name, x in tensors.items() if x.size}, {}  # no registers
    _check_no_codes(tensors)

    def rename(old, new):
        found[new], origins[new] = found.pop(old), old

    for name in tensors:
        block, _, kind = name.rpartition("mlp.gate_proj.")
        if block:
            rename(f"{block}mlp.up_proj.{kind}", f"{block}mlp.value_proj.{kind}")
        attention = name.removesuffix("q_proj.bias")
        if attention == name:
            continue
        if f"{attention}k_proj.bias" in tensors:
            parts = [found.pop(f"{attention}{part}_proj.bias") for part in "qkv"]
            new = f"{attention}qkv.bias"
            found[new], origins[new] = np.concatenate(parts), name
        else:
            rename(name, f"{attention}q_bias")
            rename(f"{attention}v_proj.bias", f"{attention}v_bias")
    return Prepared(found, origins, {"rope_rounded": False})


def to_hugging_face(arrays: Mapping[str, np.ndarray], shape: ViTConfig) -> dict[str, np.ndarray]:
    """The tensors of an encoder {path: array} of that shape."""
    tensors, _ = rows.write(hugging_face_names(shape.mlp == "swiglu"), arrays)
    for name in list(tensors):
        if name.endswith("attention.qkv.bias"):
            pieces, attention = np.split(tensors.pop(name), 3), name.removesuffix("qkv.bias")
            tensors |= {f"{attention}{x}_proj.bias": y for x, y in zip("qkv", pieces)}
        elif name.endswith(("attention.q_bias", "attention.v_bias")):
            tensors[f"{name.removesuffix('_bias')}_proj.bias"] = tensors.pop(name)
    return tensors


# --- timm


def timm_rows(gated: bool) -> tuple[Row, ...]:
    """As `authors_rows`."""
    mlp = (("fc1_g", "fc1_x") if gated else ("fc1",), "fc2")
    return (
        *_tokens("cls_token", "reg_token", "patch_embed.proj"),
        _JOINT,
        *_block("blocks.{i}", "attn", "proj", "gamma_{}", *mlp),
    )


def from_timm(tensors: Mapping[str, np.ndarray]) -> Prepared:
    """Raises InputError for other networks of the same names."""
    _check_no_codes(tensors)
    return Prepared(dict(tensors), {}, {"rope_rounded": False})
