"""Random checkpoints under published names, and what their networks compute, in float64 NumPy on
PyTorch's layouts.

Written from the architectures, without our tables: [out, in] matrices, patches by convolution."""

import math

import jax
import numpy as np

from ssl_jax.models import position
from tests.models import reference
from tests.models.test_position import torch_bicubic

MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
D, HEADS, DEPTH, PATCH, GRID, HIDDEN = 16, 2, 2, 4, 4, 32


class Numbers:
    """Random float32 tensors, large enough that each of them matters."""

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)

    def __call__(self, *shape) -> np.ndarray:
        return (self._rng.normal(size=shape) * 0.3).astype(np.float32)


def linear(numbers, name: str, fan_in: int, fan_out: int) -> dict:
    return {f"{name}.weight": numbers(fan_out, fan_in), f"{name}.bias": numbers(fan_out)}


def norm(numbers, name: str, width: int) -> dict:
    return {f"{name}.weight": 1 + numbers(width), f"{name}.bias": numbers(width)}


def timm_blocks(numbers, name: str, depth: int, d: int, hidden: int) -> dict:
    out = {}
    for i in range(depth):
        block = f"{name}.{i}"
        out |= norm(numbers, f"{block}.norm1", d)
        out |= linear(numbers, f"{block}.attn.qkv", d, 3 * d)
        out |= linear(numbers, f"{block}.attn.proj", d, d)
        out |= norm(numbers, f"{block}.norm2", d)
        out |= linear(numbers, f"{block}.mlp.fc1", d, hidden)
        out |= linear(numbers, f"{block}.mlp.fc2", hidden, d)
    return out


def encoder(
    seed: int = 0,
    *,
    cls: bool = True,
    depth: int = DEPTH,
    d: int = D,
    patch: int = PATCH,
    grid: int = GRID,
) -> dict:
    """An encoder under the names of DINO, iBOT, SOP, MaSSL, CrIBo, FLSL (without a class token),
    MAE and timm.
    """
    numbers = Numbers(seed)
    out = {"cls_token": numbers(1, 1, d)} if cls else {}
    out["pos_embed"] = numbers(1, cls + grid**2, d)
    out |= {
        "patch_embed.proj.weight": numbers(d, 3, patch, patch),
        "patch_embed.proj.bias": numbers(d),
    }
    return out | timm_blocks(numbers, "blocks", depth, d, 2 * d) | norm(numbers, "norm", d)


def swin(merged_in: int, seed: int = 0) -> dict:
    """A Swin transformer of windows of 3, 3, 3 and 2 tokens under the names of its authors, whose
    stages end with what merges tokens (0), or of timm, where they begin with it (1)."""
    numbers, d = Numbers(seed), 4
    out = {"patch_embed.proj.weight": numbers(d, 3, 2, 2), "patch_embed.proj.bias": numbers(d)}
    out |= norm(numbers, "patch_embed.norm", d)
    for stage, (heads, window) in enumerate(((1, 3), (2, 3), (4, 3), (8, 2))):
        name, merge = f"layers.{stage}.blocks", f"layers.{stage + merged_in}.downsample"
        out |= timm_blocks(numbers, name, 2, d, 4 * d)
        for i in range(2):
            table = f"{name}.{i}.attn.relative_position_bias_table"
            out[table] = numbers((2 * window - 1) ** 2, heads)
        if stage < 3:
            out |= norm(numbers, f"{merge}.norm", 4 * d)
            out[f"{merge}.reduction.weight"] = numbers(2 * d, 4 * d)
            d *= 2
    return out | norm(numbers, "norm", d)


def dinov2(seed: int = 0, *, registers: int = 0, block: str = "blocks.{i}") -> dict:
    """An encoder of DINOv2 under the names of its authors' code."""
    numbers, out = Numbers(seed + 100), {"mask_token": Numbers(seed)(1, D)}
    for name, tensor in encoder(seed).items():
        for i in range(DEPTH):
            name = name.replace(f"blocks.{i}.", f"{block.format(i=i)}.", 1)
        out[name] = tensor
    for i in range(DEPTH):
        out |= {f"{block.format(i=i)}.{ls}.gamma": 1 + numbers(D) for ls in ("ls1", "ls2")}
    return out | ({"register_tokens": numbers(1, registers, D)} if registers else {})


