"""The papers' settings of segmentation with a trained head."""

from typing import Any

from ssl_jax.evals.registry import Protocol

_SPLITS = dict(split="train", test_split="val")
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
# iBOT's ADE20K recipe, with layers of a network of 12 blocks.
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
    steps=160_000,
    batch=16,  # 4 per device; the number of devices is not stated
    optimizer="adam",
    weight_decay=0.01,  # of the launcher, which overrides the schedules' 1e-4
    decayed="all",
    power=0.9,
    final_share=0.1,  # code; the text has final_lr=1e-4 for all learning rates
    held_out=0.0,  # the paper reports the best of four on the test images
)
_CRIBO: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": (
        "CrIBo table 2: linear, last layer",
        dict(head="linear", lrs=(8e-4, 3e-4, 1e-4, 8e-5)),
    ),
    "linear4": (
        "CrIBo table 7: linear, last four layers",
        dict(
            head="linear",
            lrs=(8e-4, 3e-4, 1e-4, 8e-5),
            layers=(-4, -3, -2, -1),
            norm_layers="last",  # code
        ),
    ),
    "segmenter": (
        "CrIBo table 3: Segmenter, end to end",
        dict(head="mask_transformer", frozen=False, drop_path=0.1, lrs=(8e-5, 3e-5, 1e-5, 8e-6)),
    ),
}
_CRIBO_SETS: dict[str, tuple[str, dict[str, Any]]] = {
    "": ("ADE20K and COCO-Stuff", {}),
    "_voc": ("VOC", dict(steps=80_000, data=_SPLITS | dict(kind="voc", split="train_aug"))),
    "_context": (
        "Pascal Context",
        dict(
            steps=80_000,
            short=520,
            long=520,
            crop_side=480,
            data=_SPLITS | dict(kind="pascal_context"),
        ),
    ),
}
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
    batch=64,
    batch_factors=tuple(2**i for i in range(8)),
    clip=5.0,  # of the authors' trainer; the paper does not state it
    optimizer="adamw",
    lrs=(1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2),
    weight_decay=1e-4,
    decayed="all",
    power=0.0,
    held_out=0.1,
)
_GRID = dict(level="patch", test="center", short=256, absent="zero")
_UNLABELLED = dict(scale=(0.5, 1.0), ignored=0)  # STELLAR's code ignores the first class

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
            norm_layers="none",  # this and the next are from the code
            pyramid=False,
            channels=256,
            dropout=0.1,
            frozen=False,
            drop_path=0.1,
            test="whole",
            steps=40_000,
            batch=16,  # 4 per device
            optimizer="adamw",  # code; the text has Adam
            lrs=(6e-5,),
            weight_decay=0.01,
            decayed="not_norms",
            power=1.0,
            warmup=1500,
        ),
    ),
    stellar_native=Protocol(
        "STELLAR table 2: linear, scored on the grid of patches of the centre crop",
        _STELLAR | _GRID,
    ),
    stellar_native_voc=Protocol(
        "STELLAR table 4, VOC: 20 classes, without the background",
        _STELLAR | _GRID | _UNLABELLED | dict(data=_SPLITS | dict(kind="voc")),
    ),
    stellar_native_cityscapes=Protocol(
        "STELLAR table 4, Cityscapes: the labels as they are stored",
        _STELLAR
        | _GRID
        | _UNLABELLED
        | dict(data=_SPLITS | dict(kind="cityscapes", raw_labels=True)),
    ),
    stellar_finetune=Protocol(
        "STELLAR table 12: ADE20K, the linear head and the network",
        _STELLAR | _GRID | dict(frozen=False, epochs=75.0),
    ),
    stellar_full=Protocol(
        "STELLAR appendix C.2, scored on all pixels of whole images",
        _STELLAR | dict(level="pixel", test="whole", short=224, absent="zero"),
    ),
) | {
    f"cribo_{name}{suffix}": Protocol(f"{source}, {images}", _SEGMENTER | changes | of_set)
    for name, (source, changes) in _CRIBO.items()
    for suffix, (images, of_set) in _CRIBO_SETS.items()
}
