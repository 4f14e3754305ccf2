"""Rows of a table of names, which map published tensors to our parameters and back.

row = Row("blocks/{i}/mlp/fc1/kernel", ("blocks.{i}.mlp.fc1.weight",), matrix)
read([row], {"blocks.0.mlp.fc1.weight": w})         # {"blocks/0/mlp/fc1/kernel": w.T}
write([row], {"blocks/0/mlp/fc1/kernel": kernel})   # {"blocks.0.mlp.fc1.weight": kernel.T}
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from ssl_jax.config import InputError

# --- layouts: PyTorch keeps [out, in] where we keep [in, out]


class Layout(NamedTuple):
    """read: a published array -> ours; write: the way back."""

    read: Callable[[np.ndarray], np.ndarray]
    write: Callable[[np.ndarray], np.ndarray]


def _same(x):
    return x


def _read_patches(x):
    if x.ndim != 4 or x.shape[1] != 3 or x.shape[2] != x.shape[3]:
        raise ValueError("patches must be square and have 3 channels")
    return x.transpose(2, 3, 1, 0).reshape(-1, x.shape[0])


def _write_patches(x):
    side = math.isqrt(x.shape[0] // 3)
    return x.reshape(side, side, 3, -1).transpose(3, 2, 0, 1)


def _read_pixels(x):
    return x.T if x.ndim == 2 else x.transpose(0, 2, 3, 1).reshape(x.shape[0], -1)


def _write_pixels(x):
    side = math.isqrt(x.shape[1] // 3)
    if 3 * side**2 != x.shape[1]:
        return x.T
    return x.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)


def _write_pixel_bias(x):
    side = math.isqrt(x.size // 3)
    if 3 * side**2 != x.size:
        return x
    if not np.array_equal(x, np.tile(x[:3], side**2)):
        raise InputError(
            "the decoder's output bias differs between the pixels of a patch, but the published"
            " layout has one number per channel, so it cannot hold these weights"
        )
    return x[:3]


# [n] as it is.
same = Layout(_same, _same)
# Linear: [out, in] and [in, out].
matrix = Layout(np.transpose, np.transpose)
# Convolution over patches: [d, 3, p, p] and [p * p * 3, d], rows ordered by row, column, channel.
patches = Layout(_read_patches, _write_patches)
# Tokens and position embeddings: [1, n, d] (or [n, d]) and [n, d].
tokens = Layout(lambda x: x.reshape(-1, x.shape[-1]), lambda x: x[None])
# Gain of a weight-normalised layer: [K, 1] and [1, K].
gain = Layout(lambda x: x.reshape(1, -1), lambda x: x.reshape(-1, 1))
# Transposed convolution back to pixels: [d, 3, p, p] and [d, p * p * 3], or a Linear to codes.
pixels = Layout(_read_pixels, _write_pixels)
# Its bias: one number per channel, which `fill` repeats for all pixels.
pixel_bias = Layout(_same, _write_pixel_bias)
# The gain that a plain [K, in] matrix amounts to, [1, K].
norms = Layout(lambda x: np.linalg.norm(x, axis=1)[None], _same)

# --- rows


class Row(NamedTuple):
    """One parameter.

    path: ours; names: published ones, the first of which is written. "{i}" stands for a number, the
      same on both sides; "{_}" in a name for any number.
    layout: how the two arrays differ.
    piece: (index, count): the published tensor is one of so many that lie side by side along our
      last axis (query, key and value that are stored apart).
    written: False for another published form of parameters that have their own row.
    """

    path: str
    names: tuple[str, ...]
    layout: Layout = same
    piece: tuple[int, int] = (0, 1)
    written: bool = True


def _pattern(template: str) -> str:
    """The regular expression of a path or name with "{i}" and "{_}"."""
    escaped = re.escape(template)
    return escaped.replace(r"\{i\}", r"(?P<i>\d+)").replace(r"\{_\}", r"\d+")


def front(prefixes: Collection[str]) -> str:
    """The regular expression of any number of these texts."""
    return f"(?:{'|'.join(map(re.escape, prefixes))})*" if prefixes else ""


def matches(row: Row, name: str, prefixes: Collection[str] = ()) -> re.Match | None:
    """The match if `name`, with or without some of the prefixes, is a name of the row."""
    patterns = (f"{front(prefixes)}{_pattern(template)}" for template in row.names)
    return next((m for pattern in patterns if (m := re.fullmatch(pattern, name))), None)


def read(
    rows: Iterable[Row], tensors: Mapping[str, np.ndarray], prefixes: Collection[str] = ()
) -> tuple[dict[str, np.ndarray], dict[str, list[str]], list[str]]:
    """Translates published tensors.

    Returns:
      ({our path: float32 array}, {our path: names it was made of}, names that no row knows).

    Raises:
      InputError: a piece of a parameter is not there, there twice, or of a shape that no such
        parameter has.
    """
    pieces: dict[str, dict[int, np.ndarray]] = {}
    counts: dict[str, int] = {}
    origins: dict[str, list[str]] = {}
    left = []
    for name, tensor in tensors.items():
        pairs = [(match, row) for row in rows if (match := matches(row, name, prefixes))]
        if not pairs:
            left.append(name)
        for match, row in pairs:
            path = row.path.format(**match.groupdict())
            index, counts[path] = row.piece
            if index in pieces.setdefault(path, {}):
                raise InputError(f"{origins[path][-1]} and {name} would both be {path}")
            try:
                pieces[path][index] = row.layout.read(np.asarray(tensor, np.float32))
            except (IndexError, ValueError) as error:
                shape = np.shape(tensor)
                why = f" ({error})" if row.layout is patches else ""
                raise InputError(f"{name} cannot be {path}: its shape is {shape}{why}") from error
            origins.setdefault(path, []).append(name)
    for path, parts in pieces.items():
        if len(parts) != counts[path]:
            raise InputError(
                f"{' + '.join(origins[path])} are not all {counts[path]} pieces of {path}"
            )
    arrays = {
        path: np.concatenate([parts[i] for i in sorted(parts)], axis=-1)
        if len(parts) > 1
        else parts[0]
        for path, parts in pieces.items()
    }
    return arrays, origins, left


def write(
    rows: Iterable[Row], arrays: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Our parameters {path: array} under their published names, and the paths that no row knows.

    `read` of the result gives the arrays back. Patches and pixels must have 3 channels.

    Raises:
      InputError: values that the published form cannot express.
    """
    tensors, left = {}, []
    for path, array in arrays.items():
        pairs = [
            (match, row)
            for row in rows
            if row.written and (match := re.fullmatch(_pattern(row.path), path))
        ]
        if not pairs:
            left.append(path)
        for match, row in pairs:
            index, count = row.piece
            piece = np.split(np.asarray(array), count, axis=-1)[index]
            tensors[row.names[0].format(**match.groupdict())] = row.layout.write(piece)
    return tensors, left


