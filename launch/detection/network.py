"""The network of launch/detection: a folder that `ssl-jax export --to=timm` wrote, under
torchvision's Faster R-CNN and Mask R-CNN.
"""

import math
import re
from collections import OrderedDict
from functools import partial
from pathlib import Path

import timm
import torch
from safetensors import SafetensorError
from torch import nn
from torchvision.models.convnext import LayerNorm2d
from torchvision.models.detection import FasterRCNN, MaskRCNN, faster_rcnn, mask_rcnn, rpn
from torchvision.ops import FeaturePyramidNetwork

from ssl_jax.config import InputError

_STRIDES = (4, 8, 16, 32)  # of the pyramid, pixels; below them one of 64
_NORM = partial(LayerNorm2d, eps=1e-6)
_BLOCK = re.compile(r"^(.*\bblocks\.\d+)\.")
_TOKENS = ("pos_embed", "_token", "reg_", "bias_table")  # parameters without weight decay


class Backbone(nn.Module):
    """Maps of a network at strides 4, 8, 16, 32 and 64, each `out_channels` wide.

    pyramid "simple": from the last block, scaled, two convolutions a scale (ViTDet, section 3).
    "fpn": from four blocks, scaled, then top-down (FPN). A Swin transformer gives its last stage or
    all four.
    """

    def __init__(self, net: nn.Module, p):
        super().__init__()
        self.net, self.out_channels, self.simple = net, p.channels, p.pyramid == "simple"
        info = net.feature_info
        stages = len({stage["reduction"] for stage in info}) > 1
        if self.simple:
            self.blocks = [len(info) - 1] * 4
        else:
            self.blocks = [0, 1, 2, 3] if stages else [block - 1 for block in p.blocks]
        if len(self.blocks) != 4 or not all(0 <= i < len(info) for i in self.blocks):
            raise InputError(
                f"blocks={p.blocks} must name four of the network's {len(info)} blocks; give them,"
                " --set blocks=[1,2,3,4], or --set pyramid=simple"
            )
        widths, scales = [], []
        for i, stride in zip(self.blocks, _STRIDES):
            layers, width = _scale(info[i]["num_chs"], info[i]["reduction"] / stride, self.simple)
            if self.simple:
                layers += [nn.Conv2d(width, p.channels, 1, bias=False), _NORM(p.channels)]
                layers += [nn.Conv2d(p.channels, p.channels, 3, padding=1, bias=False)]
                layers += [_NORM(p.channels)]
            widths.append(width)
            scales.append(nn.Sequential(*layers))
        self.scales = nn.ModuleList(scales)
        self.fpn = None if self.simple else FeaturePyramidNetwork(widths, p.channels)

    def forward(self, images: torch.Tensor) -> OrderedDict[str, torch.Tensor]:
        """[B, 3, H, W], normalised, sides multiples of 32 -> {"0" .. "4": [B, channels, h, w]}."""
        chosen = sorted(set(self.blocks))
        maps = self.net.forward_intermediates(
            images, indices=chosen, norm=False, intermediates_only=True
        )
        of = dict(zip(chosen, maps))
        out = OrderedDict(
            (str(k), f(of[i])) for k, (i, f) in enumerate(zip(self.blocks, self.scales))
        )
        out = out if self.fpn is None else self.fpn(out)
        out["4"] = nn.functional.max_pool2d(out["3"], 1, 2)
        return out


