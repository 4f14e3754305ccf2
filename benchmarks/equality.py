"""Compares imported networks with timm's and transformers' own: features, blocks, gradients.

    python -m benchmarks equality --write

Networks of ViT-S width, patch 16 and four blocks with random weights, every one of which counts;
each library writes a file of them, which `ssl_jax.convert` reads. Prints a table; --write puts it
into docs/export.md. Needs torch, timm and transformers.
"""

import argparse
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import timm
import torch
import transformers as hf

from experiments import tables
from ssl_jax import convert
from ssl_jax.models import vit

SIZES = ((224, 224), (256, 384), (144, 80))
NATIVE, BLOCKS = SIZES[0][0], 4
_HF = dict(
    hidden_size=384,
    num_hidden_layers=BLOCKS,
    num_attention_heads=6,
    image_size=NATIVE,
    patch_size=16,
)
_TIMM = dict(img_size=NATIVE, patch_size=16, depth=BLOCKS, num_classes=0, pretrained=False)
_GATED = dict(use_gated_mlp=True, hidden_act="silu", query_bias=False, value_bias=False)


def _of_timm(name: str, **changes):
    return lambda: timm.create_model(name, **_TIMM, **changes)


# (network, library) -> makes the library's own.
MODELS = {
    ("ViT", "timm"): _of_timm("vit_small_patch16_224", dynamic_img_size=True),
    ("ViT", "transformers"): lambda: hf.ViTModel(hf.ViTConfig(**_HF, intermediate_size=1536)),
    ("DINOv2", "timm"): _of_timm("vit_small_patch14_dinov2", dynamic_img_size=True),
    ("DINOv2", "transformers"): lambda: hf.Dinov2Model(hf.Dinov2Config(**_HF)),
    ("DINOv2, 4 registers", "timm"): _of_timm(
        "vit_small_patch14_reg4_dinov2", dynamic_img_size=True
    ),
    ("DINOv2, 4 registers", "transformers"): lambda: hf.Dinov2WithRegistersModel(
        hf.Dinov2WithRegistersConfig(**_HF, num_register_tokens=4)
    ),
    ("DINOv3", "timm"): _of_timm("vit_small_patch16_dinov3_qkvb", dynamic_img_size=True),
    ("DINOv3", "transformers"): lambda: hf.DINOv3ViTModel(
        hf.DINOv3ViTConfig(**_HF, intermediate_size=1536, num_register_tokens=4)
    ),
    ("DINOv3, SwiGLU", "timm"): _of_timm("vit_small_plus_patch16_dinov3", dynamic_img_size=True),
    ("DINOv3, SwiGLU", "transformers"): lambda: hf.DINOv3ViTModel(
        hf.DINOv3ViTConfig(**_HF, intermediate_size=1536, num_register_tokens=4, **_GATED)
    ),
}


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/export.md")
    args = parser.parse_args(argv)
    rows = [["network", "library", *(f"{height} x {width}" for height, width in SIZES)]]
    for (network, library), make in MODELS.items():
        # DINO, MAE and timm share the names of a plain ViT.
        family = "timm" if library == "timm" and not network.startswith("DINOv3") else None
        rows.append([network, library, *compared(make(), family)])
        print(" | ".join(rows[-1]), flush=True)
    text = tables.markdown(rows) + (
        "\nLargest difference, relative to the largest value, of class token and patches after the"
        " last norm / the outputs\nof all four blocks / the gradient of a randomly signed sum of"
        f" features with respect to the pixels.\n`python -m benchmarks equality --write`, float32,"
        f" seed 0; torch {torch.__version__}, timm {timm.__version__},\ntransformers"
        f" {hf.__version__}. {tables.provenance()}\n"
    )
    if args.write:
        tables.fill("docs/export.md", "equality", text)
    return 0


def compared(model, family: str | None) -> list[str]:
    """The cells of one network, one for each of SIZES."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "weights.pth")
        torch.save(model.eval().state_dict(), file)
        config, params, _ = convert.load_vit(file, family=family, heads=6)
    cells = []
    for size in SIZES:
        images = np.random.default_rng(0).random((2, *size, 3), np.float32)
        pairs = zip(_ours(config, params, images), _theirs(model, config, images), strict=True)
        shares = [np.abs(ours - theirs).max() / np.abs(theirs).max() for ours, theirs in pairs]
        cells.append(" / ".join(f"{share:.0e}" for share in shares))
    return cells


def _signs(shape) -> np.ndarray:
    return np.random.default_rng(1).choice(np.array([-1, 1], np.float32), shape)


def _ours(config, params, images) -> list[np.ndarray]:
    """Features [B, N, d], outputs of all blocks [4, B, N, d], gradient [B, H, W, 3]."""
    network = vit.vit(config)

    def tokens(out):
        return jnp.concatenate([out.cls[:, None], out.patches], axis=1)

    def total(images):
        options = dict(layers=tuple(range(BLOCKS)), norm_layers=False)
        out = network.apply(params, images, **options)
        features = tokens(out)
        blocks = jnp.stack([tokens(out.layers[i]) for i in range(BLOCKS)])
        return (features * _signs(features.shape)).sum(), (features, blocks)

    (_, (features, blocks)), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(images)
    return [np.asarray(x) for x in (features, blocks, gradient)]


def _theirs(model, config, images) -> list[np.ndarray]:
    """The same of the library's network, whose registers are left out."""
    lists = [x for x in model.modules() if isinstance(x, torch.nn.ModuleList | torch.nn.Sequential)]
    blocks = next(x for x in lists if len(x) == BLOCKS)
    outputs: list[torch.Tensor] = []

    def keep(module, inputs, output):
        outputs.append(output[0] if isinstance(output, tuple) else output)

    def tokens(x):
        return torch.cat([x[:, :1], x[:, 1 + config.registers :]], dim=1)

    hooks = [block.register_forward_hook(keep) for block in blocks]
    pixels = torch.tensor(images, requires_grad=True)
    mean, std = torch.tensor(config.mean), torch.tensor(config.std)
    x = ((pixels - mean) / std).permute(0, 3, 1, 2).float()
    if hasattr(model, "forward_features"):
        features = model.forward_features(x)
    else:
        options = {"interpolate_pos_encoding": True} if isinstance(model, hf.ViTModel) else {}
        features = model(x, **options).last_hidden_state
    for hook in hooks:
        hook.remove()
    features = tokens(features)
    (features * torch.from_numpy(_signs(tuple(features.shape)))).sum().backward()
    stacked = torch.stack([tokens(output) for output in outputs])
    return [x.detach().numpy() for x in (features, stacked, pixels.grad)]