# --- rows of usual layers


def linear(path: str, *names: str, piece: tuple[int, int] = (0, 1)) -> tuple[Row, ...]:
    """Weight and bias of a Linear."""
    return (
        Row(f"{path}/kernel", tuple(f"{name}.weight" for name in names), matrix, piece),
        Row(f"{path}/bias", tuple(f"{name}.bias" for name in names), same, piece),
    )


def norm(path: str, *names: str) -> tuple[Row, ...]:
    """Scale and bias of a LayerNorm."""
    return (
        Row(f"{path}/scale", tuple(f"{name}.weight" for name in names)),
        Row(f"{path}/bias", tuple(f"{name}.bias" for name in names)),
    )


def weight_norm(path: str, name: str) -> tuple[Row, ...]:
    """A weight-normalised Linear under torch's old names, its new ones (torch >= 2), and with the
    norm multiplied in.
    """
    new = f"{name}.parametrizations.weight.original"
    return (
        Row(f"{path}/gain", (f"{name}.weight_g", f"{new}0"), gain),
        Row(f"{path}/direction", (f"{name}.weight_v", f"{new}1"), matrix),
        Row(f"{path}/gain", (f"{name}.weight",), norms, written=False),
        Row(f"{path}/direction", (f"{name}.weight",), matrix, written=False),
    )


def dino_mlp(path: str, name: str) -> tuple[Row, ...]:
    """A Sequential with Linear at 0, 2, 4 and GELU between; with one layer, a Linear by itself."""
    return (
        *linear(f"{path}/0", f"{name}.0", name),
        *linear(f"{path}/1", f"{name}.2"),
        *linear(f"{path}/2", f"{name}.4"),
    )


def timm_blocks(path: str, *names: str) -> tuple[Row, ...]:
    """Transformer blocks under timm's names, which DINO, its descendants and MAE took over."""

    def of(part):
        return tuple(f"{name}.{part}" for name in names)

    return (
        *norm(f"{path}/norm1", *of("norm1")),
        *linear(f"{path}/attn/qkv", *of("attn.qkv")),
        *linear(f"{path}/attn/proj", *of("attn.proj")),
        Row(f"{path}/ls1/gamma", of("ls1.gamma")),
        *norm(f"{path}/norm2", *of("norm2")),
        *linear(f"{path}/mlp/fc1", *of("mlp.fc1"), *of("mlp.w12")),  # DINOv2 giant: gate and value
        *linear(f"{path}/mlp/fc2", *of("mlp.fc2"), *of("mlp.w3")),
        Row(f"{path}/ls2/gamma", of("ls2.gamma")),
    )


def timm_encoder(*blocks: str, registers: str = "reg_token") -> tuple[Row, ...]:
    """The encoder of timm, DINO and MAE; blocks: what a block is called, if not "blocks.{i}"."""
    return (
        Row("backbone/patch/kernel", ("patch_embed.proj.weight",), patches),
        Row("backbone/patch/bias", ("patch_embed.proj.bias",)),
        Row("backbone/cls", ("cls_token",), tokens),
        Row("backbone/position", ("pos_embed",), tokens),
        Row("backbone/registers", (registers,), tokens),
        *timm_blocks("backbone/blocks/{i}", *(blocks or ("blocks.{i}",))),
        *norm("backbone/norm", "norm"),
    )


