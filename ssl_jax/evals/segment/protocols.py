"""The papers' settings of segmentation with a trained head."""

from ssl_jax.evals.registry import Protocol

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