def dinov3(seed: int = 0, *, gated: bool = False) -> dict:
    """An encoder of DINOv3 under the names of its authors' code: keys have a bias that a mask
    hides, periods are rounded to bfloat16."""
    numbers = Numbers(seed + 200)
    out = {name: x for name, x in dinov2(seed).items() if name != "pos_embed"}
    out |= {"storage_tokens": numbers(1, 3, D), "rope_embed.periods": np.float32([1.0, 10.0])}
    for i in range(DEPTH):
        bias, mlp = f"blocks.{i}.attn.qkv.bias", f"blocks.{i}.mlp"
        out[bias][D : 2 * D] = 0
        out[f"{bias}_mask"] = np.repeat(np.float32([1, 0, 1]), D)
        if gated:
            first = {name: out.pop(f"{mlp}.fc1.{name}") for name in ("weight", "bias")}
            out |= {f"{mlp}.w1.{name}": x for name, x in first.items()}
            out |= linear(numbers, f"{mlp}.w2", D, HIDDEN)
            out |= {f"{mlp}.w3.{n}": out.pop(f"{mlp}.fc2.{n}") for n in ("weight", "bias")}
    return out


_DINOV3 = {
    "hf_dinov3": {
        "cls_token": "embeddings.cls_token",
        "storage_tokens": "embeddings.register_tokens",
        "mask_token": "embeddings.mask_token",
        "patch_embed.proj": "embeddings.patch_embeddings",
        "blocks.": "layer.",
        "attn.proj": "attention.o_proj",
        "ls1.gamma": "layer_scale1.lambda1",
        "ls2.gamma": "layer_scale2.lambda1",
        "mlp.w1": "mlp.gate_proj",
        "mlp.w2": "mlp.up_proj",
        "mlp.w3": "mlp.down_proj",
        "mlp.fc1": "mlp.up_proj",
        "mlp.fc2": "mlp.down_proj",
    },
    "timm_dinov3": {
        "storage_tokens": "reg_token",
        "ls1.gamma": "gamma_1",
        "ls2.gamma": "gamma_2",
        "mlp.w1": "mlp.fc1_g",
        "mlp.w2": "mlp.fc1_x",
        "mlp.w3": "mlp.fc2",
    },
}


def dinov3_as(family: str, tensors: dict) -> dict:
    """The same under the names of a library."""
    if family == "dinov3":
        return tensors
    out = {}
    for name, tensor in tensors.items():
        if name.endswith(("bias_mask", "periods")) or (family, name) == TIMM_LACKS:
            continue
        for theirs, other in _DINOV3[family].items():
            name = name.replace(theirs, other)
        block, _, kind = name.partition("attn.qkv.")
        thirds = dict(zip("qkv", np.split(tensor, 3))) if kind else {}
        if kind == "bias" and family == "timm_dinov3":
            out |= {f"{block}attn.{x}_bias": thirds[x] for x in "qv"}
        elif kind and family == "hf_dinov3":
            parts = "qv" if kind == "bias" else "qkv"
            out |= {f"{block}attention.{x}_proj.{kind}": thirds[x] for x in parts}
        else:
            out[name] = tensor[None] if name == "embeddings.mask_token" else tensor
    return out


TIMM_LACKS = "timm_dinov3", "mask_token"


