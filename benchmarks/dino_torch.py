"""DINO's step in PyTorch, eager or compiled: what `python -m benchmarks steps` and `gpu` time ours
beside.

Global views of 224 and local ones of 96 pixels, a teacher as a moving average, AdamW; bfloat16
autocast, fused attention and a fused optimizer. No data are read: random images on the device.
"""

import copy
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


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
