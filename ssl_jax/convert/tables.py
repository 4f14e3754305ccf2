"""The names of published weights: one table of rows per family of checkpoints.

The names are those of the authors' code and, for timm and Hugging Face, of the libraries, against
which they are tested. Of published files, only a DINOv2 was available (see
tests/convert/test_front_door.py).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ssl_jax.convert import dinov3
from ssl_jax.convert.rows import (
    Row,
    dino_mlp,
    hf_blocks,
    hf_dinov2_blocks,
    hf_encoder,
    linear,
    norm,
    pixel_bias,
    pixels,
    same,
    swin_encoder,
    timm_blocks,
    timm_encoder,
    tokens,
    weight_norm,
)

# What the encoder is an attribute of: in training code, and beside a text encoder.
_WRAPPED = (
    "backbone.",
    "encoder.",
    "image_encoder.",
    "vision_encoder.",
    "visual_encoder.",
    "visual.",
    "trunk.",
)


class Family(NamedTuple):
    """Checkpoints whose tensors have the same names.

    title: for messages.
    mark: regular expression of a name that only they have.
    rows: the table.
    prefixes: what may stand before a name, several of them too.
    model: settings of the config's `model` section with which our network computes the same (the
      code of DINO and its descendants resizes position embeddings with an offset of 0.1 cells, timm
      with an antialiased kernel).
    norm_eps: of their LayerNorms; between 1e-12 and 1e-6 the difference is below float32's rounding
      for trained weights.
    method: ours, if the checkpoint belongs to one method.
    teacher: (expression, replacement) for names that belong to the EMA teacher although no prefix
      shows it.
    note: a hint for the user.
    prepare: function applied to {name: array} before the table; None: none.
    """

    title: str
    mark: str
    rows: tuple[Row, ...]
    model: dict[str, Any]
    prefixes: tuple[str, ...] = _WRAPPED
    norm_eps: float = 1e-6
    method: str = ""
    teacher: tuple[tuple[str, str], ...] = ()
    note: str = ""
    prepare: Callable[[Mapping[str, np.ndarray]], dinov3.Prepared] | None = None


_PLAIN = {"stem": "linear"}
_EXACT = _PLAIN | {"gelu": "erf", "position_resize": "exact", "resize_kernel": "keys-0.75"}
_OFFSET = _PLAIN | {"gelu": "erf", "position_resize": "dino_offset", "resize_kernel": "keys-0.75"}
_ANTIALIAS = _PLAIN | {"gelu": "erf", "position_resize": "exact", "resize_kernel": "antialias-0.5"}
_NORMALISED = (
    "images are normalised with ImageNet's mean and deviation here; some of these weights were"
    " trained with 0.5 and 0.5 (model.mean, model.std)"
)

_TIMM = timm_encoder()
_DINOV2 = (
    # Training code stores blocks in chunks: "blocks.0.7" is block 7.
    *timm_encoder("blocks.{i}", "blocks.{_}.{i}", registers="register_tokens"),
    Row("backbone/mask_token", ("mask_token",)),
    *dino_mlp("head/mlp", "dino_head.mlp"),
    *weight_norm("head/last", "dino_head.last_layer"),
    *dino_mlp("patch_head/mlp", "ibot_head.mlp"),
    *weight_norm("patch_head/last", "ibot_head.last_layer"),
)
_ROTATED = _PLAIN | {"gelu": "erf", "position": "rope", "rope_base": 100.0}


def _both(rows: Callable[[bool], tuple[Row, ...]]) -> tuple[Row, ...]:
    """Of networks with and without gated MLPs."""
    return tuple(dict.fromkeys((*rows(False), *rows(True))))


_HF_DINOV2 = (
    *hf_encoder(hf_dinov2_blocks("backbone/blocks/{i}", "encoder.layer.{i}"), mask_token=same),
    Row("backbone/registers", ("embeddings.register_tokens",), tokens),
)
_HF_DINOV2_PREFIXES = ("dinov2.", "dinov2_with_registers.", *_WRAPPED)

# In the order in which they are recognised.
FAMILIES: dict[str, Family] = {
    "swin": Family(
        title="Swin transformer of EsViT, iBOT or SOP",
        mark=r"layers\.0\.downsample\..*",
        model=_PLAIN | {"gelu": "erf", "shift_first": False},
        rows=(
            *swin_encoder(0),
            Row("backbone/mask_token", ("masked_embed",)),
            *dino_mlp("head/mlp", "head.mlp"),
            *weight_norm("head/last", "head.last_layer"),
            *weight_norm("patch_head/last", "head.last_layer2"),
        ),
    ),
    "timm_swin": Family(
        title="timm Swin transformer",
        mark=r"layers\.3\.downsample\..*",
        model=_PLAIN | {"gelu": "erf", "shift_first": True},
        norm_eps=1e-5,
        rows=swin_encoder(1),
    ),
    "stellar": Family(
        title="STELLAR",
        mark=r"sparse_tokens|clustering_head\..*",
        prefixes=(),
        model=_EXACT,
        norm_eps=1e-12,
        method="stellar",
        teacher=(
            (r"teacher_(encoder\..*|sparse_tokens)", r"\1"),
            (r"teacher_head\.(.*)", r"clustering_head.\1"),
            (r"teacher_cls_head\.(.*)", r"cls_cluster_head.\1"),
        ),
        rows=(
            *hf_encoder(
                hf_blocks("backbone/blocks/{i}", "encoder.encoder.layer.{i}", "encoder.layers.{i}"),
                prefix="encoder.",
            ),
            Row("backbone/queries", ("sparse_tokens",)),
            *linear("factorise/dense", "dense_proj"),
            *linear("factorise/sparse", "sparse_proj"),
            Row("constants/fourier", ("position_embedding.positional_encoding_gaussian_matrix",)),
            *linear("decoder/embed", "decoder_proj"),
            *hf_blocks("decoder/blocks/{i}", "decoder.encoder.layer.{i}", "decoder.layers.{i}"),
            *norm("decoder/norm", "decoder.layernorm"),
            Row("decoder/out/kernel", ("reconstruction_head.weight",), pixels),
            Row("decoder/out/bias", ("reconstruction_head.bias",), pixel_bias),
            *linear("token_head/projection/mlp/0", "clustering_head.predictor.layers.0"),
            *linear("token_head/projection/mlp/1", "clustering_head.predictor.layers.2"),
            Row("token_head/prototypes", ("clustering_head.layer.weight",)),
            *linear("cls_head/projection/mlp/0", "cls_cluster_head.predictor.layers.0"),
            *linear("cls_head/projection/mlp/1", "cls_cluster_head.predictor.layers.2"),
            Row("cls_head/prototypes", ("cls_cluster_head.layer.weight",)),
        ),
    ),
    "dinov3": Family(
        title="DINOv3",
        mark=r"storage_tokens|rope_embed\.periods",
        model=_ROTATED,
        norm_eps=1e-5,
        rows=(
            *_both(dinov3.authors_rows),
            *dino_mlp("head/mlp", "dino_head.mlp"),
            *weight_norm("head/last", "dino_head.last_layer"),
            *dino_mlp("patch_head/mlp", "ibot_head.mlp"),
            *weight_norm("patch_head/last", "ibot_head.last_layer"),
        ),
        prepare=dinov3.from_authors,
    ),
    "hf_dinov3": Family(
        title="Hugging Face DINOv3",
        mark=r"embeddings\.patch_embeddings\.weight",
        model=_ROTATED,
        norm_eps=1e-5,
        rows=_both(dinov3.hugging_face_rows),
        prepare=dinov3.from_hugging_face,
    ),
    "timm_dinov3": Family(
        title="timm DINOv3",
        mark=r"blocks\.\d+\.gamma_1",
        model=_ROTATED,
        norm_eps=1e-5,
        rows=_both(dinov3.timm_rows),
        prepare=dinov3.from_timm,
    ),
    "hf_dinov2_registers": Family(
        title="Hugging Face DINOv2 with registers",
        mark=r"embeddings\.register_tokens",
        prefixes=_HF_DINOV2_PREFIXES,
        model=_ANTIALIAS,
        rows=_HF_DINOV2,
    ),
    "hf_dinov2": Family(
        title="Hugging Face DINOv2",
        mark=r"encoder\.layer\.\d+\.layer_scale1\.lambda1",
        prefixes=_HF_DINOV2_PREFIXES,
        model=_EXACT,
        rows=_HF_DINOV2,
    ),
    "hf": Family(
        title="Hugging Face ViT or ViTMAE",
        mark=r"embeddings\.patch_embeddings\.projection\.weight",
        prefixes=("vit.", "ijepa.", *_WRAPPED),
        model=_EXACT,
        norm_eps=1e-12,
        note=_NORMALISED,
        rows=(
            *hf_encoder(hf_blocks("backbone/blocks/{i}", "encoder.layer.{i}", "layers.{i}")),
            *linear("decoder/embed", "decoder.decoder_embed"),
            Row("decoder/mask_token", ("decoder.mask_token",), tokens),
            Row("decoder/position", ("decoder.decoder_pos_embed",), tokens),
            *hf_blocks(
                "decoder/blocks/{i}",
                "decoder.decoder_layers.{i}",
                "decoder.decoder_encoder.layer.{i}",
            ),
            *norm("decoder/norm", "decoder.decoder_norm"),
            *linear("decoder/out", "decoder.decoder_pred"),
        ),
    ),
    "mae": Family(
        title="MAE",
        mark=r"decoder_blocks\..*",
        model=_EXACT,
        rows=(
            *_TIMM,
            *linear("decoder/embed", "decoder_embed"),
            Row("decoder/mask_token", ("mask_token",), tokens),
            Row("decoder/position", ("decoder_pos_embed",), tokens),
            *timm_blocks("decoder/blocks/{i}", "decoder_blocks.{i}"),
            *norm("decoder/norm", "decoder_norm"),
            *linear("decoder/out", "decoder_pred"),
        ),
    ),
    "dinov2_registers": Family(
        title="DINOv2 with registers", mark=r"register_tokens", model=_ANTIALIAS, rows=_DINOV2
    ),
    "dinov2": Family(title="DINOv2", mark=r"mask_token", model=_OFFSET, rows=_DINOV2),
    "cribo": Family(
        title="CrIBo",
        mark=r"head\.last_layer_c\..*",
        model=_OFFSET,
        rows=(
            *_TIMM,
            *dino_mlp("head/trunk/mlp", "head.mlp"),
            *weight_norm("head/images", "head.last_layer"),
            *weight_norm("head/objects", "head.last_layer_c"),
        ),
    ),
    "dino": Family(
        title="DINO family (DINO, iBOT, SOP, MaSSL, FLSL)",
        mark=r"head\.(?:mlp|last_layer)\..*|masked_embed",
        model=_OFFSET,
        rows=(
            *_TIMM,
            Row("backbone/mask_token", ("masked_embed",)),  # iBOT, SOP, MaSSL
            *dino_mlp("head/mlp", "head.mlp"),
            *weight_norm("head/last", "head.last_layer"),  # not SOP, MaSSL
            *weight_norm("patch_head/last", "head.last_layer2"),  # iBOT
        ),
    ),
    "timm": Family(
        title="timm ViT",
        mark=r"head\.weight|fc_norm\..*|reg_token",
        model=_ANTIALIAS,
        note=_NORMALISED,
        rows=_TIMM,
    ),
    # An encoder alone, under names that DINO, MAE and timm share: nothing tells how they resize
    # position embeddings, so nothing is asked.
    "vit": Family(
        title="ViT under names that DINO, MAE and timm share",
        mark=r"patch_embed\.proj\.weight",
        model={"gelu": "erf"},
        note=(
            "these names do not tell how position embeddings are resized: set"
            " model.position_resize=dino_offset for an encoder of DINO, iBOT, SOP, MaSSL, CrIBo,"
            " FLSL or DINOv2, and model.resize_kernel=antialias-0.5 for one of timm"
        ),
        rows=_TIMM,
    ),
}