def swin_encoder(merged_in: int) -> tuple[Row, ...]:
    """A Swin transformer of four stages under the names of its authors, which EsViT and iBOT took
    over, and of timm. merged_in: what follows a stage is named as part of it (0) or of the next
    (1)."""
    found = [
        Row("backbone/patch/kernel", ("patch_embed.proj.weight",), patches),
        Row("backbone/patch/bias", ("patch_embed.proj.bias",)),
        *norm("backbone/patch_norm", "patch_embed.norm"),
        *norm("backbone/norm", "norm"),
    ]
    for stage in range(4):
        ours, merge = f"backbone/stages/{stage}", f"layers.{stage + merged_in}.downsample"
        block, table = f"layers.{stage}.blocks.{{i}}", "attn.relative_position_bias_table"
        found += [
            *timm_blocks(f"{ours}/blocks/{{i}}", block),
            Row(f"{ours}/blocks/{{i}}/attn/relative_bias", (f"{block}.{table}",)),
            *norm(f"{ours}/merge_norm", f"{merge}.norm"),
            Row(f"{ours}/merge/kernel", (f"{merge}.reduction.weight",), matrix),
        ]
    return tuple(found)


def _hf_attention(path: str, of: Callable) -> tuple[Row, ...]:
    """Query, key, value and projection under Hugging Face's names: as published, and as
    transformers >= 5 has them in memory.
    """
    return (
        *linear(
            f"{path}/attn/qkv", *of("attention.attention.query", "attention.q_proj"), piece=(0, 3)
        ),
        *linear(
            f"{path}/attn/qkv", *of("attention.attention.key", "attention.k_proj"), piece=(1, 3)
        ),
        *linear(
            f"{path}/attn/qkv", *of("attention.attention.value", "attention.v_proj"), piece=(2, 3)
        ),
        *linear(f"{path}/attn/proj", *of("attention.output.dense", "attention.o_proj")),
    )


def hf_blocks(path: str, *names: str) -> tuple[Row, ...]:
    """Transformer blocks of Hugging Face's ViT."""

    def of(*parts):
        return tuple(f"{name}.{part}" for name in names for part in parts)

    return (
        *norm(f"{path}/norm1", *of("layernorm_before")),
        *_hf_attention(path, of),
        *norm(f"{path}/norm2", *of("layernorm_after")),
        *linear(f"{path}/mlp/fc1", *of("intermediate.dense", "mlp.fc1")),
        *linear(f"{path}/mlp/fc2", *of("output.dense", "mlp.fc2")),
    )


def hf_dinov2_blocks(path: str, *names: str) -> tuple[Row, ...]:
    """Transformer blocks of Hugging Face's DINOv2."""

    def of(*parts):
        return tuple(f"{name}.{part}" for name in names for part in parts)

    # Of DINOv2 giant: gate and value, which transformers >= 5 has apart in memory.
    gated = linear(f"{path}/mlp/fc1", *of("mlp.weights_in"))
    gated += linear(f"{path}/mlp/fc1", *of("mlp.gate_proj"), piece=(0, 2))
    gated += linear(f"{path}/mlp/fc1", *of("mlp.up_proj"), piece=(1, 2))
    gated += linear(f"{path}/mlp/fc2", *of("mlp.weights_out", "mlp.down_proj"))
    return (
        *norm(f"{path}/norm1", *of("norm1")),
        *_hf_attention(path, of),
        Row(f"{path}/ls1/gamma", of("layer_scale1.lambda1")),
        *norm(f"{path}/norm2", *of("norm2")),
        *linear(f"{path}/mlp/fc1", *of("mlp.fc1")),
        *linear(f"{path}/mlp/fc2", *of("mlp.fc2")),
        *(row._replace(written=False) for row in gated),
        Row(f"{path}/ls2/gamma", of("layer_scale2.lambda1")),
    )


def hf_encoder(
    blocks: tuple[Row, ...], prefix: str = "", mask_token: Layout = tokens
) -> tuple[Row, ...]:
    """Hugging Face's encoder, with these rows for its blocks."""
    projection = f"{prefix}embeddings.patch_embeddings.projection"
    return (
        Row("backbone/patch/kernel", (f"{projection}.weight",), patches),
        Row("backbone/patch/bias", (f"{projection}.bias",)),
        Row("backbone/cls", (f"{prefix}embeddings.cls_token",), tokens),
        Row("backbone/position", (f"{prefix}embeddings.position_embeddings",), tokens),
        Row("backbone/mask_token", (f"{prefix}embeddings.mask_token",), mask_token),
        *blocks,
        *norm("backbone/norm", f"{prefix}layernorm"),
    )
