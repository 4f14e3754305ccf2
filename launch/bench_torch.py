"""Times DINO's step of ViT-S/16 in PyTorch, eager and compiled, as a measure of `bench.py steps`.

    python launch/bench_torch.py --batch 64

Two global views of 224 and ten local ones of 96 pixels, a head with 65,536 prototypes, a teacher as
a moving average, AdamW; bfloat16 autocast; networks of torch.nn with its fused attention. No data
are read: random images on the device. Prints and writes OUT/torch.json.
"""

import argparse
import copy
import json
import pathlib
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

_ROUND = 5  # steps that are timed together


class ViT(nn.Module):
    """Images [B, 3, s, s] -> class tokens [B, 384]."""

    def __init__(self, width=384, depth=12, heads=6, patch=16, size=224):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.grid = size // patch
        self.position = nn.Parameter(0.02 * torch.randn(1, width, self.grid, self.grid))
        self.cls_position = nn.Parameter(torch.zeros(1, 1, width))
        block = dict(activation="gelu", batch_first=True, norm_first=True, dropout=0.0)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, **block)
        self.blocks = nn.ModuleList(copy.deepcopy(layer) for _ in range(depth))
        self.norm = nn.LayerNorm(width)

    def forward(self, images):
        x = self.patches(images)
        position = self.position
        if x.shape[-1] != self.grid:
            position = F.interpolate(position, x.shape[-2:], mode="bicubic", antialias=True)
        x = (x + position).flatten(2).transpose(1, 2)
        x = torch.cat([(self.cls + self.cls_position).expand(len(x), -1, -1), x], dim=1)
        for block in self.blocks:
            x = block(x)
        return self.norm(x[:, 0])


class Head(nn.Module):
    """Three layers, L2 norm, and rows of unit length."""

    def __init__(self, width=384, hidden=2048, bottleneck=256, prototypes=65536):
        super().__init__()
        self.mlp = nn.Sequential(
            *(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU()),
            nn.Linear(hidden, bottleneck),
        )
        self.prototypes = nn.Parameter(torch.randn(prototypes, bottleneck))

    def forward(self, x):
        return F.linear(F.normalize(self.mlp(x), dim=-1), F.normalize(self.prototypes, dim=-1))


def make_step(batch: int, device: str, *, compiled: bool, small: bool = False):
    """A function of no arguments that makes one step; what it returns comes later from a GPU.
    small: a network for a test."""
    size = dict(width=32, depth=2, heads=2) if small else {}
    head = dict(width=32, hidden=64, bottleneck=16, prototypes=128) if small else {}
    student = nn.Sequential(ViT(**size), Head(**head)).to(device)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4, weight_decay=0.04)
    center = torch.zeros(1, student[1].prototypes.shape[0], device=device)
    large = torch.rand(2 * batch, 3, 224, 224, device=device)
    local = torch.rand(10 * batch, 3, 96, 96, device=device)

    def loss_of(large, local, center):
        with torch.no_grad():
            logits = teacher(large)
        targets = ((logits - center) / 0.04).float().softmax(-1).chunk(2)
        outputs = [*student(large).chunk(2), *student(local).chunk(10)]
        logs = [F.log_softmax(x.float() / 0.1, dim=-1) for x in outputs]
        pairs = [(t, s) for t in range(2) for s in range(12) if s != t]
        loss = -sum((targets[t] * logs[s]).sum(-1).mean() for t, s in pairs) / len(pairs)
        return loss, logits.float().mean(0, keepdim=True)

    compute = torch.compile(loss_of) if compiled else loss_of
    kind = torch.device(device).type

    def step():
        with torch.autocast(kind, dtype=torch.bfloat16):
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
