"""The keys of segmentation with a trained head."""

import dataclasses

from ssl_jax.config import InputError, field
from ssl_jax.evals.classes import absent_field
from ssl_jax.evals.segment import optimizer
from ssl_jax.losses.segmentation import AVERAGES
from ssl_jax.views import masked

HEADS = ("linear", "mask_transformer", "fpn", "upernet")
PYRAMIDS = ("fpn", "upernet")  # heads that read four maps


@dataclasses.dataclass(frozen=True)
class Settings(masked.Settings, optimizer.Settings):
    head: str = field("linear", "head that is trained on the patch tokens", choices=HEADS)
    layers: tuple[int, ...] = field(
        (-1,),
        "blocks whose tokens the head reads: 0 = the first, -1 = the last; fpn and upernet read"
        " four blocks, or one block four times",
        least=-1000,
        most=999,
    )
    norm_layers: str = field(
        "all",
        'blocks of `layers` that are read after the final norm: "all" (iBOT), only the network\'s'
        ' "last" block (code of CrIBo), or "none" (code of FLSL)',
        choices=("all", "last", "none"),
    )
    pyramid: bool = field(
        True,
        "let fpn read maps at strides of 4 to 32 pixels; False = four maps at the stride of the"
        " patches, which its logits then have too (code of FLSL)",
    )
    channels: int = field(
        0, "number of channels of the head; 0 = as its authors", "channels", least=0, most=65536
    )
    batch_norm: bool = field(False, "apply BatchNorm before the linear head")
    dropout: float = field(0.0, "dropout of whole channels before the classifier", least=0, below=1)
    frozen: bool = field(True, "train the head only; False = train the network too")
    drop_path: float = field(
        0.0, "stochastic-depth rate of the last block in training (frozen=False)", least=0, below=1
    )
    half: bool = field(
        False,
        "normalise images as (x - 0.5) / 0.5 instead of with the network's own mean and deviation"
        " (code of CrIBo)",
    )
    dice: float = field(
        0.0, "weight of the Dice loss, added to the cross-entropy; 0 = none", least=0, most=1000
    )
    auxiliary: float = field(
        0.4, "weight of the loss of upernet's auxiliary head; 0 = none", least=0, most=1000
    )
    average: str = field(
        "labelled",
        'pixels over which the cross-entropy is averaged: "labelled" ones, or "all", including'
        " ignored ones (mmsegmentation)",
        choices=AVERAGES,
    )
    level: str = field(
        "pixel",
        'where loss and scores are computed: at each "pixel", or at the grid of the logits, with'
        ' the nearest label ("patch", code of STELLAR)',
        choices=("pixel", "patch"),
    )
    test: str = field(
        "whole",
        'part of a test image that is predicted: "whole" image, a sliding window of `side` pixels'
        ' ("slide"), or the central square of `side` pixels ("center")',
        choices=("whole", "slide", "center"),
    )
    stride: int = field(
        0, "stride of sliding windows; 0 = side * 2/3", "pixels", least=0, most=16384
    )
    epochs: float = field(
        0.0,
        "length of the training in epochs, in place of `steps`; 0 = by `steps`",
        "epochs",
        least=0,
        most=10**6,
    )
    batch: int = field(8, "crops per training step", "images", above=0, most=2**20)
    batch_factors: tuple[int, ...] = field(
        (1,),
        "factors on `batch` that are tried, up to the size of the training set, each with all"
        " learning rates",
        above=0,
        most=2**16,
    )
    held_out: float = field(
        0.1,
        "share of the training images that selects among several learning rates and batches;"
        " 0 = the test images select them",
        least=0,
        below=1,
    )
    classes: int = field(
        0,
        "number of classes of the masks, without the ignored class; 0 = as named by the data set,"
        " otherwise counted in the masks",
        least=0,
        most=255,
    )
    ignored: int = field(-1, "class that counts as unlabelled; -1 = none", least=-1, most=254)
    absent: str = absent_field()


def check_stride(name: str, settings: Settings) -> None:
    """Raises InputError for sliding windows with gaps between them. name: of the section."""
    c = settings
    if c.test == "slide" and c.stride > c.side:
        raise InputError(
            f"{name}.stride is {c.stride}, larger than side {c.side}; pixels between windows would"
            " have no prediction"
        )


def sizes(settings: Settings, records: int) -> list[Settings]:
    """The settings of each batch size, with `steps` computed from `epochs`. Batch sizes are limited
    to the number of records, but not below `settings.batch`."""

    def sized(factor):
        batch = settings.batch * min(factor, max(1, records // settings.batch))
        epochs, steps = settings.epochs, settings.steps
        steps = max(1, round(epochs * records / batch)) if epochs else steps
        return dataclasses.replace(settings, batch=batch, steps=steps)

    return list(dict.fromkeys(map(sized, settings.batch_factors)))
