"""Whose weights are called what: one table per family of published checkpoints, from PyTorch names
to our paths.

A row reads: a tensor of this name (a regular expression of the whole name) becomes the parameter at
this path, changed like this. `{0}` and `{1}` in a path stand for the groups of the expression;
`[1/3]` behind a path says that the tensor is the second of three pieces that lie side by side along
the last axis (query, key and value that are stored apart).

The names are those of the authors' code and, for timm and Hugging Face, of the libraries, against
which they are tested. No published file was at hand: untested on real weights.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

# --- changes of shape: PyTorch keeps [out, in] where we keep [in, out]


def same(x):
    """[n] as it is."""
    return x


def matrix(x):
    """Linear: [out, in] -> [in, out]."""
    return x.T


def patches(x):
    """Convolution over patches: [d, channels, p, p] -> [p * p * channels, d], rows ordered by row,
    column, channel.
    """
    return x.transpose(2, 3, 1, 0).reshape(-1, x.shape[0])


def rows(x):
    """Tokens and position codes: [1, n, d] or [n, d] -> [n, d]."""
    return x.reshape(-1, x.shape[-1])


def gain(x):
    """Gain of a weight-normalised layer: [K, 1] -> [1, K]."""
    return x.reshape(1, -1)


def norms(x):
    """The gain that a plain [K, in] matrix amounts to: [1, K]."""
    return np.linalg.norm(x, axis=1)[None]


def pixels(x):
    """Transposed convolution back to pixels: [d, channels, p, p] -> [d, p * p * channels], as in
    `patches`; a Linear as `matrix`.
    """
    return x.T if x.ndim == 2 else x.transpose(0, 2, 3, 1).reshape(x.shape[0], -1)


# --- rows


class Row(NamedTuple):
    name: str
    path: str
    change: Callable = same


def linear(name: str, path: str, piece: str = "") -> tuple[Row, ...]:
    return Row(rf"{name}\.weight", f"{path}/kernel{piece}", matrix), Row(
        rf"{name}\.bias", f"{path}/bias{piece}"
    )


def norm(name: str, path: str) -> tuple[Row, ...]:
    return Row(rf"{name}\.weight", f"{path}/scale"), Row(rf"{name}\.bias", f"{path}/bias")


def weight_norm(name: str, path: str) -> tuple[Row, ...]:
    """A weight-normalised Linear under torch's old names, its new ones (torch >= 2), and with the
    norm multiplied in.
    """
    return (
        Row(rf"{name}\.(?:weight_g|parametrizations\.weight\.original0)", f"{path}/gain", gain),
        Row(
            rf"{name}\.(?:weight_v|parametrizations\.weight\.original1)",
            f"{path}/direction",
            matrix,
        ),
        Row(rf"{name}\.weight", f"{path}/gain", norms),
        Row(rf"{name}\.weight", f"{path}/direction", matrix),
    )


def timm_blocks(name: str, path: str) -> tuple[Row, ...]:
    """Transformer blocks under timm's names, which DINO, its descendants and MAE took over."""
    name, path = rf"{name}\.(\d+)", f"{path}/{{0}}"
    return (
        *norm(rf"{name}\.norm1", f"{path}/norm1"),
        *linear(rf"{name}\.attn\.qkv", f"{path}/attn/qkv"),
        *linear(rf"{name}\.attn\.proj", f"{path}/attn/proj"),
        *norm(rf"{name}\.norm2", f"{path}/norm2"),
        *linear(rf"{name}\.mlp\.fc1", f"{path}/mlp/fc1"),
        *linear(rf"{name}\.mlp\.fc2", f"{path}/mlp/fc2"),
    )


def hf_blocks(name: str, path: str) -> tuple[Row, ...]:
    """Transformer blocks under Hugging Face's names: as published, and as transformers >= 5 has
    them in memory.
    """
    name, path = rf"{name}\.(\d+)", f"{path}/{{0}}"
    return (
        *norm(rf"{name}\.layernorm_before", f"{path}/norm1"),
        *linear(rf"{name}\.attention\.(?:attention\.query|q_proj)", f"{path}/attn/qkv", "[0/3]"),
        *linear(rf"{name}\.attention\.(?:attention\.key|k_proj)", f"{path}/attn/qkv", "[1/3]"),
        *linear(rf"{name}\.attention\.(?:attention\.value|v_proj)", f"{path}/attn/qkv", "[2/3]"),
        *linear(rf"{name}\.attention\.(?:output\.dense|o_proj)", f"{path}/attn/proj"),
        *norm(rf"{name}\.layernorm_after", f"{path}/norm2"),
        *linear(rf"{name}\.(?:intermediate\.dense|mlp\.fc1)", f"{path}/mlp/fc1"),
        *linear(rf"{name}\.(?:output\.dense|mlp\.fc2)", f"{path}/mlp/fc2"),
    )


