"""Data, network and evaluation settings that the full-size presets share: the papers', ViT on
ImageNet. Not a config by itself. Small images: configs/small.py.
"""

from ssl_jax import evals, papers, settings
from ssl_jax.config import InputError, unknown

SIZES = {"vits16": "s", "vitb16": "b", "vitl16": "l"}  # variant -> model.size
SWIN = "swin_t14"  # Swin-T with windows of 14, of SOP, SOVE and iBOT alone
EPOCHS = {"vits16": 800, "vitb16": 400, "vitl16": 250, SWIN: 300}  # as SOP, iBOT and DINO train
# Variant -> model.remat: what 8 GPUs of 80 GB or 16 TPUs of 32 have room for, by `ssl-jax plan`.
REMAT = {"vits16": "none", "vitb16": "dots", "vitl16": "dots", SWIN: "none"}
_LABELLED = ("knn", "linear", "rank")  # evaluations of images with labels


def start(method: str, variant: str, variants):
    """The method's defaults and the paper's numbers of this variant. Raises InputError if it is
    none of `variants`.
    """
    if variant not in variants:
        raise InputError(unknown("variant", variant, variants))
    config = settings.base_config(method)
    config.expected = papers.expected(f"{method}:{variant}")
    return config


def imagenet(config, variant: str) -> None:
    """ImageNet and a ViT with patches of 16 pixels; `variant` is one of SIZES, or SWIN."""
    data, model, optim = config.data, config.model, config.optim
    data.kind, data.name, data.split = "tfds", "imagenet2012", "train"
    data.crop_on, data.workers = "host", 10  # of the 12 CPUs of a task, launch/slurm.sbatch
    model.image_size, model.drop_path = 224, 0.1
    if variant == SWIN:
        model.size, model.patch, model.window, model.cls = "swin_t", 32, 14, False
        config[config.method].global_token = "mean"
    else:
        model.size, model.patch = SIZES[variant], 16
    # remat changes no number; bfloat16 is the papers' mixed precision.
    model.remat, model.dtype = REMAT[variant], "bfloat16"
    optim.batch_size, optim.epochs, optim.warmup_epochs = 1024, EPOCHS[variant], 10.0
    # The papers evaluate the central 224 pixels of images with a short side of 256.
    images = dict(kind="training", test_split="validation", size=256)
    evals.add(config, *_LABELLED, data=images, crop=224)
    # Every ten epochs: it encodes the set once, about a hundredth of what they cost.
    config.evals.tasks, config.evals.every_steps = ("knn",), 10 * 1251


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
