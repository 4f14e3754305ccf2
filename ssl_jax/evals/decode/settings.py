"""The keys of the type `decode`, and the paper's settings."""

import dataclasses

from ssl_jax.config import field
from ssl_jax.evals import reconstruct
from ssl_jax.evals.registry import Protocol
from ssl_jax.features import latents
from ssl_jax.models import tokenizer
from ssl_jax.scores import rebuild

_STELLAR = {
    "width": 512,
    "depth": 6,
    "heads": 8,
    "epochs": 20,
    "batch": 128,  # this and the next four are from the code; the paper does not state them
    "whole": True,
    "crop_scale": (0.36, 1.0),
    "clip": 5.0,
    "weight_decay": 1e-4,
    "lr": 1e-4,
    "target": "vq",
    "data": {"size": 256},
    "crop": 224,
    "lpips": "alex",
    "fid": rebuild.INCEPTION,
}
PROTOCOLS = {
    "sparse": Protocol("STELLAR table 3, 16 tokens", _STELLAR | {"tokens": "sparse"}),
    "dense": Protocol("STELLAR table 3, 196 tokens", _STELLAR | {"tokens": "dense"}),
}


@dataclasses.dataclass(frozen=True)
class Settings(reconstruct.Settings):
    tokens: str = field(
        "auto",
        'input of the decoder: patch tokens ("dense"), STELLAR\'s low-rank map of sparse tokens'
        ' ("sparse"), or "auto", sparse if the network has one, otherwise dense',
        choices=latents.KINDS,
    )
    target: str = field(
        "pixel",
        'what the decoder predicts of each patch: "pixel", or "vq", the code of a frozen tokenizer',
        choices=("pixel", "vq"),
    )
    tokenizer: str = field(
        "",
        f'file with the weights of the tokenizer for target="vq"; {tokenizer.FETCH}',
        path=True,
        acts="",
    )
    width: int = field(64, "width of the decoder", above=0)
    depth: int = field(2, "number of blocks of the decoder", "blocks", above=0)
    heads: int = field(
        4, "number of attention heads of the decoder; a divisor of `width`", "heads", above=0
    )
    epochs: int = field(20, "length of the decoder's training", "epochs", above=0)
    batch: int = field(64, "images per training step", "images", above=0)
    lr: float = field(1e-3, "constant learning rate of AdamW", above=0, most=10)
    weight_decay: float = field(1e-4, "weight decay of AdamW", least=0, most=10)
    clip: float = field(0.0, "largest L2 norm of a gradient; 0 = no limit", least=0)
