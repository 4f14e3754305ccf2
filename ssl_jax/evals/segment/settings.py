"""The keys of segmentation with a trained head."""

import dataclasses

from ml_collections import ConfigDict

from ssl_jax.config import InputError, field
from ssl_jax.evals.segment import crops, optimizer
from ssl_jax.losses.segmentation import AVERAGES
from ssl_jax.scores.metrics import ABSENT

HEADS = ("linear", "mask_transformer", "fpn", "upernet")
PYRAMIDS = ("fpn", "upernet")  # heads that read four maps
TESTS = ("whole", "slide", "center")
NORMED = ("all", "last", "none")


@dataclasses.dataclass(frozen=True)
class Settings(crops.Settings, optimizer.Settings):
    head: str = field("linear", "what is trained on the patch tokens", choices=HEADS)
    layers: tuple[int, ...] = field(
        (-1,),
        "blocks whose tokens the head reads, 0 = the first, -1 = the last. fpn and upernet read"
        " four, or one four times",
        least=-1000,
        most=999,
    )
    norm_layers: str = field(
        "all",
        'which of them are read after the final norm: "all" (iBOT), that of the "last" block'
        ' (code of CrIBo), "none" (code of FLSL)',
        choices=NORMED,
    )
    pyramid: bool = field(
        True,
        "fpn reads maps at strides of 4 to 32 pixels; False: all four at that of the patches, which"
        " its logits then have too (code of FLSL)",
    )
    channels: int = field(0, "of the head; 0 = as its authors", "channels", least=0, most=65536)
    batch_norm: bool = field(False, "BatchNorm before the linear head")
    dropout: float = field(0.0, "of whole channels before the classifier", least=0, below=1)
    frozen: bool = field(True, "only the head is trained; False: the network too")
    drop_path: float = field(0.0, "highest stochastic-depth rate, in training", least=0, below=1)
    half: bool = field(
        False,
        "images enter as (x - 0.5) / 0.5 instead of with the network's own mean and deviation"
        " (code of CrIBo)",
    )
    dice: float = field(
        0.0, "weight of the Dice loss next to the cross-entropy", least=0, most=1000
    )
    auxiliary: float = field(0.4, "weight of upernet's auxiliary head", least=0, most=1000)
    average: str = field(
        "labelled",
        'the cross-entropy is a mean over "labelled" pixels, or over "all", those to ignore'
        " included (mmsegmentation)",
        choices=AVERAGES,
    )
    level: str = field(
        "pixel",
        'where loss and scores are taken: at each "pixel", or at the grid of the logits with'
        ' the nearest label ("patch", code of STELLAR)',
        choices=("pixel", "patch"),
    )
    test: str = field(
        "whole",
        'test images: "whole"; a window of `side` that slides ("slide"); or the central square'
        ' of `side` pixels ("center")',
        choices=TESTS,
    )
    stride: int = field(0, "of sliding windows; 0 = 2/3 of side", "pixels", least=0, most=16384)
    epochs: float = field(
        0.0, "of training, in place of steps; 0 = steps", "epochs", least=0, most=10**6
    )
    batch: int = field(8, "crops per step", "images", above=0, most=2**20)
    batch_factors: tuple[int, ...] = field(
        (1,),
        "multiples of the batch that are tried, up to the size of the set, each with every"
        " learning rate",
        above=0,
        most=2**16,
    )
    held_out: float = field(
        0.1,
        "share of the training images that selects the learning rate and the batch if there are"
        " several; 0 = the test images select them",
        least=0,
        below=1,
    )
    classes: int = field(
        0,
        "number of classes of the masks, less the ignored one; 0 = as the set names them, else"
        " found in the masks",
        least=0,
        most=255,
    )
    ignored: int = field(-1, "class that counts as unlabelled; -1 = none", least=-1, most=254)
    absent: str = field(
        "zero",
        'a class that is predicted somewhere but is not in the truth: "zero" counts its IoU as'
        ' 0 (as mmsegmentation), "skip" leaves it out of the mean',
        choices=ABSENT,
    )


def check(name: str, settings: Settings, data: ConfigDict) -> None:
    """Raises InputError for keys that contradict each other."""
    c = settings
    if c.head in PYRAMIDS and len(c.layers) not in (1, 4):
        raise InputError(
            f"{name}.layers is {tuple(c.layers)}; the head {c.head} reads four layers (or one, four"
            " times)"
        )
    if c.level == "patch" and c.test == "slide":
        raise InputError(
            f'{name}.level="patch" scores the grid of one whole image; use test="center" or'
            ' test="whole"'
        )
    if c.stride and c.test == "slide" and c.side and c.stride > c.side:
        raise InputError(
            f"{name}.stride is {c.stride}, larger than side {c.side}; pixels between windows would"
            " have no prediction"
        )
