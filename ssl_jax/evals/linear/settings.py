"""The keys of the type `linear`, and the papers' settings."""

import dataclasses

from ssl_jax.config import field
from ssl_jax.evals.registry import Protocol
from ssl_jax.features import tokens
from ssl_jax.scores.probe import LEARNING_RATES, OPTIMIZERS

_SCALED_TO = 256  # batch size for which scaled learning rates are given
_IMAGENET = dict(kind="folder", split="train", test_split="val", size=256)
_STELLAR = dict(
    data=_IMAGENET,
    crop=224,
    epochs=30,
    batch=64,
    batch_factors=tuple(2**i for i in range(8)),
    clip=5.0,  # of the authors' trainer; the paper does not state it
)
_IBOT = dict(
    data=_IMAGENET,
    crop=224,
    crop_scale=(0.08, 1.0),
    bilinear_crops=True,  # this and every_epoch are from the code
    every_epoch=True,
    epochs=100,
    batch=1024,
    norm=False,
    optimizer="sgd",
    schedule="cosine",
    weight_decay=0.0,
    scale_lr=True,
    held_out=0.0,
    lrs=(1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5),
)
_IBOT_GRID = tuple(round(n * 10.0**e, 10) for e in range(-4, 1) for n in range(1, 10))
PROTOCOLS = {
    "stellar": Protocol(
        "STELLAR tables 1, 2, 4 to 6, 9 and 10, ImageNet and Places365",
        _STELLAR | dict(crop_scale=(0.2, 1.0)),
    ),
    "stellar_transfer": Protocol(
        "STELLAR table 4, Pets, Food-101, GlaS", _STELLAR | dict(crop_scale=(0.5, 1.0))
    ),
    "sop_small": Protocol("SOP and SOVE table 1, ViT-S", _IBOT | dict(tokens="cls", layers=4)),
    "sop_swin": Protocol("SOP and SOVE table 1, Swin-T", _IBOT | dict(tokens="mean", layers=4)),
    "sop_base": Protocol("SOP and SOVE table 1, ViT-B and L", _IBOT | dict(tokens="cls_mean")),
    "ibot_small": Protocol(
        "iBOT table 2, ViT-S", _IBOT | dict(tokens="cls", layers=4, lrs=_IBOT_GRID)
    ),
    "ibot_base": Protocol(
        "iBOT table 2, ViT-B and L", _IBOT | dict(tokens="cls_mean", lrs=_IBOT_GRID)
    ),
}


@dataclasses.dataclass(frozen=True)
class Settings(tokens.Settings):
    epochs: int = field(30, "length of the probe's training", "epochs", above=0)
    batch: int = field(256, "features per training step", "features", above=0)
    batch_factors: tuple[int, ...] = field(
        (1,), "factors on `batch` that are tried, each with all learning rates", above=0, most=2**16
    )
    lrs: tuple[float, ...] = field(
        LEARNING_RATES,
        "learning rates that are tried in one run; the best on the held-out images counts",
        above=0,
        most=1000,
    )
    scale_lr: bool = field(False, "multiply learning rates by batch size / 256")
    schedule: str = field(
        "constant",
        'schedule of the learning rate: "constant", or "cosine" to 0, one value per epoch',
        choices=("constant", "cosine"),
    )
    optimizer: str = field(
        "adamw", 'optimizer of the probe; "sgd" and "lars" have momentum 0.9', choices=OPTIMIZERS
    )
    weight_decay: float = field(1e-4, "weight decay of the optimizer", least=0, most=1000)
    clip: float = field(0.0, "largest L2 norm of a classifier's gradient; 0 = no limit", least=0)
    norm: bool = field(True, "apply a learned LayerNorm before the linear layer")
    held_out: float = field(
        0.1,
        "share of the training images that selects the best classifier; 0 = the test images select"
        " it, as in iBOT and SOP",
        least=0,
        below=1,
    )
    crop_scale: tuple[float, ...] = field(
        (),
        "(least, largest) share of an image's area in random training crops, which are encoded in"
        " every epoch; () = train on the evaluation crop, encoded once",
        element=0.5,
        above=0,
        most=1,
    )
    bilinear_crops: bool = field(
        False,
        "resample random crops bilinearly (torchvision's default, code of iBOT) instead of"
        " bicubically",
    )
    every_epoch: bool = field(
        False,
        "score the test images after every epoch too, and report the best score of all epochs"
        " (code of iBOT and SOP)",
    )

    @property
    def lr_factor(self) -> float:
        """The factor by which learning rates are scaled with the batch size."""
        return self.batch / _SCALED_TO if self.scale_lr else 1.0
