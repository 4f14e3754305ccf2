"""DINO, self-distillation with no labels (Caron et al. 2021).

    ssl-jax train --config=configs/dino.py:vits16 --config.data.dir=/data/tfds --workdir=runs/dino_vits16
    ssl-jax train --config=configs/dino.py:cifar10 --config.data.dir=/data/tfds --workdir=runs/dino_cifar10

Hardware: vits16, vitb16, vitl16: one node of 8 GPUs with 80 GB or a TPU v4-32 and up; cifar10, imagenette96, digits: one GPU or a CPU.
Expected time: the paper gives 2.6 days on 16 V100 for vits16 at 300 epochs; ours was not measured at that size.
Expected number: k-NN on ImageNet 72.8 (S/16, 300 epochs, 2 x 224 + 10 x 96 px; SOP paper table B.1). The small presets carry our own
runs, or none if they were not run to the end (see `expected`).

Values follow the paper and its published defaults: crops .25-1 / .05-.25, K 65536, tau_s .1, tau_t .04 -> .07 in 30 epochs, center
momentum .9, lr 5e-4 x batch / 256, weight decay .04 -> .4, EMA .996 -> 1, AdamW, clip 3 per tensor, last layer frozen for one epoch.
"""

from configs import presets
from ssl_jax import methods

VARIANTS = ("vits16", "vitb16", "vitl16", "cifar10", "imagenette96", "digits")


def get_config(arg: str = "vits16"):
    """`arg` is one of VARIANTS."""
    config = methods.base_config("dino")
    presets.apply(config, arg, VARIANTS)
    if arg.startswith("vit"):
        config.optim.epochs = {"vits16": 800, "vitb16": 400, "vitl16": 250}[arg]
    if arg == "vits16":
        config.expected = {"knn": "74.5 (ImageNet, 800 epochs, SOP paper table B.1)"}
    if arg == "vitb16":
        # The paper's ViT-B/16 arguments: a freer last layer is not used, the teacher moves more slowly over a longer warm-up.
        config.dino.teacher_temperature_epochs = 50.0
        config.optim.lr = 7.5e-4
        config.optim.final_lr = 2e-6
        config.optim.clip = 0.3
        config.dino.freeze_last_layer_epochs = 3
    if arg in presets.SMALL:
        config.dino.update(dict(head_hidden=512, head_bottleneck=128, prototypes=1024, teacher_temperature_epochs=5.0))
    return config
