"""Data, network and evaluation settings that the method configs share. Not a config by itself.

The full-size presets (ViT on ImageNet) are the papers'. The small ones are ours: one network an
eighth of ViT-S; crops, batch and schedule scaled down with the images.
"""

from ssl_jax import evals, papers, settings
from ssl_jax.config import InputError, unknown

SIZES = {"vits16": "s", "vitb16": "b", "vitl16": "l"}  # variant -> model.size
EPOCHS = {"vits16": 800, "vitb16": 400, "vitl16": 250}  # as SOP, iBOT and DINO train them
# Variant -> model.remat: what 8 GPUs of 80 GB or 16 TPUs of 32 have room for, by `ssl-jax plan`.
REMAT = {"vits16": "none", "vitb16": "dots", "vitl16": "dots"}
SMALL = ("cifar10", "imagenette96", "photos", "photo_collages")
VARIANTS = (*SIZES, *SMALL)
_LABELLED = ("knn", "linear", "rank")  # evaluations of images with labels
_COUNTS = dict(train_examples=5000, test_examples=2000)  # of generated images


def start(method: str, variant: str, variants=VARIANTS):
    """The method's defaults and the paper's numbers of this variant. Raises InputError if it is
    none of `variants`.
    """
    if variant not in variants:
        raise InputError(unknown("variant", variant, variants))
    config = settings.base_config(method)
    config.expected = papers.expected(f"{method}:{variant}")
    return config


def imagenet(config, variant: str) -> None:
    """ImageNet and a ViT with patches of 16 pixels; `variant` is one of SIZES."""
    data, model, optim = config.data, config.model, config.optim
    data.kind, data.name, data.split = "tfds", "imagenet2012", "train"
    data.crop_on, data.workers = "host", 16
    model.size, model.patch, model.image_size, model.drop_path = SIZES[variant], 16, 224, 0.1
    # scan and remat change no number; bfloat16 is the papers' mixed precision.
    model.scan, model.remat, model.dtype = True, REMAT[variant], "bfloat16"
    optim.batch_size, optim.epochs, optim.warmup_epochs = 1024, EPOCHS[variant], 10.0
    # The papers evaluate the central 224 pixels of images with a short side of 256.
    images = dict(kind="training", test_split="validation", size=256)
    evals.add(config, *_LABELLED, data=images, crop=224)
    config.evals.tasks = ("knn",)


def small(config, variant: str) -> None:
    """A set of small images and a network for it; `variant` is one of SMALL."""
    {"cifar10": _cifar10, "imagenette96": _imagenette96}.get(variant, _photos)(config)
    if variant == "photo_collages":
        config.data.kind = "photo_collages"
        # Patches are scored on these scenes, whole images on `photos`, which have one label each.
        evals.add(config, "dense", data=dict(kind="training", size=64), **_COUNTS)
        config.evals.tasks = ("knn", "linear", "dense")


def shared(config, variant: str) -> None:
    """`imagenet` or `small`, whichever has this variant."""
    (imagenet if variant in SIZES else small)(config, variant)


def ablation(config) -> None:
    """The ablations of SOP and SOVE, as far as published: 300 epochs, two global views of scale .14
    to 1, none local.
    """
    config.optim.epochs = 300.0
    config.views.local_count, config.views.global_scale = 0, (0.14, 1.0)


def massl_base(config) -> None:
    """MaSSL's published arguments of ViT-B/16, which also stand in for those that iBOT, SOP and
    SOVE did not publish; without the teacher's temperature.
    """
    config.views.global_scale, config.views.local_scale = (0.32, 1.0), (0.05, 0.32)
    config.optim.lr, config.optim.final_lr = 7.5e-4, 2e-6


def _cifar10(config) -> None:
    _small(config, patch=4, image_size=32, local_size=16)
    config.views.global_scale, config.views.local_scale = (0.3, 1.0), (0.1, 0.3)
    config.data.update(dict(kind="tfds", name="cifar10"))
    evals.add(config, *_LABELLED, data=dict(kind="training"))


def _imagenette96(config) -> None:
    _small(config, patch=12, image_size=96, local_size=48)
    # `size` changes nothing for the 96 px set, and makes those that TFDS knows fit, as
    # data.name=imagenette/160px-v2.
    config.data.update(dict(kind="tfds", name="imagenette96", size=96))
    evals.add(config, *_LABELLED, data=dict(kind="training", test_split="validation"))


def _photos(config) -> None:
    _small(config, patch=8, image_size=40, local_size=24)
    config.views.global_scale, config.views.local_scale = (0.3, 1.0), (0.1, 0.3)
    config.data.kind, config.data.length, config.data.size = "photos", 16384, 64
    config.optim.epochs = 20
    evals.add(config, *_LABELLED, data=dict(kind="training", size=64), **_COUNTS)


def _small(config, *, patch: int, image_size: int, local_size: int) -> None:
    """An eighth of ViT-S on images that fit in memory, which are cropped on the device."""
    data, views, model, optim = config.data, config.views, config.model, config.optim
    data.crop_on, data.cache = "device", True
    views.global_size, views.local_size, views.local_count = image_size, local_size, 4
    views.blur_prob = (0.0, 0.0, 0.0)
    model.size, model.width, model.depth, model.heads = "custom", 192, 6, 6
    model.patch, model.image_size = patch, image_size
    # The papers' .02 is 1 / sqrt(width) at a width of 2500; at 192 it leaves almost constant
    # outputs and uniform targets.
    model.init_std = model.width**-0.5
    optim.batch_size, optim.epochs, optim.lr = 128, 100, 2e-3
    optim.warmup_epochs, optim.final_weight_decay = 2.0, 0.2
    config.teacher.momentum = 0.99
    config.evals.tasks, config.evals.every_steps = ("knn", "linear"), 2000
