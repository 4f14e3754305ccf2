"""Data, network and view settings that the method configs share. Not a config by itself."""

from ssl_jax.config import InputError

SMALL = ("cifar10", "imagenette96", "digits")


def apply(config, name: str, variants) -> None:
    """Writes the shared part of variant `name` into `config`."""
    if name not in variants:
        raise InputError(f"unknown variant {name!r}; choose one of {', '.join(variants)}")
    _SHARED[name](config)


def _imagenet(size: str):
    def write(config):
        config.data.update(dict(kind="tfds", name="imagenet2012", split="train", size=0, crop_on="host", workers=16))
        config.model.update(dict(size=size, patch=16, image_size=224, drop_path=0.1, scan=True, remat=True, dtype="bfloat16"))
        config.optim.update(dict(batch_size=1024, warmup_epochs=10.0))
        probe = dict(kind="tfds", name="imagenet2012", split="train", test_split="validation", size=224)
        config.eval.update(dict(tasks=("knn",), every_steps=0))
        config.eval.image.update(probe)

    return write


def _small_network(config, patch: int, image_size: int) -> None:
    # A tenth of ViT-S and the paper's init scaled to the width: .02 is 1/sqrt(width) at 2500, far too small at 192.
    config.model.update(dict(size="custom", width=192, depth=6, heads=6, patch=patch, image_size=image_size, drop_path=0.0))
    config.model.init_std = config.model.width**-0.5
    config.views.update(dict(global_size=image_size, local_count=4, blur_prob=(0.0, 0.0, 0.0)))
    config.optim.update(dict(batch_size=128, epochs=100, lr=2e-3, warmup_epochs=2.0, weight_decay=0.04, final_weight_decay=0.2))
    config.teacher.momentum = 0.99


def _cifar10(config):
    _small_network(config, patch=4, image_size=32)
    config.views.update(dict(global_scale=(0.3, 1.0), local_size=16, local_scale=(0.1, 0.3)))
    config.data.update(dict(kind="tfds", name="cifar10", split="train", crop_on="device", cache=True))
    config.eval.update(dict(tasks=("knn", "linear"), every_steps=2000))
    config.eval.image.update(dict(kind="tfds", name="cifar10", split="train", test_split="test"))


def _imagenette96(config):
    _small_network(config, patch=12, image_size=96)
    config.views.update(dict(global_scale=(0.25, 1.0), local_size=48, local_scale=(0.05, 0.25)))
    config.data.update(dict(kind="tfds", name="imagenette96", split="train", crop_on="device", cache=True))
    config.eval.update(dict(tasks=("knn", "linear"), every_steps=2000))
    config.eval.image.update(dict(kind="tfds", name="imagenette96", split="train", test_split="validation"))


_SHARED = {
    "vits16": _imagenet("s"),
    "vitb16": _imagenet("b"),
    "vitl16": _imagenet("l"),
    "cifar10": _cifar10,
    "imagenette96": _imagenette96,
}
