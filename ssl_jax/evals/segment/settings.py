"""The keys of segmentation with a trained head, and the papers' settings."""

import dataclasses

from ml_collections import ConfigDict

from ssl_jax.config import InputError, field
from ssl_jax.evals.registry import Protocol
from ssl_jax.evals.segment import crops
from ssl_jax.losses.segmentation import AVERAGES
from ssl_jax.scores.metrics import ABSENT

HEADS = ("linear", "mask_transformer", "fpn", "upernet")
PYRAMIDS = ("fpn", "upernet")  # heads that read four maps
DECAYS = ("matrices", "not_norms", "all")
TESTS = ("whole", "slide", "center")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The keys of this type of evaluation."""

    head: str = field("linear", "what is trained on the patch tokens", choices=HEADS)
    layers: tuple[int, ...] = field(
        (-1,),
        "blocks whose tokens the head reads, 0 = the first, -1 = the last; each after the final"
        " norm. fpn and upernet read four, or one four times",
        least=-1000,
        most=999,
    )
    channels: int = field(0, "of the head; 0 = as its authors", "channels", least=0, most=65536)
    batch_norm: bool = field(False, "BatchNorm before the linear head")
    dropout: float = field(0.0, "of whole channels before the classifier", least=0, below=1)
    frozen: bool = field(True, "only the head is trained; False: the network too")
    layer_decay: float = field(
        1.0, "learning rate of a block / that of the next (frozen=False)", above=0, most=1
    )
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
    augment: str = field(
        "scale_crop",
        'training crops: "scale_crop" of mmsegmentation, or "resized_crop" of torchvision',
        choices=crops.KINDS,
    )
    side: int = field(
        0,
        "of training crops, sliding windows and the centre crop; 0 = shorter side of the images"
        " up to 224",
        "pixels",
        least=0,
        most=16384,
    )
    short: int = field(
        0,
        "shorter side that images are brought to before the random scale, and in tests; 0 = as"
        " stored",
        "pixels",
        least=0,
        most=16384,
    )
    long: int = field(0, "bound of the longer side then; 0 = none", "pixels", least=0, most=65536)
    ratio: tuple[float, ...] = field(
        (0.5, 2.0), "random scale (scale_crop)", above=0, most=100, length=2, ordered=True
    )
    scale: tuple[float, ...] = field(
        (0.25, 1.0),
        "a crop's share of the image (resized_crop)",
        above=0,
        most=1,
        length=2,
        ordered=True,
    )
    largest_class: float = field(
        0.75, "share of a crop that one class may fill (scale_crop)", above=0, most=1
    )
    photometric: bool = field(True, "brightness, contrast, saturation and hue of crops change")
    test: str = field(
        "whole",
        'test images: "whole"; a window of `side` that slides ("slide"); or the central square'
        ' of `side` pixels ("center")',
        choices=TESTS,
    )
    stride: int = field(0, "of sliding windows; 0 = 2/3 of side", "pixels", least=0, most=16384)
    steps: int = field(300, "of training", "steps", above=0, most=2**31 - 1)
    epochs: float = field(
        0.0, "of training, in place of steps; 0 = steps", "epochs", least=0, most=10**6
    )
    batch: int = field(8, "crops per step", "images", above=0, most=2**20)
    optimizer: str = field(
        "adamw",
        'adam adds weight decay to the gradient, "adamw" to the step',
        choices=("adam", "adamw"),
    )
    lrs: tuple[float, ...] = field(
        (3e-3, 1e-2, 3e-2),
        "learning rates; a frozen network trains all of them in one pass. The best counts",
        above=0,
        most=1000,
    )
    weight_decay: float = field(1e-4, "of what decays", least=0, most=1000)
    decayed: str = field(
        "matrices",
        'what decays: "matrices" (no biases, norms, tokens, position codes), all but norms and'
        ' position codes ("not_norms"), "all"',
        choices=DECAYS,
    )
    power: float = field(
        1.0, "lr falls as (1 - step / steps)^power; 0 = constant", least=0, most=100
    )
    warmup: int = field(0, "linear warm-up from 0", "steps", least=0, most=2**31 - 1)
    final_lr: float = field(0.0, "end of the fall; 0 = final_share", least=0, most=1000)
    final_share: float = field(
        0.0, "end of the fall as share of the learning rate", least=0, most=1
    )
    held_out: float = field(
        0.1,
        "share of the training images that selects the learning rate if there are several; 0 ="
        " the test images select it",
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


def check(name: str, section: Settings, data: ConfigDict) -> None:
    """Refuses keys that contradict each other. Raises InputError."""
    c = section
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


# mmsegmentation's data settings of ADE20K, VOC and COCO-Stuff.
_MMSEG = dict(
    average="all",
    augment="scale_crop",
    side=512,
    short=512,
    long=2048,
    ratio=(0.5, 2.0),
    largest_class=0.75,
    photometric=True,
    absent="zero",
)
# iBOT's ADE20K recipe. Layers are those of a network of 12 blocks.
_IBOT = _MMSEG | dict(
    layers=(3, 5, 7, 11),
    test="slide",
    stride=341,
    steps=160_000,
    batch=16,
    optimizer="adamw",
    weight_decay=0.05,
    power=1.0,
    warmup=1500,
)
_SEGMENTER = _MMSEG | dict(
    test="slide",
    stride=480,
    steps=160_000,  # ADE20K, COCO-Stuff; VOC and Pascal Context: 80_000
    batch=16,  # 4 per device; the number of devices is not stated
    optimizer="adam",
    weight_decay=1e-4,  # schedule; the launcher says 0.01
    decayed="all",
    power=0.9,
    final_share=0.1,  # code; the text says final_lr=1e-4 whatever the learning rate
    held_out=0.0,  # the best of four on the test images is reported
)
_CRIBO_LINEAR = _SEGMENTER | dict(head="linear", lrs=(8e-4, 3e-4, 1e-4, 8e-5))
_STELLAR = dict(
    head="linear",
    batch_norm=True,
    dice=1.0,
    average="labelled",
    augment="resized_crop",
    side=224,
    scale=(0.25, 1.0),  # ADE20K; other sets (0.5, 1.0)
    photometric=False,
    epochs=80.0,
    batch=64,  # the paper tries 64 to 8192
    optimizer="adamw",
    lrs=(1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2),
    weight_decay=1e-4,
    decayed="all",
    power=0.0,
    held_out=0.1,
)

PROTOCOLS = dict(
    ibot_linear=Protocol(
        "SOP table 2, SOVE table 2: ADE20K, frozen, linear",
        _IBOT | dict(head="linear", lrs=(8e-4,)),
    ),
    ibot_upernet=Protocol(
        "SOP table 2, SOVE table 2: ADE20K, UPerNet",
        _IBOT
        | dict(
            head="upernet",
            channels=768,
            dropout=0.1,
            auxiliary=0.4,
            frozen=False,
            layer_decay=0.65,
            drop_path=0.1,
            lrs=(8e-5,),
        ),
    ),
    flsl_fpn=Protocol(
        "FLSL table 10: ADE20K, Semantic FPN",
        _MMSEG
        | dict(
            head="fpn",
            layers=(2, 5, 8, 11),
            channels=256,
            dropout=0.1,
            frozen=False,
            drop_path=0.1,
            test="whole",
            steps=40_000,
            batch=16,  # 4 per device
            optimizer="adamw",  # code; the text says Adam
            lrs=(6e-5,),
            weight_decay=0.01,
            decayed="not_norms",
            power=1.0,
            warmup=1500,
        ),
    ),
    stellar_native=Protocol(
        "STELLAR table 2: linear, scored on the grid of patches of the centre crop",
        # VOC: ignored=0; the shorter side before the crop is that of its other evaluations.
        _STELLAR | dict(level="patch", test="center", short=256, absent="zero"),
    ),
    stellar_finetune=Protocol(
        "STELLAR table 12: ADE20K, the linear head and the network",
        _STELLAR
        | dict(frozen=False, epochs=75.0, level="patch", test="center", short=256, absent="zero"),
    ),
    stellar_full=Protocol(
        "STELLAR appendix C.2, scored on all pixels of whole images",
        _STELLAR | dict(level="pixel", test="whole", short=224, absent="zero"),
    ),
    cribo_linear=Protocol("CrIBo table 2: linear, last layer", _CRIBO_LINEAR),
    cribo_linear4=Protocol(
        "CrIBo table 7: linear, last four layers", _CRIBO_LINEAR | dict(layers=(-4, -3, -2, -1))
    ),
    cribo_segmenter=Protocol(
        "CrIBo table 3: Segmenter, end to end",
        _SEGMENTER
        | dict(head="mask_transformer", frozen=False, drop_path=0.1, lrs=(8e-5, 3e-5, 1e-5, 8e-6)),
    ),
)
