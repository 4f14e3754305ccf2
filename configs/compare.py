"""Every method on the same network, images and steps: the recipes of experiments/compare.py.

    python -m experiments compare
    ssl-jax train --config=compare:cribo --workdir=runs/cribo

Hardware: 2 CPU cores.
Expected time: 4 to 9 minutes a run on one core, STELLAR 16.
Expected number: the table in docs/results.md.

The recipes are those of configs/small.py on the photographs, for the same number of steps, STEPS.
"""

from ssl_jax import evals
from ssl_jax.config import InputError, unknown

from . import small

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
# What the views and the network could give, for comparison; --import=experiments.bounds registers
# these methods. masks: `supervised`, by the masks of collages, for dense scores.
BOUNDS = {"infonce": ("knn",), "supervised": ("knn", "linear"), "masks": ("dense",)}
VARIANTS = METHODS  # without those of --import=experiments.bounds
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
    "dinov2": "DINOv2",
    "infonce": "InfoNCE (reference)",
    "supervised": "supervised (reference)",
    "masks": "supervised by masks (reference)",
}
STEPS = 1000


def _with_masks():
    """Patches of collages are classified by their masks."""
    config = small.start("supervised", "photo_collages")
    config.supervised.truth = "mask"
    config.views.global_size = config.model.image_size = 64
    config.views.global_scale = (0.25, 1.0)
    return config


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
    config = _with_masks() if method == "masks" else small.start(method, "photos")
    config.optim.steps = STEPS
    _evaluations(config)
    return config
