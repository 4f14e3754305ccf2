"""SOP, self-organizing visual prototypes.

    ssl-jax train --config=sop:vits16 --config.data.dir=/data/tfds --workdir=runs/sop_vits16
    ssl-jax train --config=sop:photos --workdir=runs/sop_photos

Variants: vits16, vitb16, vitl16; swin_t14 (Swin-T, windows of 14); vits16_ablation (the paper's
ablations: 300 epochs, no multi-crop); small: cifar10, imagenette96, cifar10_gpu, imagenette96_gpu,
photos, photo_collages, photos_swin.
Hardware: full size: 8 GPUs of 80 GB or a TPU v4-32; small: minutes to hours on a CPU.
Expected time: 193.5 hours for vits16 (table B.1); not measured by us.
Expected number: `ssl-jax show --paper=sop`. Small variants: docs/results.md.

Not published: the arguments of the published models, the batch size, crop scales and the
temperatures of the ablations.
"""

from . import presets, small

VARIANTS = (*presets.SIZES, presets.SWIN, "vits16_ablation", *small.VARIANTS, small.SWIN)


def get_config(variant: str = "vits16"):
    return recipe("sop", variant)


def recipe(method: str, variant: str):
    """The config of SOP, or of SOVE, whose section has the same keys."""
    if variant in (*small.VARIANTS, small.SWIN):
        return small.recipe(method, variant)
    config = presets.start(method, variant, VARIANTS)
    views, section = config.views, config[method]
    size = variant.removesuffix("_ablation")
    presets.imagenet(config, size)
    views.mask, views.mask_ratio, views.mask_prob = "block", (0.3, 0.3), 1.0
    if size in ("vitb16", "vitl16"):  # not published: those of its predecessor MaSSL for ViT-B
        presets.massl_base(config)
        section.teacher_temperature_epochs = 50.0
    if variant == "vits16_ablation":
        presets.ablation(config)
        config.teacher.momentum, section.cls.tasks = 0.994, 2
    return config
