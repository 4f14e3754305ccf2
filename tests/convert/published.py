"""Random checkpoints under published names, and what their networks compute, in float64 NumPy on
PyTorch's layouts.

Written from the architectures, without our tables: [out, in] matrices, patches by convolution, one
function per naming."""

import math

import numpy as np
from scipy.special import erf

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


def hf_blocks(numbers, name: str, depth: int, d: int, hidden: int) -> dict:
    out = {}
    for i in range(depth):
        block = f"{name}.{i}"
        for part in ("query", "key", "value"):
            out |= linear(numbers, f"{block}.attention.attention.{part}", d, d)
        out |= linear(numbers, f"{block}.attention.output.dense", d, d)
        out |= linear(numbers, f"{block}.intermediate.dense", d, hidden)
        out |= linear(numbers, f"{block}.output.dense", hidden, d)
        out |= norm(numbers, f"{block}.layernorm_before", d)
        out |= norm(numbers, f"{block}.layernorm_after", d)
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


def hf_dinov2(seed: int = 0, *, registers: int = 0) -> dict:
    """The same under Hugging Face's published names."""
    renamed = {
        "patch_embed.proj": "embeddings.patch_embeddings.projection",
        "cls_token": "embeddings.cls_token",
        "pos_embed": "embeddings.position_embeddings",
        "mask_token": "embeddings.mask_token",
        "register_tokens": "embeddings.register_tokens",
        "attn.proj": "attention.output.dense",
        "ls1.gamma": "layer_scale1.lambda1",
        "ls2.gamma": "layer_scale2.lambda1",
    }
    out = {}
    for name, tensor in dinov2(seed, registers=registers).items():
        for theirs, hf in renamed.items():
            name = name.replace(theirs, hf)
        name = name.replace("blocks.", "encoder.layer.")
        if name.startswith("norm."):
            name = f"layer{name}"
        if ".attn.qkv." in name:
            for part, piece in zip(("query", "key", "value"), np.split(tensor, 3), strict=True):
                out[name.replace("attn.qkv", f"attention.attention.{part}")] = piece
        else:
            out[name] = tensor
    return out


def hf_encoder(seed: int = 0, prefix: str = "") -> dict:
    """The same under Hugging Face's published names."""
    numbers = Numbers(seed)
    out = {
        f"{prefix}embeddings.cls_token": numbers(1, 1, D),
        f"{prefix}embeddings.position_embeddings": numbers(1, 1 + GRID**2, D),
        f"{prefix}embeddings.patch_embeddings.projection.weight": numbers(D, 3, PATCH, PATCH),
        f"{prefix}embeddings.patch_embeddings.projection.bias": numbers(D),
    }
    return (
        out
        | hf_blocks(numbers, f"{prefix}encoder.layer", DEPTH, D, HIDDEN)
        | norm(numbers, f"{prefix}layernorm", D)
    )


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


# --- what the networks compute


def cubic(x: np.ndarray, a: float) -> np.ndarray:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def resized(codes: np.ndarray, height: int, width: int, *, offset: float) -> np.ndarray:
    """[g * g, d] -> [height * width, d]: torch's bicubic, step g / (target + offset), as torch
    applies it to a given scale factor.
    """
    g = math.isqrt(len(codes))
    if (height, width) == (g, g):
        return codes
    grid = codes.reshape(g, g, -1)
    out = np.zeros((height, width, codes.shape[1]))
    for i in range(height):
        for j in range(width):
            y, x = ((k + 0.5) * g / (n + offset) - 0.5 for k, n in ((i, height), (j, width)))
            for r in range(math.floor(y) - 1, math.floor(y) + 3):
                for c in range(math.floor(x) - 1, math.floor(x) + 3):
                    weight = cubic(np.array(y - r), -0.75) * cubic(np.array(x - c), -0.75)
                    out[i, j] += weight * grid[min(max(r, 0), g - 1), min(max(c, 0), g - 1)]
    return out.reshape(height * width, -1)


def _norm(x, t, name, eps):
    x = x - x.mean(-1, keepdims=True)
    return (
        x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * t[f"{name}.weight"] + t[f"{name}.bias"]
    )


def _linear(x, t, name):
    return x @ t[f"{name}.weight"].T + t[f"{name}.bias"]


def forward(
    tensors: dict, images: np.ndarray, *, offset: float, eps: float, names: str = "timm"
) -> np.ndarray:
    """Tokens [B, (1 +) n, d] after the final norm, for images [B, H, W, 3] in [0, 1]. names: "timm"
    or "hf".
    """
    t = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    hf = names == "hf"
    start = "embeddings.patch_embeddings.projection" if hf else "patch_embed.proj"
    cls = t.get("embeddings.cls_token" if hf else "cls_token")
    codes = t["embeddings.position_embeddings" if hf else "pos_embed"][0]
    kernel = t[f"{start}.weight"]
    d, p = kernel.shape[0], kernel.shape[-1]
    b, height, width, _ = images.shape
    x = np.moveaxis((images - MEAN) / STD, -1, 1).reshape(b, 3, height // p, p, width // p, p)
    x = np.einsum("bchpwq,dcpq->bhwd", x, kernel).reshape(b, -1, d) + t[f"{start}.bias"]
    x = x + resized(codes[cls is not None :], height // p, width // p, offset=offset)
    if cls is not None:
        x = np.concatenate([np.broadcast_to(cls[0] + codes[:1], (b, 1, d)), x], axis=1)
    if "register_tokens" in t:
        extra = np.broadcast_to(t["register_tokens"], (b, *t["register_tokens"].shape[1:]))
        x = np.concatenate([x[:, :1], extra, x[:, 1:]], axis=1)
    block = "encoder.layer" if hf else "blocks"
    depth = len({name.split(f"{block}.")[1].split(".")[0] for name in t if name.startswith(block)})
    for i in range(depth):
        x = _hf_block(x, t, f"{block}.{i}", eps) if hf else _timm_block(x, t, f"{block}.{i}", eps)
    return _norm(x, t, "layernorm" if hf else "norm", eps)


def _attend(q, k, v):
    b, n, d = q.shape
    q, k, v = (y.reshape(b, n, HEADS, d // HEADS).swapaxes(1, 2) for y in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(d // HEADS)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(b, n, d)


def _gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def _timm_block(x, t, name, eps):
    q, k, v = np.split(
        _linear(_norm(x, t, f"{name}.norm1", eps), t, f"{name}.attn.qkv"), 3, axis=-1
    )
    ls1, ls2 = (t.get(f"{name}.{ls}.gamma", 1.0) for ls in ("ls1", "ls2"))
    x = x + ls1 * _linear(_attend(q, k, v), t, f"{name}.attn.proj")
    hidden = _gelu(_linear(_norm(x, t, f"{name}.norm2", eps), t, f"{name}.mlp.fc1"))
    return x + ls2 * _linear(hidden, t, f"{name}.mlp.fc2")


def _hf_block(x, t, name, eps):
    y = _norm(x, t, f"{name}.layernorm_before", eps)
    mixed = _attend(
        *(_linear(y, t, f"{name}.attention.attention.{part}") for part in ("query", "key", "value"))
    )
    x = x + _linear(mixed, t, f"{name}.attention.output.dense")
    y = _gelu(_linear(_norm(x, t, f"{name}.layernorm_after", eps), t, f"{name}.intermediate.dense"))
    return x + _linear(y, t, f"{name}.output.dense")
