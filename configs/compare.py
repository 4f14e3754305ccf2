"""Every method on the same network, images and steps: the recipes of launch/compare.sh.

    bash launch/compare.sh
    ssl-jax train --config=compare:cribo --workdir=runs/cribo

Hardware: 2 CPU cores.
Expected time: 4 to 9 minutes a run on one core, STELLAR 16.
Expected number: the table in docs/results.md.

Network (a quarter of the width and a third of the depth of ViT-S), batch, optimizer and photometric
draws are the same for all (`_shared`), as are the images and the number of steps, STEPS. What
belongs to a method (size and number of views, jitter, masks, class token, heads, temperatures,
memories) is in `_CHANGES`: the paper's values, scaled to seventeen classes and 16 to 64 patches,
with temperatures that keep targets informative from a random start.
"""

from ssl_jax import evals, settings
from ssl_jax.config import InputError, unknown

# method -> the measures its paper cares for most. In each it must beat the untrained network and
# raw pixels by 3 points (dB for PSNR, which pixels do not have).
TARGETS = {
    "dino": ("knn",),
    "ibot": ("knn",),
    "mae": ("linear",),
    "massl": ("knn",),
    "sop": ("knn",),
    "sove": ("knn",),
    "cribo": ("dense",),
    "flsl": ("dense",),
    "stellar": ("knn", "dense", "psnr"),
}
METHODS = tuple(TARGETS)
# What the views and the network could give, for comparison; methods of launch/bounds.py, which
# --import=launch.bounds registers.
BOUNDS = {"infonce": ("knn",), "supervised": ("knn", "linear")}
VARIANTS = METHODS  # without those of --import=launch.bounds
TITLES = {
    "dino": "DINO",
    "ibot": "iBOT",
    "mae": "MAE",
    "massl": "MaSSL",
    "sop": "SOP",
    "sove": "SOVE",
    "cribo": "CrIBo",
    "flsl": "FLSL",
    "stellar": "STELLAR",
    "infonce": "InfoNCE (a bound)",
    "supervised": "supervised (a bound)",
}
STEPS = 1000


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
_CHANGES = {
    "dino": {"views": _LOCAL, "dino": _DINO_HEAD | _teacher(0.04) | dict(prototypes=1024)},
    "ibot": {
        "views": _MASKS | _LOCAL,
        "ibot": _DINO_HEAD,
        "ibot.cls": dict(prototypes=1024) | _teacher(0.04),
        "ibot.patch": _teacher(0.04),
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
    """Images, network and optimizer: those of the quickstart."""
    data, views, model, optim = config.data, config.views, config.model, config.optim
    data.kind, data.length, data.size = "photos", 16384, 64
    data.crop_on, data.cache = "device", True
    views.global_size, views.global_scale, views.local_count = 32, (0.2, 1.0), 0
    views.flip, views.jitter_prob, views.gray_prob = 0.5, 0.0, 0.2
    views.blur_prob, views.solarize_prob = (0.0, 0.0, 0.0), 0.0
    model.size, model.width, model.depth, model.heads = "custom", 96, 4, 3
    model.patch = 8
    model.init_std = model.position_std = 0.1
    optim.batch_size, optim.steps, optim.lr, optim.warmup_epochs = 64, STEPS, 4e-3, 0.5
    optim.weight_decay, optim.final_weight_decay = 0.04, 0.1
    config.teacher.momentum = 0.99
    config.checkpoint.every_steps, config.log.every_steps = 100, 20


def _evaluations(config) -> None:
    """Windows at the size of the views; collages at 64 pixels, 8 x 8 patches."""
    counts = dict(train_examples=2000, test_examples=2000)
    photos = dict(kind="photos", size=config.views.global_size)
    evals.add(config, "knn", "linear", "rank", data=photos, **counts)
    counts = dict(train_examples=500, test_examples=500)
    evals.add(config, "dense", data=dict(kind="photo_collages", size=64), **counts)
    config.evals.tasks, config.evals.every_steps = ("knn", "linear", "dense"), 0
    config.evals.linear.epochs = 100
    if config.method == "stellar":
        evals.add(config, "psnr", data=photos, test_examples=2000)
        config.evals.tasks = (*config.evals.tasks, "psnr")


def get_config(method: str = "sop"):
    """`method`: one of METHODS or BOUNDS."""
    if method not in (*METHODS, *BOUNDS):
        raise InputError(unknown("method", method, (*METHODS, *BOUNDS)))
    config = settings.base_config(method)
    _shared(config)
    for section, values in _CHANGES.get(method, {}).items():
        config.update_from_flattened_dict({f"{section}.{key}": v for key, v in values.items()})
    config.model.image_size = config.views.global_size
    _evaluations(config)
    return config
