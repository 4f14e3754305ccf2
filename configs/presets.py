"""Data, network and view settings that the method configs share. Not a config by itself.

The full-size presets (ViT on ImageNet) are the papers'. The small ones are ours: one network an eighth of ViT-S and crops, batch and
schedule scaled down with the images.
"""

from ssl_jax import config as config_lib
from ssl_jax.config import InputError

FULL = {"vits16": "s", "vitb16": "b", "vitl16": "l"}  # variant -> model.size
EPOCHS = {"vits16": 800, "vitb16": 400, "vitl16": 250}  # as SOP, iBOT and DINO train them
SMALL = ("cifar10", "imagenette96", "digits")
VARIANTS = (*FULL, *SMALL)


def apply(config, name: str) -> None:
    """Writes the part of variant `name` that does not depend on the method. Raises InputError if it is none of VARIANTS."""
    if name not in VARIANTS:
        raise InputError(config_lib.unknown("variant", name, VARIANTS))
    if name in FULL:
        _imagenet(config, name)
    else:
        {"cifar10": _cifar10, "imagenette96": _imagenette96, "digits": _digits}[name](config)


def small_dino(config) -> None:
    """DINO's head for ten classes; the teacher temperature rises within the first epochs."""
    config.dino.update(dict(head_hidden=512, head_bottleneck=128, prototypes=1024, teacher_temperature_epochs=5.0))


def small_sop(config) -> None:
    """SOP's head and memories for small sets: a class memory of 64 batches, as in the paper, and temperatures as in its code."""
    config.sop.update(
        dict(
            head_hidden=512, head_out=128, teacher_temperature=0.04, final_teacher_temperature=0.04, teacher_temperature_epochs=0.0,
            cls=dict(anchors=512, members=9, tasks=2, memory=8192),
            patch=dict(anchors=128, members=1, tasks=1, memory=2048),
        )
    )  # fmt: skip


def _imagenet(config, name: str) -> None:
    config.data.update(dict(kind="tfds", name="imagenet2012", split="train", crop_on="host", workers=16))
    # scan and remat change no number; bf16 is the papers' mixed precision.
    config.model.update(dict(size=FULL[name], patch=16, image_size=224, drop_path=0.1, scan=True, remat=True, dtype="bfloat16"))
    config.optim.update(dict(batch_size=1024, epochs=EPOCHS[name], warmup_epochs=10.0))
    # Evaluation protocol of the papers: short side 256, central 224.
    config.eval.update(dict(tasks=("knn",), crop=224))
    config.eval.image.update(dict(kind="tfds", name="imagenet2012", split="train", test_split="validation", size=256))


def _cifar10(config) -> None:
    _small(config, patch=4, image_size=32, local_size=16)
    config.views.update(dict(global_scale=(0.3, 1.0), local_scale=(0.1, 0.3)))
    config.data.update(dict(kind="tfds", name="cifar10", split="train"))
    config.eval.image.update(dict(kind="tfds", name="cifar10", split="train", test_split="test"))


def _imagenette96(config) -> None:
    _small(config, patch=12, image_size=96, local_size=48)
    config.views.update(dict(global_scale=(0.25, 1.0), local_scale=(0.05, 0.25)))
    # `size` changes nothing for the 96 px set, and makes the ones that TFDS knows (data.name=imagenette/160px-v2) fit.
    config.data.update(dict(kind="tfds", name="imagenette96", split="train", size=96))
    config.eval.image.update(dict(kind="tfds", name="imagenette96", split="train", test_split="validation", size=96))


def _digits(config) -> None:
    _small(config, patch=8, image_size=40, local_size=24)
    # A mirrored digit is another sign, so no flips.
    config.views.update(dict(global_scale=(0.3, 1.0), local_scale=(0.1, 0.3), flip=0.0))
    config.data.update(dict(kind="digits", split="train", length=16384, size=64))
    config.optim.epochs = 20
    config.eval.update(dict(train_examples=5000, test_examples=2000))
    config.eval.image.update(dict(kind="digits", size=64))


def _small(config, *, patch: int, image_size: int, local_size: int) -> None:
    """An eighth of ViT-S on images that fit in memory, which are cropped on the device."""
    config.model.update(dict(size="custom", width=192, depth=6, heads=6, patch=patch, image_size=image_size))
    # The papers' .02 is 1 / sqrt(width) at a width of 2500; at 192 it leaves almost constant outputs and uniform targets.
    config.model.init_std = config.model.width**-0.5
    config.views.update(dict(global_size=image_size, local_size=local_size, local_count=4, blur_prob=(0.0, 0.0, 0.0)))
    config.data.update(dict(crop_on="device", cache=True))
    config.optim.update(dict(batch_size=128, epochs=100, lr=2e-3, warmup_epochs=2.0, final_weight_decay=0.2))
    config.teacher.momentum = 0.99
    config.eval.update(dict(tasks=("knn", "linear"), every_steps=2000))
