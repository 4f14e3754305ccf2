"""Times DINO's step of ViT-S/16 in PyTorch, eager and compiled, as a measure of `bench.py steps`.

    python launch/bench_torch.py --batch 64

Two global views of 224 and ten local ones of 96 pixels, a head with 65,536 prototypes, a teacher as
a moving average, AdamW; bfloat16 autocast, fused attention and a fused optimizer. No data are read:
random images on the device. Prints and writes OUT/torch.json.
"""

import argparse
import copy
import json
import pathlib
import statistics
import sys
import time
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

_ROUND = 5  # steps that are timed together


class Sizes(NamedTuple):
    """Of network and views."""

    width: int = 384
    depth: int = 12
    heads: int = 6
    patch: int = 16
    hidden: int = 2048
    bottleneck: int = 256
    prototypes: int = 65536
    large: int = 224
    local: int = 96
    locals: int = 10


VITS = Sizes()
TOY = Sizes(32, 2, 2, hidden=64, bottleneck=16, prototypes=128)  # for a test


class Block(nn.Module):
    """As in timm: one product for queries, keys and values, fused attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        wide, narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(wide, nn.GELU(), narrow)

    def forward(self, x):
        parts = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class ViT(nn.Module):
    """Images [B, 3, s, s] -> class tokens [B, width]."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        width, patch = sizes.width, sizes.patch
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.grid = sizes.large // patch
        self.position = nn.Parameter(0.02 * torch.randn(1, width, self.grid, self.grid))
        self.cls_position = nn.Parameter(torch.zeros(1, 1, width))
        self.blocks = nn.Sequential(*(Block(width, sizes.heads) for _ in range(sizes.depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, images):
        x = self.patches(images)
        position = self.position
        if x.shape[-1] != self.grid:
            position = F.interpolate(position, x.shape[-2:], mode="bicubic", antialias=True)
        x = (x + position).flatten(2).transpose(1, 2)
        x = torch.cat([(self.cls + self.cls_position).expand(len(x), -1, -1), x], dim=1)
        return self.norm(self.blocks(x)[:, 0])


class Head(nn.Module):
    """Three layers, L2 norm, and rows of unit length."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        hidden, bottleneck = sizes.hidden, sizes.bottleneck
        self.mlp = nn.Sequential(
            *(nn.Linear(sizes.width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU()),
            nn.Linear(hidden, bottleneck),
        )
        self.prototypes = nn.Parameter(torch.randn(sizes.prototypes, bottleneck))

    def forward(self, x):
        return F.linear(F.normalize(self.mlp(x), dim=-1), F.normalize(self.prototypes, dim=-1))


def make_step(
    batch: int,
    device: str,
    *,
    compiled: bool,
    sizes: Sizes = VITS,
    dtype: torch.dtype = torch.bfloat16,
):
    """A function of no arguments that makes one step; what it returns comes later from a GPU."""
    student = nn.Sequential(ViT(sizes), Head(sizes)).to(device)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, weight_decay=0.04, fused=True)
    center = torch.zeros(1, sizes.prototypes, device=device)
    large = torch.rand(2 * batch, 3, sizes.large, sizes.large, device=device)
    local = torch.rand(sizes.locals * batch, 3, sizes.local, sizes.local, device=device)
    pairs = 2 * (1 + sizes.locals) * batch

    def loss_of(large, local, center):
        with torch.no_grad():
            logits = teacher(large)
        targets = ((logits - center) / 0.04).float().softmax(-1).unflatten(0, (2, -1))
        logits_of_student = torch.cat([student(large), student(local)])
        logs = (logits_of_student / 0.1).float().log_softmax(-1).unflatten(0, (-1, batch))
        every_pair = (targets.sum(0) * logs.sum(0)).sum()
        loss = ((targets * logs[:2]).sum() - every_pair) / pairs  # but a view with itself
        return loss, logits.float().mean(0, keepdim=True)

    compute = torch.compile(loss_of) if compiled else loss_of
    kind = torch.device(device).type

    def step():
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss, mean = compute(large, local, center)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            center.mul_(0.9).add_(mean, alpha=0.1)
            weights = (list(teacher.parameters()), list(student.parameters()))
            torch._foreach_lerp_(*weights, 0.004)
        return loss

    return step


def _seconds(step) -> float:
    """Of a step, the mean of a round, which waits for the last one alone."""
    start = time.perf_counter()
    for _ in range(_ROUND):
        loss = step()
    loss.item()
    return (time.perf_counter() - start) / _ROUND


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=64, help="images of a step")
    parser.add_argument("--steps", type=int, default=30, help="timed steps, after five others")
    parser.add_argument("--out", default="runs/bench", type=pathlib.Path)
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    rows = []
    for compiled in (False, True):
        step = make_step(options.batch, device, compiled=compiled)
        rounds = -(-options.steps // _ROUND)
        each = statistics.median([_seconds(step) for _ in range(rounds + 1)][1:])
        form = "compiled" if compiled else "eager"
        rows.append(dict(form=form, ms=1000 * each, images_per_second=options.batch / each))
        print(
            f"DINO ViT-S/16, torch {torch.__version__} {form}, {name}: {1000 * each:.1f} ms,"
            f" {options.batch / each:.1f} images/s",
            flush=True,
        )
    options.out.mkdir(parents=True, exist_ok=True)
    report = dict(torch=torch.__version__, device=name, batch=options.batch, rows=rows)
    (options.out / "torch.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
