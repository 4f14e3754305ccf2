"""What the recipes for CIFAR-10 and Imagenette change of those for photographs, configs/small.py:
an hour of two CPU cores for the best k-NN, or ten minutes of one H100. Not a config by itself.

docs/speedrun.md has what they reach, and what was tried. All have a stem of convolutions, Muon for
the matrices, 128 images a step and a learning rate of 2e-3. A teacher that follows fast (.95 in
place of .99) and the papers' temperatures of .1 and .04 matter most in runs this short.
"""

from typing import Any, NamedTuple

from ssl_jax import evals


class Images(NamedTuple):
    """A set that TFDS knows: its name, test split, and pixels of an image."""

    name: str
    test: str
    size: int


CIFAR = Images("cifar10", "test", 32)
# `size` changes nothing for the 96 px set, and makes those that TFDS knows fit, as
# data.name=imagenette/160px-v2.
IMAGENETTE = Images("imagenette96", "validation", 96)
VARIANTS = {
    "cifar10": CIFAR,
    "imagenette96": IMAGENETTE,
    "cifar10_gpu": CIFAR,
    "imagenette96_gpu": IMAGENETTE,
}
# {key: value} for every method; keys of views that a method does not have are left alone.
_ALL = {
    "model.stem": "conv",
    "optim.name": "muon",
    "optim.batch_size": 128,
    "optim.lr": 4e-3,
    "teacher.momentum": 0.95,
    "views.jitter_prob": 0.8,
    "data.cache": "device",
}
_CPU = {"model.width": 128, "model.heads": 4}
_GPU = {"model.width": 192, "model.depth": 9, "model.dtype": "bfloat16", "optim.batch_size": 1024}
_CHANGES: dict[str, dict[str, Any]] = {
    "cifar10": _CPU | {"optim.epochs": 30.0},
    "imagenette96": _CPU | {"optim.epochs": 70.0},
    "cifar10_gpu": _GPU | {"model.patch": 4, "optim.epochs": 60.0},
    "imagenette96_gpu": _GPU | {"optim.epochs": 100.0},
}
_VIEWS = {
    CIFAR: {"global_size": 32, "global_scale": (0.5, 1.0), "local_count": 0},
    IMAGENETTE: {"global_size": 48, "global_scale": (0.3, 1.0), "local_count": 0},
}
_TEMPERATURES = dict(
    student_temperature=0.1, teacher_temperature=0.04, final_teacher_temperature=0.04
)
_SOPS = _TEMPERATURES | {"cls.anchors": 4096, "cls.members": 1, "cls.memory": 8192}
_METHODS: dict[str, dict[str, Any]] = {"sop": _SOPS, "sove": _SOPS}


def change(config, variant: str) -> None:
    """Makes the recipe of a method for photographs that of one of VARIANTS."""
    images = VARIANTS[variant]
    data, views = config.data, config.views
    data.kind, data.name, data.size = "tfds", images.name, images.size
    config.update_from_flattened_dict(_ALL | _CHANGES[variant])
    views.update(_VIEWS[images])
    section = _METHODS.get(config.method, {})
    config.update_from_flattened_dict({f"{config.method}.{k}": v for k, v in section.items()})
    config.checkpoint.every_steps, config.evals.batch_size = 500, 512


def add_evaluations(config, variant: str) -> None:
    """k-NN and linear probe of all labelled images, k-NN ten times on the way."""
    images = VARIANTS[variant]
    source = dict(kind="training", test_split=images.test, size=images.size)
    evals.add(config, "knn", "linear", "rank", data=source)
    config.evals.tasks = ("knn", "linear")
