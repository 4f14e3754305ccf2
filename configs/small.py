"""Recipes for small images, which learn something in minutes to hours of a CPU: the variants of
VARIANTS of every method, the quickstart, and what configs/compare.py compares. Not a config by
itself.

Network (a quarter of the width and a third of the depth of ViT-S), batch, optimizer and photometric
draws are the same for all (`_shared`). What belongs to a method (size and number of views, jitter,
masks, class token, heads, temperatures, memories) is in `CHANGES`: the paper's values, scaled to
seventeen classes and 16 to 64 patches, with temperatures that keep targets informative from a
random start. They were found on the photographs; docs/results.md says what was tried.
DINOv2's was not measured.

What differs on CIFAR-10 and Imagenette is in configs/real.py.
"""

from ssl_jax import evals, settings

from . import real

VARIANTS = (*real.VARIANTS, "photos", "photo_collages")
SWIN = "photos_swin"  # of SOP and SOVE


def recipe(method: str, variant: str):
    """The config of a method on one of VARIANTS."""
    config = start(method, "photos" if variant == SWIN else variant)
    if variant == SWIN:
        model = config.model  # tokens of 2, 4 and 8 pixels
        model.stages, model.depth, model.heads, model.window = (2, 2, 2), 6, 4, 4
        model.cls = False
    if variant in real.VARIANTS:
        real.add_evaluations(config, variant)
        return config
    counts, config.optim.epochs = dict(train_examples=5000, test_examples=2000), 20
    images = dict(kind="photos", size=config.data.size)
    evals.add(config, "knn", "linear", "rank", data=images, **counts)
    config.evals.tasks, config.evals.every_steps = ("knn", "linear"), 1000
    if variant == "photo_collages":
        # Patches are scored on these scenes, whole images on `photos`, which have one label each.
        evals.add(config, "dense", data=dict(kind="training", size=config.data.size), **counts)
        config.evals.tasks = ("knn", "linear", "dense")
    return config


def start(method: str, variant: str):
    """The same without evaluations."""
    config = settings.base_config(method)
    _shared(config)
    change_method(config)
    if variant in real.VARIANTS:
        real.change(config, variant)
    else:
        config.data.kind, config.data.size = variant, 64
    config.model.image_size = config.views.global_size
    return config


def change_method(config) -> None:
    """What CHANGES says of the config's method."""
    for section, values in CHANGES.get(config.method, {}).items():
        config.update_from_flattened_dict({f"{section}.{key}": v for key, v in values.items()})


def _teacher(temperature: float) -> dict:
    """A constant temperature of the teacher."""
    return dict(teacher_temperature=temperature, final_teacher_temperature=temperature)


_DINO_HEAD = dict(head_hidden=256, head_bottleneck=64, teacher_temperature_epochs=0.0)
_MEMORY = dict(
    **_teacher(0.015),
    head_hidden=256,
    head_out=64,
    student_temperature=0.15,
    teacher_temperature_epochs=0.0,
)
_MASKS = dict(mask="block", mask_prob=0.5, mask_ratio=(0.1, 0.4))
# Small crops make the class token of a few patches say what the picture is.
_LOCAL = dict(local_count=4, local_size=16, local_scale=(0.05, 0.2))
_DECODER = dict(decoder_width=64, decoder_depth=2, decoder_heads=4)
# For the methods that cluster patches: more than 16 of them, and the papers' jitter, without which
# nothing but the crop tells views apart.
_CLUSTERED = dict(global_size=48, global_scale=(0.25, 1.0), jitter_prob=0.8)
CHANGES: dict[str, dict[str, dict]] = {
    "dino": {"views": _LOCAL, "dino": _DINO_HEAD | _teacher(0.04) | dict(prototypes=1024)},
    "ibot": {
        "views": _MASKS | _LOCAL,
        "ibot": _DINO_HEAD,
        "ibot.cls": dict(prototypes=1024) | _teacher(0.04),
        "ibot.patch": _teacher(0.04),
    },
    "dinov2": {
        "model": dict(layer_scale=0.1),  # a run is too short for branches that start at 1e-5
        "views": _MASKS | _LOCAL,
        "dinov2": _teacher(0.04)
        | dict(head_hidden=256, teacher_temperature_epochs=0.0, layer_decay=1.0, patch_lr=1.0),
        "dinov2.cls": dict(prototypes=1024, bottleneck=64),
        "dinov2.patch": dict(prototypes=1024, bottleneck=64),
    },
    "mae": {
        "views": dict(global_count=1, global_size=64, mask="random", mask_ratio=(0.6, 0.6)),
        "mae": _DECODER | dict(global_token="mean"),
    },
    "massl": {
        "views": _LOCAL,
        "massl": _MEMORY,
        "massl.cls": dict(anchors=512, tasks=4, memory=4096),
    },
    "sop": {
        "views": _MASKS | _LOCAL,
        "sop": _MEMORY | dict(global_token="mean"),
        "sop.cls": dict(anchors=512, members=5, tasks=1, memory=4096),
        "sop.patch": dict(weight=0.2, members=3),
    },
    "sove": {
        "views": _MASKS | _LOCAL,
        "sove": _MEMORY | dict(global_token="mean"),
        "sove.cls": dict(anchors=1024, members=5, tasks=1, memory=4096),
        "sove.patch": dict(weight=0.2, members=3),
    },
    "cribo": {
        "views": _CLUSTERED,
        "cribo": _DINO_HEAD | _teacher(0.02) | dict(prototypes=128, clusters=12, memory=512),
    },
    "flsl": {
        "model": dict(cls=False),
        "views": _CLUSTERED | dict(local_count=2, local_size=24, local_scale=(0.1, 0.5)),
        # The paper's Sinkhorn, a softmax over the batch, with its gamma: a plain softmax finds six
        # clusters and stays there.
        "flsl": _DINO_HEAD
        | _teacher(0.02)
        | dict(prototypes=128, gamma=1.0, targets="batch_softmax", photometric="both"),
    },
    "stellar": {
        "model": dict(queries=16),
        "views": dict(global_size=64, global_count=2),
        # As the paper's random prior: targets of a teacher. Predictions must be much softer than
        # targets, or every image gets the same tokens.
        "stellar": _DECODER
        | dict(targets="teacher", mask_ratio=0.6, target_temperature=0.03, temperature=0.3)
        | dict(prototypes=128, head_hidden=256, head_out=64),
        "stellar.weights": dict(reconstruction=1.0),
    },
}


def _shared(config) -> None:
    """Network, optimizer and views: those of the quickstart."""
    data, views, model, optim = config.data, config.views, config.model, config.optim
    data.crop_on, data.cache = "device", "memory"
    data.length = 16384  # of generated pictures
    views.global_size, views.global_scale, views.local_count = 32, (0.2, 1.0), 0
    views.flip, views.jitter_prob, views.gray_prob = 0.5, 0.0, 0.2
    views.blur_prob, views.solarize_prob = (0.0, 0.0, 0.0), 0.0
    model.size, model.width, model.depth, model.heads = "custom", 96, 4, 3
    model.patch = 8
    model.init_std = model.position_std = 0.1
    optim.batch_size, optim.lr, optim.warmup_epochs = 64, 4e-3, 0.5
    optim.weight_decay, optim.final_weight_decay = 0.04, 0.1
    config.teacher.momentum = 0.99
    config.checkpoint.every_steps, config.log.every_steps = 100, 20