# What Hugging Face calls the parts of timm's encoders and of DINOv2's.
_HF = {
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "mask_token": "embeddings.mask_token",
    "register_tokens": "embeddings.register_tokens",
    "attn.proj": "attention.output.dense",
    "blocks.": "encoder.layer.",
}
_HF_VIT = {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
_HF_DINOV2 = {"ls1.gamma": "layer_scale1.lambda1", "ls2.gamma": "layer_scale2.lambda1"}


def as_hf(tensors: dict, prefix: str = "") -> dict:
    """An encoder, or blocks and a norm, under Hugging Face's published names."""
    scaled = any(".ls1." in name for name in tensors)
    out = {}
    for name, tensor in tensors.items():
        for theirs, hf in (_HF | (_HF_DINOV2 if scaled else _HF_VIT)).items():
            name = name.replace(theirs, hf)
        name = prefix + (f"layer{name}" if name.startswith("norm.") else name)
        if ".attn.qkv." in name:
            for part, piece in zip(("query", "key", "value"), np.split(tensor, 3), strict=True):
                out[name.replace("attn.qkv", f"attention.attention.{part}")] = piece
        else:
            out[name] = tensor
    return out


def dino_head(
    seed: int = 1,
    *,
    d: int = D,
    hidden: int = 32,
    bottleneck: int = 16,
    out: int = 24,
    layers: tuple = ("last_layer",),
) -> dict:
    """Head of the DINO family; `layers` without any: SOP's and MaSSL's."""
    numbers = Numbers(seed)
    head = {}
    for index, (a, b) in zip((0, 2, 4), ((d, hidden), (hidden, hidden), (hidden, bottleneck))):
        head |= linear(numbers, f"head.mlp.{index}", a, b)
    for layer in layers:
        head |= {
            f"head.{layer}.weight_g": 1 + numbers(out, 1),
            f"head.{layer}.weight_v": numbers(out, bottleneck),
        }
    return head


def prefixed(prefix: str, tensors: dict) -> dict:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def mae_decoder(seed: int = 3, width: int = 24) -> dict:
    numbers = Numbers(seed)
    codes = np.pad(position.sincos_2d(GRID, width), ((1, 0), (0, 0)))
    return {
        "mask_token": numbers(1, 1, width),
        "decoder_pos_embed": codes[None].astype(np.float32),
        **linear(numbers, "decoder_embed", D, width),
        **timm_blocks(numbers, "decoder_blocks", 2, width, 4 * width),
        **norm(numbers, "decoder_norm", width),
        **linear(numbers, "decoder_pred", width, 3 * PATCH**2),
    }


def mae(seed: int = 0) -> dict:
    """Encoder and decoder, with the fixed codes of both."""
    t = encoder(seed) | mae_decoder(seed + 3)
    t["pos_embed"][0] = np.pad(position.sincos_2d(GRID, D), ((1, 0), (0, 0)))
    return t


def stellar_encoder(seed: int = 0, heads=("clustering_head", "cls_cluster_head")) -> dict:
    numbers = Numbers(seed)
    t = as_hf(encoder(seed), "encoder.") | linear(numbers, "encoder.pooler.dense", D, D)
    t["sparse_tokens"] = numbers(3, D)
    for head in heads:
        t |= linear(numbers, f"{head}.predictor.layers.0", D, 32)
        t |= linear(numbers, f"{head}.predictor.layers.2", 32, 16)
        t[f"{head}.layer.weight"] = numbers(6, 16)
    return t


def stellar_decoder(seed: int = 50) -> tuple[dict, dict]:
    """(blocks and norm under timm's names, all of the decoder that rebuilds pixels)."""
    numbers = Numbers(seed)
    timm = timm_blocks(numbers, "blocks", 2, 24, 96) | norm(numbers, "norm", 24)
    return timm, {
        **as_hf(timm, "decoder."),
        **linear(numbers, "dense_proj", D, D),
        **linear(numbers, "sparse_proj", D, D),
        **linear(numbers, "decoder_proj", D, 24),
        "position_embedding.positional_encoding_gaussian_matrix": numbers(2, 12),
        "reconstruction_head.weight": numbers(24, 3, PATCH, PATCH),  # ConvTranspose2d
        "reconstruction_head.bias": numbers(3),
    }


def families() -> dict[str, dict]:
    """{key of tables.FAMILIES: a checkpoint that is recognised as of this family}."""
    return {
        "swin": swin(0) | {"masked_embed": Numbers(1)(1, 4)},
        "timm_swin": swin(1),
        "dino": encoder() | dino_head(),
        "cribo": encoder() | dino_head(layers=("last_layer", "last_layer_c")),
        "timm": encoder() | {"head.weight": Numbers(0)(5, D)},
        "vit": encoder(),
        "mae": mae(),
        "hf": as_hf(encoder(), "vit."),
        "dinov2": dinov2(),
        "dinov2_registers": dinov2(registers=4),
        "hf_dinov2": as_hf(dinov2()),
        "hf_dinov2_registers": as_hf(dinov2(registers=4)),
        "dinov3": dinov3(),
        "hf_dinov3": dinov3_as("hf_dinov3", dinov3()),
        "timm_dinov3": dinov3_as("timm_dinov3", dinov3()),
        "stellar": stellar_encoder() | stellar_decoder()[1],
    }


# --- what the networks compute


def resized(codes: np.ndarray, height: int, width: int, *, offset: float) -> np.ndarray:
    """[g * g, d] -> [height * width, d]: torch's bicubic, step g / (target + offset), as torch
    applies it to a given scale factor.
    """
    g = math.isqrt(len(codes))
    grid = codes.reshape(g, g, -1)
    if (height, width) != (g, g):
        for axis, n in enumerate((height, width)):
            grid = np.apply_along_axis(torch_bicubic, axis, grid, n, (n + offset) / g)
    return grid.reshape(height * width, -1)


def _linear(t, name):
    return {"kernel": t[f"{name}.weight"].T, "bias": t[f"{name}.bias"]}


def _norm(t, name):
    return {"scale": t[f"{name}.weight"], "bias": t[f"{name}.bias"]}


def _block(t, name):
    layers = {part: {} for part in ("attn", "mlp")}
    for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
        layers[part.split(".")[0]][part.split(".")[1]] = _linear(t, f"{name}.{part}")
    layers |= {part: _norm(t, f"{name}.{part}") for part in ("norm1", "norm2")}
    scales = {ls: {"gamma": t.get(f"{name}.{ls}.gamma", np.ones(1))} for ls in ("ls1", "ls2")}
    return layers | scales


def forward(tensors: dict, images: np.ndarray, *, offset: float, eps: float) -> np.ndarray:
    """Tokens [B, (1 +) n, d] after the final norm, for images [B, H, W, 3] in [0, 1], of an encoder
    under timm's names.
    """
    t = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    cls, codes, kernel = t.get("cls_token"), t["pos_embed"][0], t["patch_embed.proj.weight"]
    d, p = kernel.shape[0], kernel.shape[-1]
    b, height, width, _ = images.shape
    x = np.moveaxis((images - MEAN) / STD, -1, 1).reshape(b, 3, height // p, p, width // p, p)
    x = np.einsum("bchpwq,dcpq->bhwd", x, kernel).reshape(b, -1, d) + t["patch_embed.proj.bias"]
    x = x + resized(codes[cls is not None :], height // p, width // p, offset=offset)
    if cls is not None:
        x = np.concatenate([np.broadcast_to(cls[0] + codes[:1], (b, 1, d)), x], axis=1)
    if "register_tokens" in t:
        extra = np.broadcast_to(t["register_tokens"], (b, *t["register_tokens"].shape[1:]))
        x = np.concatenate([x[:, :1], extra, x[:, 1:]], axis=1)
    blocks = [_block(t, f"blocks.{i}") for i in range(DEPTH)]
    stack = jax.tree.map(lambda *layers: np.stack(layers), *blocks)
    x = np.stack([reference.blocks(stack, tokens, HEADS, eps=eps)[0] for tokens in x])
    return reference.norm(x, _norm(t, "norm"), eps)


def forward_dinov3(tensors: dict, images: np.ndarray) -> np.ndarray:
    """Tokens [B, 1 + registers + n, d] after the final norm."""
    t = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    kernel, p = t["patch_embed.proj.weight"], PATCH
    b, height, width, _ = images.shape
    grid = height // p, width // p
    x = np.moveaxis((images - MEAN) / STD, -1, 1).reshape(b, 3, grid[0], p, grid[1], p)
    x = np.einsum("bchpwq,dcpq->bhwd", x, kernel).reshape(b, -1, D) + t["patch_embed.proj.bias"]
    first = np.concatenate([t["cls_token"][0], t["storage_tokens"][0]])
    x = np.concatenate([np.broadcast_to(first, (b, *first.shape)), x], axis=1)
    periods = np.array([1.0, 10.0])  # of a head width of 8; both are numbers of bfloat16
    rows, columns = np.meshgrid(
        *(2 * (np.arange(side) + 0.5) / side - 1 for side in grid), indexing="ij"
    )
    turns = [axis.reshape(-1, 1) / periods for axis in (rows, columns)]
    angles = np.pad(2 * np.pi * np.concatenate(turns, 1), ((len(first), 0), (0, 0)))
    gated = "blocks.0.mlp.w1.weight" in t
    for i in range(DEPTH):
        if gated:
            for kind in ("weight", "bias"):
                pair = [t[f"blocks.{i}.mlp.{name}.{kind}"] for name in ("w1", "w2")]
                t[f"blocks.{i}.mlp.fc1.{kind}"] = np.concatenate(pair)
                t[f"blocks.{i}.mlp.fc2.{kind}"] = t[f"blocks.{i}.mlp.w3.{kind}"]
    blocks = [_block(t, f"blocks.{i}") for i in range(DEPTH)]
    stack = jax.tree.map(lambda *layers: np.stack(layers), *blocks)
    kind = "swiglu" if gated else "erf"
    x = [reference.blocks(stack, y, HEADS, kind, 1e-5, angles=angles)[0] for y in x]
    return reference.norm(np.stack(x), _norm(t, "norm"), 1e-5)