TIMM_ENCODER = (
    Row(r"patch_embed\.proj\.weight", "backbone/patch/kernel", patches),
    Row(r"patch_embed\.proj\.bias", "backbone/patch/bias"),
    Row(r"cls_token", "backbone/cls", rows),
    Row(r"pos_embed", "backbone/position", rows),
    *timm_blocks("blocks", "backbone/blocks"),
    *norm("norm", "backbone/norm"),
)

HF_ENCODER = (
    Row(r"embeddings\.patch_embeddings\.projection\.weight", "backbone/patch/kernel", patches),
    Row(r"embeddings\.patch_embeddings\.projection\.bias", "backbone/patch/bias"),
    Row(r"embeddings\.cls_token", "backbone/cls", rows),
    Row(r"embeddings\.position_embeddings", "backbone/position", rows),
    Row(r"embeddings\.mask_token", "backbone/mask_token", rows),
    *hf_blocks(r"(?:encoder\.layer|layers)", "backbone/blocks"),
    *norm("layernorm", "backbone/norm"),
)

# --- families


class Family(NamedTuple):
    """Checkpoints whose tensors have the same names.

    title: for messages. mark: a name that only they have. rows: the table. prefix: what may stand
    before a name. model: what the config's `model` section must say for our network to compute what
    theirs does (errata of the papers: DINO and its descendants resize position codes with an offset
    of 0.1 cells, timm with an antialiased kernel). norm_eps: of their LayerNorms; a config has
    1e-6, and the difference is below float32's rounding for trained weights. method: ours, where
    the checkpoint is that of one method. teacher: (expression, replacement) of names that belong to
    the EMA teacher although nothing in front of them says so. note: what to look after."""

    title: str
    mark: str
    rows: tuple[Row, ...]
    prefix: str
    model: dict[str, str]
    norm_eps: float
    method: str = ""
    teacher: tuple[tuple[str, str], ...] = ()
    note: str = ""


_EXACT = {"gelu": "erf", "position_resize": "exact", "resize_kernel": "keys-0.75"}
_OFFSET = {"gelu": "erf", "position_resize": "dino_offset", "resize_kernel": "keys-0.75"}
_WRAPPED = r"(?:backbone|encoder)\."
_NORMALISED = (
    "images are normalised with ImageNet's mean and deviation here; some of these weights were"
    " trained with 0.5 and 0.5"
)