def _scale(width: int, factor: float, halve: bool) -> tuple[list[nn.Module], int]:
    """Layers that enlarge a map by a power of two, and its channels then, which fall by half with
    each doubling if `halve`. Raises InputError for another factor."""
    power = math.log2(factor)
    if power != int(power):
        raise InputError(
            f"a patch of {factor * _STRIDES[0]:g} pixels does not fit strides of 4, 8, 16 and 32,"
            " which torchvision's detectors need; take a network with patches of 4, 8 or 16"
        )
    layers: list[nn.Module] = []
    for _ in range(int(power)):
        layers += [_NORM(width), nn.GELU()] if layers else []
        layers += [nn.ConvTranspose2d(width, width // 2 if halve else width, 2, 2)]
        width = width // 2 if halve else width
    if power < 0:
        layers = [nn.MaxPool2d(int(1 / factor))]
    return layers, width


def detector(folder: Path, p, classes: int, random: bool = False) -> FasterRCNN:
    """The detector of a protocol.

    Args:
      folder: config.json and model.safetensors of timm. p: settings of a protocol. classes: without
        the background. random: leave the weights as timm draws them.

    Raises:
      InputError: no such folder, or a network that does not fit the protocol.
    """
    files = [folder / "config.json", folder / "model.safetensors"]
    try:
        if not all(map(Path.is_file, files)) or b'"architecture"' not in files[0].read_bytes():
            raise ValueError("no config.json and model.safetensors of timm")
        net = timm.create_model(
            f"local-dir:{folder}", pretrained=not random, drop_path_rate=p.drop_path
        )
    except (OSError, ValueError, RuntimeError, TypeError, SafetensorError) as error:
        raise InputError(
            f"{folder} holds no network ({error}); write one with ssl-jax export RUN --to=timm"
            f" --out={folder}"
        ) from error
    net.norm = nn.Identity()  # maps come before it
    c, deep = p.channels, p.heads == "vitdet"
    hidden = 4 * c
    shape = (c, 7, 7)
    common = dict(
        min_size=p.test_short,
        max_size=p.long,
        image_mean=net.pretrained_cfg["mean"],
        image_std=net.pretrained_cfg["std"],
        rpn_anchor_generator=rpn.AnchorGenerator([(a,) for a in p.anchors], [(0.5, 1.0, 2.0)] * 5),
        rpn_head=rpn.RPNHead(c, 3, 2 if deep else 1),
        box_head=faster_rcnn.FastRCNNConvFCHead(shape, [c] * 4, [hidden], _NORM)
        if deep
        else faster_rcnn.TwoMLPHead(c * 49, hidden),
        box_predictor=faster_rcnn.FastRCNNPredictor(hidden, classes + 1),
        box_batch_size_per_image=p.rois,
        box_detections_per_img=100 if p.score == "coco" else 500,
        size_divisible=32,
        _skip_resize=True,  # training images come in their sizes
    )
    if p.detector == "faster":
        return FasterRCNN(Backbone(net, p), **common)
    heads = mask_rcnn.MaskRCNNHeads(c, [c] * 4, 1, _NORM if deep else None)
    predictor = mask_rcnn.MaskRCNNPredictor(c, c, classes + 1)
    return MaskRCNN(Backbone(net, p), mask_head=heads, mask_predictor=predictor, **common)


def optimizer(model: nn.Module, p) -> torch.optim.Optimizer:
    """AdamW or SGD with momentum 0.9, whose groups have "scale", the layer decay of their rate.

    The pyramid and the heads have scale 1, the last block `layer_decay`, what is below the first
    block `layer_decay ** (blocks + 1)`. Norms, biases, tokens and position embeddings do not decay.
    """
    named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    found = (_BLOCK.match(name) for name, _ in named if name.startswith("backbone.net."))
    blocks = list(dict.fromkeys(match[1] for match in found if match))
    groups: dict[tuple[float, float], list] = {}
    for name, value in named:
        match, above = _BLOCK.match(name), 0
        if name.startswith("backbone.net."):
            above = len(blocks) - (blocks.index(match[1]) if match else -1)
        plain = value.ndim < 2 or any(token in name for token in _TOKENS)
        key = (p.layer_decay**above, 0.0 if plain else p.weight_decay)
        groups.setdefault(key, []).append(value)
    parts = [dict(params=v, scale=s, weight_decay=w, lr=p.rate * s) for (s, w), v in groups.items()]
    if p.optimizer == "sgd":
        return torch.optim.SGD(parts, lr=p.rate, momentum=0.9)
    return torch.optim.AdamW(parts, lr=p.rate)
