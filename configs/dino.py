"""DINO, self-distillation with no labels (Caron et al. 2021).

    ssl-jax train --config=dino:vits16 --config.data.dir=/data/tfds --workdir=runs/dino_vits16
    ssl-jax train --config=dino:photos --workdir=runs/dino_photos

Variants: vits16, vitb16, vitl16; vits16_ablation (300 epochs, no multi-crop, as in SOP's table 7);
small: cifar10, imagenette96, photos, photo_collages.
Hardware: full size: 8 GPUs of 80 GB or a TPU v4-32; small: minutes to hours on a CPU.
Expected time: 180 hours for vits16 (SOP, table B.1); not measured by us.
Expected number: `ssl-jax show --paper=dino`. vitl16 was not published. Small variants:
docs/results.md.

Values follow the paper and the published arguments: crops .25-1 / .05-.25, K 65536, tau_s .1, tau_t
.04 -> .07 in 30 epochs, center momentum .9, lr 5e-4 x batch / 256, weight decay .04 -> .4, EMA .996
-> 1, AdamW, last layer frozen for one epoch. ViT-S: the gain of the last layer learns, no clipping,
final lr 1e-5. ViT-B: gain fixed, clip .3 per tensor, final lr 2e-6, tau_t rises in 50 epochs, last
layer frozen for three.
"""

from . import presets, small

VARIANTS = (*presets.SIZES, "vits16_ablation", *small.VARIANTS)


def get_config(variant: str = "vits16"):
    if variant in small.VARIANTS:
        return small.recipe("dino", variant)
    config = presets.start("dino", variant, VARIANTS)
    dino, optim = config.dino, config.optim
    size = variant.removesuffix("_ablation")
    presets.imagenet(config, size)
    if size == "vits16":
        dino.norm_last_layer = False
        optim.clip_by, optim.final_lr = "none", 1e-5
    else:
        optim.lr, optim.final_lr, optim.clip = 7.5e-4, 2e-6, 0.3
        dino.teacher_temperature_epochs, dino.freeze_last_layer_epochs = 50.0, 3
    if variant == "vits16_ablation":
        presets.ablation(config)
    return config
