"""Every method on the same network, images and steps: the recipes of launch/compare.sh.

    bash launch/compare.sh
    ssl-jax train --config=compare:cribo --workdir=runs/cribo

Hardware: 2 CPU cores.
Expected time: 2 to 7 minutes a run on one core (STELLAR 6, MAE 2, the others 4 to 5).
Expected number: the table in docs/results.md.

Network (a quarter of the width and a third of the depth of ViT-S), images of handwritten digits,
batch, optimizer and photometric draws are the same for all (`_shared`), as is the number of steps,
STEPS. What belongs to a method (masks, class token, position codes, heads, temperatures, memories)
is in `_CHANGES`: the paper's values, scaled to ten classes and 16 patches, with temperatures that
keep targets informative from a random start.
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
    "infonce": "InfoNCE, a bound",
    "supervised": "supervised, a bound",
}
STEPS = 1500


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
_DECODER = dict(decoder_width=64, decoder_depth=2, decoder_heads=4)
# With the shared momentum of .98 and softer targets, embeddings of these methods end up in one
# point in the first 100 steps, when the learning rate is highest, with one to two seeds of three. A
# slower teacher goes with a lower teacher temperature below.
_SLOW = dict(momentum=0.99)
_CHANGES = {
    "dino": {"dino": _DINO_HEAD | _teacher(0.04) | dict(prototypes=1024)},
    "ibot": {
        "views": dict(mask="block", mask_ratio=(0.1, 0.3), mask_prob=0.5),
        "ibot": _DINO_HEAD,
        "ibot.cls": dict(prototypes=1024) | _teacher(0.04),
        "ibot.patch": dict(weight=0.05) | _teacher(0.04),
    },
    "mae": {
        # Nothing makes MAE ignore hue, which says nothing here: in colour it spends itself on it.
        "views": dict(global_count=1, mask="random", mask_ratio=(0.5, 0.5), gray_prob=1.0),
        "mae": _DECODER | dict(global_token="mean"),
    },
    "massl": {
        "teacher": _SLOW,
        "massl": _MEMORY,
        "massl.cls": dict(anchors=512, tasks=4, memory=4096),
    },
    "sop": {
        "teacher": _SLOW,
        "sop": _MEMORY,
        "sop.cls": dict(anchors=512, members=5, tasks=1, memory=4096),
        "sop.patch": dict(weight=0.0),
    },
    "sove": {
        "teacher": _SLOW,
        "sove": _MEMORY,
        "sove.cls": dict(anchors=1024, members=5, tasks=1, memory=4096),
        "sove.patch": dict(weight=0.0),
    },
    "cribo": {
        "teacher": _SLOW,
        "cribo": _DINO_HEAD | _teacher(0.02) | dict(prototypes=512, clusters=4, memory=512),
    },
    "flsl": {
        "model": dict(cls=False),
        "views": dict(global_count=2),
        "teacher": _SLOW,
        # Attention this soft makes the mode of a token the mean of its view. Sharper (tried with
        # the shared teacher), tokens cluster by place and colour, and the centroids of these 16
        # patches say nothing about digits: dense mIoU 12.7 to 17.5 in eight settings.
        "flsl": _DINO_HEAD
        | _teacher(0.02)
        | dict(sa_sharpness=0.2, ca_sharpness=0.4, targets="centered", gamma=0.3)
        | dict(prototypes=1024, photometric="both"),
    },
    "stellar": {
        "model": dict(queries=4),
        "views": dict(global_count=2, local_count=0),
        "teacher": _SLOW,
        # As the paper's random prior: targets of a teacher. Predictions must be much softer than
        # targets, or every image gets the same tokens: spread of embeddings after 400 steps, seed
        # 1: .07 at temperatures .03 / .1, .13 at .03 / .15, .28 at .03 / .3.
        "stellar": _DECODER
        | dict(targets="teacher", mask_ratio=0.25, target_temperature=0.03, temperature=0.3)
        | dict(prototypes=128, head_hidden=256, head_out=64),
        "stellar.weights": dict(reconstruction=1.0),
    },
}


def _shared(config) -> None:
    """Images, network, optimizer and evaluation.

    Measured on these pictures: position codes with a standard deviation of 1, because at .02 or .1
    they drown in the patch embeddings and k-NN stays at chance; mostly gray views, since hue says
    nothing here; crops that keep most of the picture; the initialiser at 1/sqrt(width).
    """
    data, views, model, optim = config.data, config.views, config.model, config.optim
    data.kind, data.length, data.size = "digits", 16384, 32
    data.crop_on, data.cache = "device", True
    views.global_size, views.global_scale, views.local_count = 32, (0.6, 1.0), 0
    views.flip, views.jitter, views.gray_prob = 0.0, (0.4, 0.4, 0.4, 0.5), 0.8
    views.blur_prob, views.solarize_prob = (0.0, 0.0, 0.0), 0.0
    model.size, model.width, model.depth, model.heads = "custom", 96, 4, 3
    model.patch, model.image_size = 8, 32
    model.init_std, model.position_std = 0.1, 1.0
    optim.batch_size, optim.steps, optim.lr, optim.warmup_epochs = 64, STEPS, 4e-3, 0.5
    optim.weight_decay, optim.final_weight_decay = 0.04, 0.1
    config.teacher.momentum = 0.98
    config.checkpoint.every_steps, config.log.every_steps = 100, 20
    counts = dict(train_examples=1000, test_examples=2000)
    evals.add(config, "knn", "linear", "rank", data=dict(kind="digits", size=32), **counts)
    evals.add(config, "dense", data=dict(kind="digit_scenes", size=32), **counts)
    config.evals.tasks, config.evals.every_steps = ("knn", "linear", "dense"), 0
    config.evals.linear.epochs = 100


def get_config(method: str = "sop"):
    """`method`: one of METHODS or BOUNDS."""
    if method not in (*METHODS, *BOUNDS):
        raise InputError(unknown("method", method, (*METHODS, *BOUNDS)))
    config = settings.base_config(method)
    _shared(config)
    if method == "stellar":
        evals.add(config, "psnr", data=dict(kind="digits", size=32), test_examples=2000)
        config.evals.tasks = (*config.evals.tasks, "psnr")
    for section, values in _CHANGES.get(method, {}).items():
        config.update_from_flattened_dict({f"{section}.{key}": v for key, v in values.items()})
    return config
