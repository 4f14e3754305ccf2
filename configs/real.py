"""What the recipes for CIFAR-10 and Imagenette change of those for photographs, configs/small.py:
an hour of two CPU cores for the best k-NN, or ten minutes of one H100. Not a config by itself.

docs/speedrun.md has what they reach, experiments/tried.md what was tried. All have a stem of
convolutions, Muon for the matrices, and on a CPU 128 images a step and a learning rate of 2e-3, on
a GPU twice the images and 1.4 times the rate. What matters most in runs this short is a teacher
that follows fast (.95 to .98 in place of .99), and for SOP sharp temperatures and many anchors of
one member each, without patches.
"""

from typing import Any, NamedTuple

from ssl_jax import evals


class Images(NamedTuple):
    """A set that TFDS knows: its name, test split, pixels of an image, and training images."""

    name: str
    test: str
    size: int
    length: int


CIFAR = Images("cifar10", "test", 32, 50000)
# `size` changes nothing for the 96 px set, and makes those that TFDS knows fit, as
# data.name=imagenette/160px-v2.
IMAGENETTE = Images("imagenette96", "validation", 96, 9469)
VARIANTS = {
    "cifar10": CIFAR,
    "imagenette96": IMAGENETTE,
    "cifar10_gpu": CIFAR,
    "imagenette96_gpu": IMAGENETTE,
}
ON_THE_WAY = 6  # evaluations while it trains
_ALL = {
    "model.stem": "conv",
    "optim.name": "muon",
    "optim.batch_size": 128,
    "optim.lr": 4e-3,
    "data.cache": "device",
}
_CPU = {"model.width": 128, "model.heads": 4}
_GPU = {
    "model.width": 192,
    "model.depth": 9,
    "model.dtype": "bfloat16",
    "optim.batch_size": 256,
    "optim.lr": 2.8e-3,
    "data.workers": 8,  # else the draws of crops cannot keep up
}
_SIZES: dict[str, dict[str, Any]] = {
    "cifar10": _CPU | {"optim.epochs": 38.0},
    "imagenette96": _CPU | {"optim.epochs": 40.0},
    "cifar10_gpu": _GPU | {"model.patch": 4, "optim.epochs": 100.0},
    "imagenette96_gpu": _GPU | {"optim.epochs": 300.0},
}
# Of methods that compare whole images. Those that cluster patches, or rebuild them, keep their
# views, on which CIFAR-10 is enlarged.
_TWO_CROPS = {
    CIFAR: {"global_size": 32, "global_scale": (0.5, 1.0), "local_count": 0},
    IMAGENETTE: {"global_size": 48, "global_scale": (0.3, 1.0), "local_count": 0},
}
_TEMPERATURES = dict(
    student_temperature=0.07, teacher_temperature=0.03, final_teacher_temperature=0.03
)
_SOPS = _TEMPERATURES | {
    "cls.anchors": 4096,
    "cls.members": 1,
    "cls.memory": 8192,
    "patch.weight": 0.0,
}
# Images that methods with larger views see in an hour of two CPU cores.
_IN_AN_HOUR = {"cribo": 360_000, "flsl": 340_000, "stellar": 190_000}
# The section of each method that compares whole images.
_SECTIONS: dict[str, dict[str, Any]] = {
    "dino": {},
    "ibot": {},
    "dinov2": {},
    "massl": _TEMPERATURES,
    "sop": _SOPS,
    "sove": _SOPS,
}


def change(config, variant: str) -> None:
    """Makes the recipe of a method for photographs that of one of VARIANTS."""
    images = VARIANTS[variant]
    data, views, method = config.data, config.views, config.method
    data.kind, data.name, data.size = "tfds", images.name, images.size
    config.update_from_flattened_dict(_ALL | _SIZES[variant])
    if method in _IN_AN_HOUR and not variant.endswith("_gpu"):
        config.optim.epochs = float(round(_IN_AN_HOUR[method] / images.length))
    if method != "mae":
        config.teacher.momentum, views.jitter_prob = 0.98, 0.8
    if method in _SECTIONS:
        views.update(_TWO_CROPS[images])
        section = {f"{method}.{key}": value for key, value in _SECTIONS[method].items()}
        config.update_from_flattened_dict(section)
    config.checkpoint.every_steps, config.evals.batch_size = 500, 512


def add_evaluations(config, variant: str) -> None:
    """k-NN and linear probe of all labelled images, some times on the way."""
    images, optim = VARIANTS[variant], config.optim
    source = dict(kind="training", test_split=images.test, size=images.size)
    evals.add(config, "knn", "linear", "rank", data=source)
    config.evals.tasks = ("knn", "linear")
    steps = int(optim.epochs * images.length / optim.batch_size)
    config.evals.every_steps = -(-steps // ON_THE_WAY)
