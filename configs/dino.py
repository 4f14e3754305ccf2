"""DINO, self-distillation with no labels (Caron et al. 2021).

    ssl-jax train --config=configs/dino.py:vits16 --config.data.dir=/data/tfds
        --workdir=runs/dino_vits16
    ssl-jax train --config=configs/dino.py:cifar10 --config.data.dir=/data/tfds
        --workdir=runs/dino_cifar10
    ssl-jax train --config=configs/dino.py:digits --workdir=runs/dino_digits
    ssl-jax show --table dino

Hardware: vits16, vitb16, vitl16: 8 GPUs of 80 GB or a TPU v4-32 and up; cifar10, imagenette96,
digits, digit_scenes: one GPU, or hours on a CPU.
Expected time: 180 hours for vits16 with 800 epochs (SOP paper, table B.1); not measured by us,
neither is any small preset.
Expected number: k-NN on ImageNet 74.5 (vits16), 76.1 (vitb16) (SOP paper, table 1). vitl16 was not
published; the small presets were not measured.

Values follow the paper and its published defaults: crops .25-1 / .05-.25, K 65536, tau_s .1, tau_t
.04 -> .07 in 30 epochs, center momentum .9, lr 5e-4 x batch / 256, weight decay .04 -> .4, EMA .996
-> 1, AdamW, clip 3 per tensor, last layer frozen for one epoch. The words of WORDS follow the
variant, as in configs/sop.py; the numbers are those that other papers give for DINO.

Small presets: 1024 prototypes and a smaller head, since there are ten classes; a teacher
temperature that rises within 5 epochs, because a run is short; four local crops; larger patches
against the image and a learning rate for small batches; no mirror images of digits.
"""

from configs import presets
from configs.presets import Row
from ssl_jax import settings

VARIANTS = presets.VARIANTS
WORDS = {
    "ablation": presets.ablation(),  # as SOP's paper sets it
    "epochs": "optim.epochs",
    "momentum": "teacher.momentum",  # at the start
    "prototypes": "dino.prototypes",
    "mean_token": {"dino.global_token": "mean"},
    "no_centering": {"dino.centering": False},
    "no_sharpening": {
        "dino.teacher_temperature": 0.1,
        "dino.final_teacher_temperature": 0.1,
    },  # as soft as the student
}

TABLE = (
    Row(
        "SOP table 1, ViT-S/16",
        "vits16",
        {
            "knn": "74.5 (SOP paper, table 1)",
            "linear": "77.0 (SOP paper, table 1)",
            "fine-tuned": "82.0 (SOP paper, table 1)",
            "fine-tuned, 1 % labels": "60.3 (SOP paper, table 1)",
            "fine-tuned, 10 % labels": "74.3 (SOP paper, table 1)",
            "knn, 1 % labels": "61.3 (SOP paper, table B.2)",
            "knn, 10 % labels": "69.1 (SOP paper, table B.2)",
            "DAVIS J&F, J, F": "61.8, 60.2, 63.4 (SOP paper, table 4)",
            "dense VOC, ADE20K mIoU": "46.1, 18.4 (CrIBo paper, table 1)",
            "hours": "180.0 (SOP paper, table B.1)",
            "GB a GPU": "15.4 (SOP paper, table B.1)",
        },
    ),
    Row(
        "SOP table 1, ViT-B/16",
        "vitb16",
        {
            "knn": "76.1 (SOP paper, table 1)",
            "linear": "78.2 (SOP paper, table 1)",
            "fine-tuned": "83.6 (SOP paper, table 1)",
            "fine-tuned, 1 % labels": "64.4 (SOP paper, table 1)",
            "fine-tuned, 10 % labels": "76.3 (SOP paper, table 1)",
            "knn, 1 % labels": "63.6 (SOP paper, table B.2)",
            "knn, 10 % labels": "71.0 (SOP paper, table B.2)",
            "COCO box AP, mask AP": "50.1, 43.4 (SOP paper, table 2)",
            "ADE20K linear, UPerNet mIoU": "34.5, 46.8 (SOP paper, table 2)",
            "CIFAR-10, CIFAR-100": "99.1, 91.7 (SOP paper, table 3)",
            "iNaturalist 18, 19": "72.6, 78.6 (SOP paper, table 3)",
            "Flowers, Cars": "98.8, 93.0 (SOP paper, table 3)",
            "DAVIS J&F, J, F": "62.3, 60.7, 63.9 (SOP paper, table 4)",
            "dense VOC, ADE20K mIoU": "54.9, 22.0 (CrIBo paper, table 1)",
            "ROxford M, H": "37.4, 13.7 (SOP paper, table 5)",
            "RParis M, H": "63.5, 35.6 (SOP paper, table 5)",
        },
        "table B.3 of the SOP paper lists other numbers for ADE20K, which are BEiT's in its"
        " table 2",
    ),
    Row(
        "SOP table B.1, 100 epochs",
        "vits16,epochs=100",
        {"knn": "69.7 (SOP paper, table B.1)", "hours": "24.2 (SOP paper, table B.1)"},
    ),
    Row(
        "SOP table B.1, 300 epochs",
        "vits16,epochs=300",
        {"knn": "72.8 (SOP paper, table B.1)", "hours": "72.6 (SOP paper, table B.1)"},
    ),
    Row(
        "SOP table 7, DINO",
        "vits16,ablation",
        {"knn": "67.9 (SOP paper, table 7)", "linear": "72.5 (SOP paper, table 7)"},
        "crop scales are not published",
    ),
)


def get_config(arg: str = "vits16"):
    """`arg` is one of VARIANTS, and words of WORDS (or any KEY=VALUE) after it:
    "vits16,no_centering".
    """
    variant, words = presets.parse(arg, "vits16")
    config = settings.base_config("dino")
    presets.apply(config, variant)
    if variant in ("vitb16", "vitl16"):
        # Published arguments of ViT-B/16: slower warm-up of the teacher temperature, tighter
        # clipping, last layer frozen longer.
        config.optim.update(dict(lr=7.5e-4, final_lr=2e-6, clip=0.3))
        config.dino.update(dict(teacher_temperature_epochs=50.0, freeze_last_layer_epochs=3))
    if variant in presets.SMALL:
        presets.small_dino(config)
    presets.override_row(config, variant, words, WORDS, TABLE)
    return config