# In the order in which they are recognised.
FAMILIES: dict[str, Family] = {
    "stellar": Family(
        title="STELLAR",
        mark=r"sparse_tokens|clustering_head\..*",
        prefix="",
        model=_EXACT,
        norm_eps=1e-12,
        method="stellar",
        teacher=(
            (r"teacher_(encoder\..*|sparse_tokens)", r"\1"),
            (r"teacher_head\.(.*)", r"clustering_head.\1"),
            (r"teacher_cls_head\.(.*)", r"cls_cluster_head.\1"),
        ),
        rows=(
            *(row._replace(name=r"encoder\." + row.name) for row in HF_ENCODER),
            Row(r"sparse_tokens", "backbone/queries"),
            *linear(r"dense_proj", "factorise/dense"),
            *linear(r"sparse_proj", "factorise/sparse"),
            Row(r"position_embedding\.positional_encoding_gaussian_matrix", "frozen/fourier"),
            *linear(r"decoder_proj", "decoder/embed"),
            *hf_blocks(r"decoder\.(?:encoder\.layer|layers)", "decoder/blocks"),
            *norm(r"decoder\.layernorm", "decoder/norm"),
            Row(r"reconstruction_head\.weight", "decoder/out/kernel", pixels),
            Row(r"reconstruction_head\.bias", "decoder/out/bias"),
            *linear(r"clustering_head\.predictor\.layers\.0", "token_head/projection/mlp/0"),
            *linear(r"clustering_head\.predictor\.layers\.2", "token_head/projection/mlp/1"),
            Row(r"clustering_head\.layer\.weight", "token_head/prototypes"),
            *linear(r"cls_cluster_head\.predictor\.layers\.0", "cls_head/projection/mlp/0"),
            *linear(r"cls_cluster_head\.predictor\.layers\.2", "cls_head/projection/mlp/1"),
            Row(r"cls_cluster_head\.layer\.weight", "cls_head/prototypes"),
        ),
    ),
    "hf": Family(
        title="Hugging Face ViT or ViTMAE",
        mark=r"embeddings\.patch_embeddings\.projection\.weight",
        prefix=r"(?:vit|backbone)\.",
        model=_EXACT,
        norm_eps=1e-12,
        note=_NORMALISED,
        rows=(
            *HF_ENCODER,
            *linear(r"decoder\.decoder_embed", "decoder/embed"),
            Row(r"decoder\.mask_token", "decoder/mask_token", rows),
            Row(r"decoder\.decoder_pos_embed", "decoder/position", rows),
            *hf_blocks(r"decoder\.(?:decoder_layers|decoder_encoder\.layer)", "decoder/blocks"),
            *norm(r"decoder\.decoder_norm", "decoder/norm"),
            *linear(r"decoder\.decoder_pred", "decoder/out"),
        ),
    ),
    "mae": Family(
        title="MAE",
        mark=r"decoder_blocks\..*",
        prefix=_WRAPPED,
        model=_EXACT,
        norm_eps=1e-6,
        rows=(
            *TIMM_ENCODER,
            *linear(r"decoder_embed", "decoder/embed"),
            Row(r"mask_token", "decoder/mask_token", rows),
            Row(r"decoder_pos_embed", "decoder/position", rows),
            *timm_blocks("decoder_blocks", "decoder/blocks"),
            *norm("decoder_norm", "decoder/norm"),
            *linear(r"decoder_pred", "decoder/out"),
        ),
    ),
    "cribo": Family(
        title="CrIBo",
        mark=r"head\.last_layer_c\..*",
        prefix=_WRAPPED,
        model=_OFFSET,
        norm_eps=1e-6,
        rows=(
            *TIMM_ENCODER,
            *linear(
                r"head\.mlp\.0", "head/trunk/mlp/0"
            ),  # a Sequential: Linear at 0, 2, 4, GELU between
            *linear(r"head\.mlp\.2", "head/trunk/mlp/1"),
            *linear(r"head\.mlp\.4", "head/trunk/mlp/2"),
            *weight_norm(r"head\.last_layer", "head/images"),
            *weight_norm(r"head\.last_layer_c", "head/objects"),
        ),
    ),
    "dino": Family(
        title="DINO family (DINO, iBOT, SOP, MaSSL, FLSL)",
        mark=r"head\.(?:mlp|last_layer)\..*|masked_embed",
        prefix=_WRAPPED,
        model=_OFFSET,
        norm_eps=1e-6,
        rows=(
            *TIMM_ENCODER,
            Row(r"masked_embed", "backbone/mask_token", rows),  # iBOT, SOP, MaSSL
            *linear(r"head\.mlp", "head/mlp/0"),  # a head of one layer
            *linear(r"head\.mlp\.0", "head/mlp/0"),
            *linear(r"head\.mlp\.2", "head/mlp/1"),
            *linear(r"head\.mlp\.4", "head/mlp/2"),
            *weight_norm(r"head\.last_layer", "head/last"),  # not SOP, MaSSL
            *weight_norm(r"head\.last_layer2", "patch_head/last"),  # iBOT
        ),
    ),
    "timm": Family(
        title="timm ViT",
        mark=r"head\.weight|fc_norm\..*",
        prefix=_WRAPPED,
        model={"gelu": "erf", "position_resize": "exact", "resize_kernel": "antialias-0.5"},
        norm_eps=1e-6,
        note=_NORMALISED,
        rows=TIMM_ENCODER,
    ),
    # An encoder alone, under names that DINO, MAE and timm share: nothing tells how they resize
    # position codes, so nothing is asked.
    "vit": Family(
        title="ViT under names that DINO, MAE and timm share",
        mark=r"patch_embed\.proj\.weight",
        prefix=_WRAPPED,
        model={"gelu": "erf"},
        norm_eps=1e-6,
        note=(
            "these names do not say how position codes are resized: set"
            " model.position_resize=dino_offset for an encoder of DINO, iBOT, SOP, MaSSL, CrIBo or"
            " FLSL, and model.resize_kernel=antialias-0.5 for one of timm"
        ),
        rows=TIMM_ENCODER,
    ),
}
